import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { invalid, isKvTideError } from '../border/errors.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'

/** @internal The `config.json` of a model: beside it, or one folder up; `undefined` where there is none. */
export function configBeside(model: string): string | undefined {
  const folder = dirname(model)
  return [folder, dirname(folder)].map(place => join(place, 'config.json')).find(existsSync)
}

/** @internal A file's text, or a refusal that names the file. */
export function readText(argument: string, file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw invalid(argument, file, `a file that can be read (${error instanceof Error ? error.message : String(error)})`)
  }
}

interface ConfigFields {
  readonly head_dim?: unknown
  readonly hidden_size?: unknown
  readonly num_attention_heads?: unknown
  readonly num_key_value_heads?: unknown
  readonly sliding_window?: unknown
  readonly layer_types?: unknown
}

function textFields(config: string): ConfigFields {
  const fields = JSON.parse(config) as ConfigFields & { readonly text_config?: ConfigFields }
  return fields.text_config ?? fields
}

/** @internal The sizes of K and V as a `config.json` says them, of whatever family. */
export function configSizes(config: string): { readonly numKvHeads: number | undefined; readonly headDim: number | undefined } {
  const { head_dim, hidden_size, num_attention_heads, num_key_value_heads } = textFields(config)
  return { numKvHeads: sizeIn(num_key_value_heads ?? num_attention_heads), headDim: sizeIn(head_dim ?? Number(hidden_size) / Number(num_attention_heads)) }
}

function sizeIn(value: unknown): number | undefined {
  return Number.isInteger(value) && (value as number) > 0 ? (value as number) : undefined
}

/**
 * @internal The window of each layer as a `config.json` declares it, `null` where a layer has none. Of a family that is not known nobody
 * can say: `undefined`, or a refusal if the caller's own config has windows, or says nothing else either.
 */
export function configWindows(config: string, isGiven: boolean): (number | null)[] | undefined {
  try {
    return windowsOf(config)
  } catch (error) {
    if (!isGiven) return undefined
    if (!isKvTideError(error) || error.code !== 'UNSUPPORTED_MODEL') throw error
    const { sliding_window, layer_types } = textFields(config)
    const { numKvHeads, headDim } = configSizes(config)
    if ((sliding_window ?? layer_types ?? null) !== null || (numKvHeads ?? headDim) === undefined) throw error
    return undefined
  }
}

function windowsOf(config: string): (number | null)[] {
  // The smallest cache of the model: it knows all families, and says which layers slide.
  using cache = new PagedKvCache({ model: config, blockSize: 1, capacity: 1 })
  const windows: (number | null)[] = Array.from({ length: cache.numLayers }, () => null)
  for (const { layers, window } of cache.groups) for (const layer of layers) windows[layer] = window ?? null
  return windows
}
