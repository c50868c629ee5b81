// Groups of layers, and the form of a cache, which its block keys depend on.
import type { NativePagedKvCache } from '#binding'

import type { ModelDescription, ModelLayer } from './model-description.js'
import type { ModelCacheOptions } from './options.js'

/** Layers that keep the same tokens in the same sizes on the same device. They share block tables and one pool. */
export interface LayerGroup {
  /** `full` layers keep every token, `sliding` layers keep a window. */
  readonly kind: 'full' | 'sliding'
  /** The number of positions that a query sees, including its own. */
  readonly window?: number
  /** Tokens at the start that are visible in addition to the window. */
  readonly sinks?: number
  /** The layers with keys and values of their own, ascending. */
  readonly layers: readonly number[]
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements per head of K. */
  readonly headDim: number
  /** Elements per head of V. */
  readonly valueHeadDim: number
  /** The device of the pool. */
  readonly device: string
}

/**
 * Everything that the keys of a cache's blocks depend on besides `prefixKey`, as plain data that can be sent to another process as JSON. Use it as options
 * of a {@link PrefixNamer} that computes the same keys, or of another cache with the same keys.
 */
export type CacheForm = Required<
  Pick<ModelCacheOptions, 'blockSize' | 'dtype' | 'keyFormat' | 'valueFormat' | 'hadamard' | 'namespace'>
> & {
  /** The layers that have keys and values of their own. */
  readonly model: ModelDescription
  /** The device of each of these layers, if they are on several. */
  readonly device?: readonly string[]
}

/** @internal The groups of a cache. */
export function readGroups(
  groups: ReturnType<NativePagedKvCache['groups']>,
  devices: readonly string[],
): readonly LayerGroup[] {
  const shown = groups.map(({ window, sinks, layers, device, ...sizes }): LayerGroup => {
    const slides =
      window === undefined ? { kind: 'full' as const } : { kind: 'sliding' as const, window, sinks: sinks ?? 0 }
    return Object.freeze({ ...slides, layers: Object.freeze(layers), ...sizes, device: devices[device] ?? 'cpu' })
  })
  return Object.freeze(shown)
}

/** @internal The form of a cache: its pages, and the layers of its groups. */
export function formOf(pages: Omit<CacheForm, 'model' | 'device'>, groups: readonly LayerGroup[]): CacheForm {
  const owners = groups
    .flatMap(group => group.layers.map(layer => ({ layer, group })))
    .sort((one, other) => one.layer - other.layer)
  const layers = owners.map(({ group: { kind, window, sinks, numKvHeads, headDim, valueHeadDim } }): ModelLayer => {
    const sizes = { numKvHeads, headDim, valueHeadDim }
    return Object.freeze(window === undefined ? { kind, ...sizes } : { kind, window, sinks: sinks ?? 0, ...sizes })
  })
  const devices = owners.map(({ group }) => group.device)
  const isSplit = new Set(devices).size > 1
  return Object.freeze({
    ...pages,
    model: Object.freeze({ layers: Object.freeze(layers) }),
    ...(isSplit && { device: Object.freeze(devices) }),
  })
}
