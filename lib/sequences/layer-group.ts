// Groups of layers, and the form of a cache, which its block keys depend on.
import type { NativePagedKvCache } from '#binding'

import type { DType } from '../border/host-array.js'
import { binding } from '../loading/binding.js'
import {
  type ModelDescription,
  type ModelLayer,
  readModel,
  type StateLayer,
  type StateTensor,
} from './model-description.js'
import type { ModelCacheOptions } from './options.js'

/** A state, and its place in a slot of its group. */
export interface StatePlace extends StateTensor {
  /** The layer that keeps it. */
  readonly layer: number
  /** Its first byte in the slot, a multiple of 64. */
  readonly offset: number
  /** Its number of bytes. */
  readonly bytes: number
}

/**
 * Layers that keep the same tokens in the same sizes on the same device. They share block tables and one pool. All layers with states form one more
 * group on each device, behind the others: a slot of that group holds all states of one sequence.
 */
export interface LayerGroup {
  /** `full` layers keep every token, `sliding` layers keep a window, `state` layers keep states. */
  readonly kind: 'full' | 'sliding' | 'state'
  /** The number of positions that a query sees, including its own. */
  readonly window?: number
  /** Tokens at the start that are visible in addition to the window. */
  readonly sinks?: number
  /** The layers with keys and values of their own, or with states, ascending. A layer with both is in two groups. */
  readonly layers: readonly number[]
  /** Heads of K and V; 0 in a group of states. */
  readonly numKvHeads: number
  /** Elements per head of K; 0 in a group of states. */
  readonly headDim: number
  /** Elements per head of V; 0 in a group of states. */
  readonly valueHeadDim: number
  /** The states of a group of states, in the order of their bytes. */
  readonly tensors?: readonly StatePlace[]
  /** The bytes of a slot in a group of states. */
  readonly bytes?: number
  /** The device of the pool. */
  readonly device: string
}

/**
 * Everything that the keys of a cache's blocks depend on besides `prefixKey`, as plain data that can be sent to another process as JSON. Use it as options
 * of a {@link PrefixNamer} that computes the same keys, or of another cache with the same keys.
 */
export type CacheForm = Required<
  Pick<
    ModelCacheOptions,
    'blockSize' | 'dtype' | 'keyFormat' | 'valueFormat' | 'hadamard' | 'valueHadamard' | 'namespace'
  >
> & {
  /** The layers that have keys and values of their own, or states. */
  readonly model: ModelDescription
  /** The device of each of these layers, if they are on several. */
  readonly device?: readonly string[]
}

type NativeGroups = ReturnType<NativePagedKvCache['groups']>

/** @internal The groups of a cache. */
export function readGroups(groups: NativeGroups, devices: readonly string[]): readonly LayerGroup[] {
  const shown = groups.map(({ window, sinks, layers, device, tensors, bytes, ...sizes }): LayerGroup => {
    const kept = tensors === undefined ? keptBy(window, sinks) : { kind: 'state' as const }
    const states = tensors?.map(({ dtype, shape, ...rest }) =>
      Object.freeze({ ...rest, shape: Object.freeze(shape), dtype: dtype as StateTensor['dtype'] }),
    )
    return Object.freeze({
      ...kept,
      layers: Object.freeze(layers),
      ...sizes,
      ...(states !== undefined && { tensors: Object.freeze(states), bytes: bytes ?? 0 }),
      device: devices[device] ?? 'cpu',
    })
  })
  return Object.freeze(shown)
}

const keptBy = (window: number | undefined, sinks: number | undefined) =>
  window === undefined ? { kind: 'full' as const } : { kind: 'sliding' as const, window, sinks: sinks ?? 0 }

/** @internal The groups of a model's layers, without a cache. Convolutions of a `config.json` are in `dtype`. */
export function groupsOfModel(model: unknown, dtype: DType): readonly LayerGroup[] {
  return readGroups(binding.modelGroups(readModel(model), dtype), ['cpu'])
}

/** @internal The form of a cache: its pages, and the layers of its groups. */
export function formOf(pages: Omit<CacheForm, 'model' | 'device'>, groups: readonly LayerGroup[]): CacheForm {
  const owners = new Map<number, { layer: ModelLayer | StateLayer; device: string }>()
  for (const { layers, kind, window, sinks, numKvHeads, headDim, valueHeadDim, tensors, device } of groups) {
    const sizes = { numKvHeads, headDim, valueHeadDim }
    for (const layer of layers) {
      const states = tensors?.filter(of => of.layer === layer).map(({ name, shape, dtype }) => ({ name, shape, dtype }))
      const attention = owners.get(layer)?.layer
      owners.set(layer, {
        layer: Object.freeze(
          kind === 'state'
            ? { ...(attention ?? { kind }), tensors: Object.freeze(states ?? []) }
            : { kind, ...(window !== undefined && { window, sinks: sinks ?? 0 }), ...sizes },
        ) as ModelLayer | StateLayer,
        device,
      })
    }
  }
  const ordered = [...owners].sort(([one], [other]) => one - other).map(([, owner]) => owner)
  const layers = ordered.map(({ layer }) => layer)
  const devices = ordered.map(({ device }) => device)
  const isSplit = new Set(devices).size > 1
  return Object.freeze({
    ...pages,
    model: Object.freeze({ layers: Object.freeze(layers) }),
    ...(isSplit && { device: Object.freeze(devices) }),
  })
}
