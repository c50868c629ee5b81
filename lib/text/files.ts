// The files beside a model that say how it reads and writes text. Each is looked up in the model's folder, then one folder up: exporters put graphs into
// `onnx/`.
//
//     tokenizer.json                       the tokenizer; required
//     tokenizer_config.json                the names of special tokens, chat templates
//     chat_template.jinja, .json           the chat template, in place of the one in tokenizer_config.json
//     additional_chat_templates/*.jinja    more of them, by name
//     special_tokens_map.json, config.json names and ids of special tokens, where tokenizer_config.json has none
//     generation_config.json               sampling, ids that end an answer
//     genai_config.json                    the same, of onnxruntime-genai
import { readdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { arrayKind, isObject } from '../errors/check.js'
import { KvTideError, messageOf } from '../errors/errors.js'
import { readRegular } from '../loading/regular-file.js'
import { parseConfig } from '../onnx/config.js'

/** @internal The content of a JSON file, an object. */
export type Fields = Readonly<Record<string, unknown>>

/** @internal What the files beside a model say. */
export interface TextFiles {
  readonly tokenizerPath: string
  readonly tokenizer: Fields
  readonly tokenizerConfig: Fields
  readonly generationConfig: Fields
  readonly genaiConfig: Fields
  readonly config: Fields
  readonly specialTokens: Fields
  /** The chat templates by name; that of the model itself is `default`. */
  readonly templates: ReadonlyMap<string, string>
}

/** The maximum size of a tokenizer and of another file. */
const TOKENIZER_BYTES = 512 * 2 ** 20
const CONFIG_BYTES = 16 * 2 ** 20

/** @internal True if a value is an object with fields: no array, and no typed array. */
export function isFields(value: unknown): value is Fields {
  return isObject(value) && !Array.isArray(value) && arrayKind(value) === undefined
}

/** @internal Reads the files in `folder` and in the folder above it. */
export function readTextFiles(folder: string): TextFiles {
  const folders = [folder, dirname(folder)]
  const tokenizerPath = found(folders, 'tokenizer.json')
  if (tokenizerPath === undefined) throw withoutTokenizer(folder)
  const tokenizer = readJson(tokenizerPath, TOKENIZER_BYTES)
  if (!isFields(tokenizer) || !isFields(tokenizer['model']))
    throw invalidTokenizer(tokenizerPath, 'it is not a tokenizer: it has no field model')
  const tokenizerConfig = readFields(folders, 'tokenizer_config.json')
  return {
    tokenizerPath,
    tokenizer,
    tokenizerConfig,
    generationConfig: readFields(folders, 'generation_config.json'),
    genaiConfig: readFields(folders, 'genai_config.json'),
    config: readFields(folders, 'config.json'),
    specialTokens: readFields(folders, 'special_tokens_map.json'),
    templates: templatesOf(folders, tokenizerConfig),
  }
}

function templatesOf(folders: readonly string[], { chat_template }: Fields): Map<string, string> {
  const templates = new Map<string, string>()
  const add = (name: unknown, text: unknown): void => {
    if (typeof name === 'string' && typeof text === 'string') templates.set(name, text)
  }
  if (Array.isArray(chat_template)) {
    for (const entry of chat_template.filter(isFields)) add(entry['name'], entry['template'])
  } else if (isFields(chat_template)) {
    for (const [name, text] of Object.entries(chat_template)) add(name, text)
  } else add('default', chat_template)
  add('default', readFields(folders, 'chat_template.json')['chat_template'])
  const more = folders.map(place => join(place, 'additional_chat_templates')).find(isFolder)
  for (const file of more === undefined ? [] : readdirSync(more))
    if (file.endsWith('.jinja')) add(file.slice(0, -'.jinja'.length), readTextFile(join(more as string, file)))
  const own = found(folders, 'chat_template.jinja')
  if (own !== undefined) add('default', readTextFile(own))
  return templates
}

function isFolder(place: string): boolean {
  return statSync(place, { throwIfNoEntry: false })?.isDirectory() === true
}

/** The path of a file in the first of the folders that has it. */
function found(folders: readonly string[], name: string): string | undefined {
  return folders
    .map(place => join(place, name))
    .find(file => statSync(file, { throwIfNoEntry: false })?.isFile() === true)
}

function readFields(folders: readonly string[], name: string): Fields {
  const file = found(folders, name)
  const content = file === undefined ? {} : readJson(file, CONFIG_BYTES)
  return isFields(content) ? content : {}
}

function readJson(file: string, most: number): unknown {
  const text = readTextFile(file, most)
  try {
    return most === CONFIG_BYTES ? parseConfig(text) : JSON.parse(text)
  } catch (cause) {
    throw invalidTokenizer(file, `it is not JSON: ${messageOf(cause)}`, cause)
  }
}

function readTextFile(file: string, most: number = CONFIG_BYTES): string {
  let read: ReturnType<typeof readRegular>
  try {
    read = readRegular(file, most)
  } catch (cause) {
    const reason = messageOf(cause)
    const details = { operation: 'read', path: file, reason }
    throw new KvTideError('IO_ERROR', `cannot read ${file}: ${reason}`, details, { cause })
  }
  if (read.bytes > most) throw invalidTokenizer(file, `it has ${read.bytes} bytes, expected at most ${most}`)
  return read.head.toString('utf8')
}

function withoutTokenizer(folder: string): KvTideError<'INVALID_TOKENIZER'> {
  return invalidTokenizer(
    join(folder, 'tokenizer.json'),
    'it is missing: copy tokenizer.json, tokenizer_config.json and chat_template.jinja from the model on the Hub into this folder',
  )
}

/** @internal The error of a tokenizer, or of a config beside it, that cannot be used. */
export function invalidTokenizer(file: string, reason: string, cause?: unknown): KvTideError<'INVALID_TOKENIZER'> {
  return new KvTideError(
    'INVALID_TOKENIZER',
    `${file} cannot be used: ${reason}`,
    { file, reason },
    cause === undefined ? undefined : { cause },
  )
}
