// The form of an answer: `response_format` of OpenAI, and vLLM's names for the same.
import type { Grammar } from 'kvtide/text'

import { wrong } from '../refusal.js'
import { type Fields, given, group, words } from './fields.js'

const escaped = (text: string): string => text.replaceAll(/[\\^$.*+?()[\]{}|/-]/g, '\\$&')

/** A grammar of one of some texts. */
function choiceOf(value: unknown, param: string): Grammar {
  if (Array.isArray(value) && value.length > 0 && value.every(text => typeof text === 'string' && text !== ''))
    return { regex: value.map(text => escaped(text as string)).join('|') }
  throw wrong(param, value, 'a list of texts, none of them empty')
}

function schemaOf(value: unknown, param: string): Grammar {
  if (typeof value === 'boolean' || (typeof value === 'object' && value !== null && !Array.isArray(value)))
    return { json: value }
  throw wrong(param, value, 'a JSON schema: an object')
}

function regexOf(value: unknown, param: string): Grammar {
  if (typeof value !== 'string' || value === '') throw wrong(param, value, 'a regular expression')
  return { regex: value }
}

/** Reads one of vLLM's `structured_outputs` or `guided_` fields. */
function guided(fields: Fields, prefix: string, paramOf: (name: string) => string): Grammar[] {
  const readers: Readonly<Record<string, (value: unknown, param: string) => Grammar>> = {
    json: (value, param) => schemaOf(typeof value === 'string' ? parsed(value, param) : value, param),
    regex: regexOf,
    choice: choiceOf,
    ...(prefix === '' ? { grammar: (value: unknown, param: string) => ({ lark: larkOf(value, param) }) } : {}),
  }
  return Object.entries(readers).flatMap(([name, read]) => {
    const value = given(fields, `${prefix}${name}`)
    return value === undefined ? [] : [read(value, paramOf(name))]
  })
}

function larkOf(value: unknown, param: string): string {
  if (typeof value !== 'string' || value === '') throw wrong(param, value, 'a Lark grammar')
  return value
}

function parsed(text: string, param: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw wrong(param, text, 'a JSON schema')
  }
}

function responseFormat(fields: Fields): Grammar[] {
  const format = group(fields, 'response_format')
  if (format === undefined) return []
  const type = given(format, 'type')
  if (type === 'text') return []
  if (type === 'json_object') return [{ json: 'object' }]
  if (type !== 'json_schema') throw wrong('response_format.type', type, 'text, json_object or json_schema')
  const named = group(format, 'json_schema', 'response_format.json_schema')
  if (named === undefined) throw wrong('response_format.json_schema', undefined, 'an object with name and schema')
  words(named, 'name', 'response_format.json_schema.name')
  return [schemaOf(given(named, 'schema'), 'response_format.json_schema.schema')]
}

/** Returns the grammar of the answer, if the request has one. */
export function formatOf(fields: Fields): Grammar | undefined {
  const structured = group(fields, 'structured_outputs')
  const found = [
    ...responseFormat(fields),
    ...guided(fields, 'guided_', name => `guided_${name}`),
    ...(structured === undefined ? [] : guided(structured, '', name => `structured_outputs.${name}`)),
  ]
  if (found.length > 1) throw wrong('response_format', 'several forms', 'the only form of the answer')
  return found[0]
}
