// Reads from a model's `config.json` which of its layers have a window. A window is `null` for a layer without one.
import { isKvTideError } from '../errors/errors.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import { type ConfigFields, configSizes, LAYERS_MAX, textFields } from './config.js'
import { sizeIn } from './context.js'
import { groupsWithRows } from './state-tensors.js'

type Windows = (number | null)[]

/**
 * @internal The window of each layer that a `config.json` declares. Families that kvtide does not know are read by the fields that mean the same in all of them.
 * If these do not tell, the windows are unknown: returns `undefined`, or throws if the caller passed this config and it has a window, or none of the other
 * fields that are used.
 */
export function configWindows(config: string, isGiven: boolean): Windows | undefined {
  try {
    return windowsOf(config)
  } catch (error) {
    const isUnknown = isKvTideError(error) && error.code === 'UNSUPPORTED_MODEL'
    if (!isUnknown) {
      if (isGiven) throw error
      return undefined
    }
    const fields = textFields(config)
    const windows = typedWindows(fields) ?? impliedWindows(fields)
    if (windows !== undefined || !isGiven) return windows
    const { sliding_window, layer_types, use_sliding_window } = fields
    const hasWindow = (sliding_window ?? layer_types ?? null) !== null && use_sliding_window !== false
    const { numKvHeads, headDim, contextLength } = configSizes(config)
    if (hasWindow || (numKvHeads ?? headDim ?? contextLength) === undefined) throw error
    return undefined
  }
}

function windowsOf(config: string): Windows {
  // Makes the smallest cache of the model: the cache knows all families, and which of their layers slide.
  using cache = new PagedKvCache({ model: config, blockSize: 1, capacity: 1 })
  const windows: Windows = Array.from({ length: cache.numLayers }, () => null)
  for (const { layers, window } of groupsWithRows(cache.groups))
    for (const layer of layers) windows[layer] = window ?? null
  return windows
}

/** The types of layers without a window in every family: those that see all tokens, and those that keep a state. */
const UNLIMITED: ReadonlySet<unknown> = new Set(['full_attention', 'conv', 'linear_attention', 'mamba', 'mamba2'])

/** The windows by `layer_types`, if the config has only types that mean the same in every family. */
function typedWindows({ sliding_window, layer_types }: ConfigFields): Windows | undefined {
  if (!Array.isArray(layer_types) || layer_types.length === 0) return undefined
  const window = sizeIn(sliding_window)
  const of = layer_types.map(type => {
    if (UNLIMITED.has(type) || (type === 'attention' && window === undefined)) return null
    return type === 'sliding_attention' ? window : undefined
  })
  return of.includes(undefined) ? undefined : (of as Windows)
}

/** The windows of a config without `layer_types`, as older versions of transformers wrote it. */
function impliedWindows(fields: ConfigFields): Windows | undefined {
  const { layer_types, use_sliding_window } = fields
  const [window, count] = [sizeIn(fields.sliding_window), sizeIn(fields.num_hidden_layers)]
  const slides = slidingLayers(fields)
  const isTyped = (layer_types ?? null) !== null
  if (isTyped || use_sliding_window === false || window === undefined || count === undefined || count > LAYERS_MAX)
    return undefined
  return slides && Array.from({ length: count }, (_, layer) => (slides(layer) ? window : null))
}

/** Tells which layers slide, if fields say so. */
function slidingLayers(fields: ConfigFields): ((layer: number) => boolean) | undefined {
  const { sliding_window_pattern, use_sliding_window, max_window_layers } = fields
  const [period, first] = [sizeIn(sliding_window_pattern), Number(max_window_layers)]
  if (period !== undefined) return layer => (layer + 1) % period !== 0
  return use_sliding_window === true && first >= 0 ? layer => layer >= first : undefined
}
