// Reads a model's `config.json` and `genai_config.json`: the sizes of keys and values, the windows, the context. Fields that are missing are `undefined`.
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { invalid, messageOf } from '../errors/errors.js'
import { readRegular } from '../loading/regular-file.js'
import { type ContextFields, contextOf, sizeIn } from './context.js'

/** The config that onnxruntime-genai's model builder writes. */
const GENAI = 'genai_config.json'

/** @internal The `config.json` of a model: in its folder, or one folder up; `undefined` if there is none. */
export function configBeside(model: string, name: string = 'config.json'): string | undefined {
  const folder = dirname(model)
  return [folder, dirname(folder)].map(place => join(place, name)).find(existsSync)
}

/** The values of a config that are used here. */
export interface ConfigSizes {
  /** Heads of keys and values in each layer, and elements of a head. */
  readonly numKvHeads?: number | undefined
  readonly headDim?: number | undefined
  /** The maximum number of tokens that the model sees at once. */
  readonly contextLength?: number | undefined
}

interface GenaiDecoder {
  readonly filename?: unknown
  readonly head_size?: unknown
  readonly num_key_value_heads?: unknown
  readonly num_hidden_layers?: unknown
  readonly sliding_window?: { readonly window_size?: unknown; readonly layers?: unknown } | null
}

interface GenaiConfig {
  readonly model?: {
    readonly context_length?: unknown
    readonly eos_token_id?: unknown
    readonly decoder?: GenaiDecoder
    readonly embedding?: { readonly filename?: unknown }
  }
}

/** @internal Reads the `genai_config.json` of a model, which onnxruntime-genai's model builder writes: in its folder, or one folder up. Invalid JSON is ignored. */
export function genaiSizes(
  model: string,
): ConfigSizes & { readonly windows?: (number | null)[] | undefined; readonly windowsFile?: string | undefined } {
  const { file, config } = readGenai(model) ?? {}
  if (config === undefined) return {}
  const { context_length, decoder } = config
  const windows = genaiWindows(decoder)
  return {
    numKvHeads: sizeIn(decoder?.num_key_value_heads),
    headDim: sizeIn(decoder?.head_size),
    contextLength: sizeIn(context_length),
    windows,
    windowsFile: windows === undefined ? undefined : file,
  }
}

/** @internal The file of the embeddings that the `genai_config.json` of a model names. */
export function genaiEmbedding(model: string): string | undefined {
  const { file = '', config } = readGenai(model) ?? {}
  const filename = config?.embedding?.filename
  return typeof filename === 'string' ? join(dirname(file), filename) : undefined
}

/** @internal The ids that end an answer, as the `genai_config.json` of a model declares them. */
export function genaiEnd(model: string): unknown {
  return readGenai(model)?.config.eos_token_id
}

/** @internal The file of the decoder that the `genai_config.json` in a folder names. */
export function genaiDecoder(folder: string): string | undefined {
  const filename = genaiIn(join(folder, GENAI))?.decoder?.filename
  return typeof filename === 'string' && filename !== '' ? join(folder, filename) : undefined
}

/** The `genai_config.json` of a model: its path, and what it says of the model. */
function readGenai(
  model: string,
): { readonly file: string; readonly config: NonNullable<GenaiConfig['model']> } | undefined {
  const file = configBeside(model, GENAI)
  const config = file === undefined ? undefined : genaiIn(file)
  return file === undefined || config === undefined ? undefined : { file, config }
}

/** The model's part of a `genai_config.json`; `undefined` if it cannot be read. */
function genaiIn(file: string): NonNullable<GenaiConfig['model']> | undefined {
  try {
    return (parseConfig(readText(GENAI, file)) as GenaiConfig).model ?? {}
  } catch {
    return undefined
  }
}

/** @internal More layers than any model has. */
export const LAYERS_MAX = 4096

/** The windows of the layers that a `genai_config.json` lists. An empty list says nothing of any layer. */
function genaiWindows(decoder: GenaiDecoder | undefined): (number | null)[] | undefined {
  const { window_size, layers } = decoder?.sliding_window ?? {}
  const [window, count] = [sizeIn(window_size), sizeIn(decoder?.num_hidden_layers)]
  if (
    window === undefined ||
    count === undefined ||
    count > LAYERS_MAX ||
    !Array.isArray(layers) ||
    layers.length === 0
  )
    return undefined
  return Array.from({ length: count }, (_, layer) => (layers.includes(layer) ? window : null))
}

/** The maximum size of a config. Nothing of a larger file is read. */
const TEXT_BYTES = 16 * 2 ** 20

/** @internal Reads a file's text. An error names the file. */
export function readText(argument: string, file: string): string {
  try {
    const { head, bytes } = readRegular(file, TEXT_BYTES)
    if (bytes > TEXT_BYTES) throw new Error(`it is ${bytes} bytes long, expected at most ${TEXT_BYTES}`)
    return head.toString('utf8')
  } catch (error) {
    throw invalid(argument, file, `a file that can be read (${messageOf(error)})`)
  }
}

/** @internal Parses a `config.json`. Python writes `Infinity` and `NaN`, which JSON lacks: they become `null`. */
export function parseConfig(text: string): unknown {
  const words = /"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g
  return JSON.parse(text.replaceAll(words, word => (word.startsWith('"') ? word : 'null')))
}

/** @internal The fields of a config that are used here. */
export interface ConfigFields extends ContextFields {
  readonly head_dim?: unknown
  readonly hidden_size?: unknown
  readonly num_attention_heads?: unknown
  readonly num_key_value_heads?: unknown
  readonly num_hidden_layers?: unknown
  readonly sliding_window?: unknown
  readonly layer_types?: unknown
  readonly use_sliding_window?: unknown
  readonly max_window_layers?: unknown
  readonly sliding_window_pattern?: unknown
}

/** @internal The fields of the text model that a config describes. */
export function textFields(config: string): ConfigFields {
  const fields = parseConfig(config) as ConfigFields & { readonly text_config?: ConfigFields }
  return fields.text_config ?? fields
}

/** @internal The sizes of K and V and the context that a `config.json` declares, for any family. */
export function configSizes(config: string): ConfigSizes {
  const fields = textFields(config)
  const { head_dim, hidden_size, num_attention_heads, num_key_value_heads } = fields
  return {
    numKvHeads: sizeIn(num_key_value_heads ?? num_attention_heads),
    headDim: sizeIn(head_dim ?? Number(hidden_size) / Number(num_attention_heads)),
    contextLength: contextOf(fields),
  }
}
