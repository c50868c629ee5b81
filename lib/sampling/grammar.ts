// Grammars as callers give them, and as the addon compiles them.
import type { NativeGrammar } from '#binding'

import { arrayKind, isArray, isObject, known, type Names, text } from '../errors/check.js'
import { invalid, KvTideError } from '../errors/errors.js'

/** Texts that may be generated: the values of a JSON schema, the matches of a regular expression, or the texts of a Lark grammar. */
export type Grammar =
  | {
      /**
       * A JSON schema. `true` or `{}` is any value, `'object'` any object. Properties are written in the order of the schema. A keyword that is not
       * supported is refused, never ignored.
       */
      readonly json: object | boolean | 'object'
    }
  | {
      /** A regular expression that the whole text matches, in the syntax of Rust's `regex`: no look-around, no back-references. */
      readonly regex: string
    }
  | {
      /** A context-free grammar in the syntax of Lark, with the extensions of llguidance. */
      readonly lark: string
    }

/** @internal A grammar as the addon reads it. */
export interface GrammarText {
  readonly kind: 'json' | 'regex' | 'lark'
  readonly text: string
}

/** @internal A compiled grammar, and the tokens that end a text where the grammar allows it. */
export interface Constraint {
  readonly grammar: NativeGrammar
  readonly ends: ReadonlySet<number>
}

const KINDS: Names<{ json: unknown; regex: string; lark: string }> = { json: 0, regex: 0, lark: 0 }

/** @internal Reads a grammar. A schema becomes its JSON text. */
export function readGrammar(argument: string, value: unknown): GrammarText {
  const { json, regex, lark } = known<{ json: unknown; regex: string; lark: string }>(argument, value, KINDS)
  const given = [json, regex, lark].filter(option => option !== undefined)
  if (given.length !== 1) throw invalid(argument, value, 'exactly one of { json }, { regex } and { lark }')
  if (regex !== undefined) return { kind: 'regex', text: text(`${argument}.regex`, regex) }
  if (lark !== undefined) return { kind: 'lark', text: text(`${argument}.lark`, lark) }
  return { kind: 'json', text: schemaText(`${argument}.json`, json) }
}

function schemaText(argument: string, schema: unknown): string {
  if (schema === 'object') return '{"type":"object"}'
  if (typeof schema === 'boolean') return String(schema)
  if (!isObject(schema) || isArray(schema) || arrayKind(schema) !== undefined)
    throw invalid(argument, schema, "a JSON schema: an object, true, false or 'object'")
  let json: string | undefined
  try {
    json = JSON.stringify(schema) as string | undefined
  } catch (cause) {
    // A cycle, a BigInt, or a schema so deep that JavaScript's stack ends.
    const reason = `it is no JSON: ${cause instanceof Error ? cause.message.split('\n', 1)[0] : 'toJSON failed'}`
    throw new KvTideError('INVALID_GRAMMAR', `the grammar cannot be used: ${reason}`, { reason, place: '#' }, { cause })
  }
  if (json === undefined) throw invalid(argument, schema, 'a JSON schema')
  return json
}
