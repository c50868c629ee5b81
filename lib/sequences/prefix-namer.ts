// Block keys without a cache, for routers.
import type { NativePrefixNamer } from '#binding'

import { isArray, known } from '../errors/check.js'
import { INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { readFullName } from '../border/process.js'
import { binding } from '../loading/binding.js'
import { readModel } from './model-description.js'
import {
  type GivenOptions,
  type ModelCacheOptions,
  OPTION_NAMES,
  readDevices,
  readModelPages,
  readPages,
  type UniformCacheOptions,
} from './options.js'
import { type PromptOptions, readKeys } from './prompt.js'
import type { TokenIds } from './tokens.js'

/** Options of a {@link PrefixNamer}: those of a cache, or only the ones that keys depend on. */
export type PrefixNamerOptions =
  | (Pick<UniformCacheOptions, 'numLayers' | 'numKvHeads' | 'headDim'> & Partial<UniformCacheOptions>)
  | (Pick<ModelCacheOptions, 'model'> & Partial<ModelCacheOptions>)

/**
 * Computes the keys of a prompt's blocks as a cache does, without memory for pages. A router uses it to send prompts to the cache that has
 * their blocks; it learns the caches' blocks from their `events` and `indexedKeys`.
 *
 * Two keys are equal if all of this is equal:
 *
 * - `prefixKey`, or the process if none is given;
 * - `namespace`;
 * - `blockSize`, `dtype`, `keyFormat`, `valueFormat`, `hadamard` and `valueHadamard`;
 * - `numLayers`, `numKvHeads`, `headDim` and `valueHeadDim`; for a model, those of each group in order ({@link PagedKvCache.groups});
 *   layers with the same window and sizes on the same device are one group;
 * - the salt, the extras and the tokens of a prompt.
 *
 * Keys depend on nothing else: not on capacity or limits, eviction or events, nor on the device or window themselves. A cache of uniform
 * layers computes the same keys as one of a model with that single group. Give models of the same sizes different namespaces, since
 * nothing else distinguishes them.
 *
 * @example
 * ```ts
 * import { PagedKvCache, PrefixNamer } from 'kvtide'
 *
 * const options = { numLayers: 2, numKvHeads: 1, headDim: 4, blockSize: 4, namespace: 'my-model', prefixKey: new Uint8Array(32).fill(7) }
 * using namer = new PrefixNamer(options)
 * using cache = new PagedKvCache({ ...options, capacity: 64 }) // in another process
 * const [tokens, tenant] = [[1, 15, 8, 42, 7], { salt: 'tenant 1' }]
 * console.log(namer.keys(tokens, tenant)[0] === cache.keys(tokens, tenant)[0]) // true
 * ```
 */
export class PrefixNamer extends Owner {
  /** Tokens per block. */
  declare readonly blockSize: number

  constructor(options: PrefixNamerOptions) {
    const given = known<GivenOptions>('options', options, OPTION_NAMES)
    const { model } = given
    const { native, blockSize } = model === undefined ? ofPages(given) : ofModel(given, model)
    super(INTERNAL, native, PrefixNamer)
    settle(this, { blockSize })
  }

  /** Returns the keys of a prompt's full blocks; they equal those of the cache's `keys`. O(tokens). */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(nativeThis<NativePrefixNamer>(this, PrefixNamer), tokens, options)
  }
}

/** Options of a cache that keys do not depend on. */
const REST = { events: 0, eviction: undefined, memoryLimitBytes: undefined }

function ofPages(given: GivenOptions) {
  const pages = readPages(given)
  readPlace(given.device)
  const form = { ...pages, ...REST, capacity: 0, window: undefined, sinks: 0, device: 'cpu' }
  return { native: binding.NativePrefixNamer.ofPages(form), blockSize: pages.blockSize }
}

function ofModel(given: GivenOptions, model: unknown) {
  const pages = readModelPages(given)
  const { device } = given
  const { deviceOfLayers } = readDevices(device, isArray(device) ? readFullName : readPlace)
  const room = { blocks: undefined, blocksEach: 0, memoryBytes: 0, maxSequences: 0, maxPrefillTokens: undefined }
  const form = { model: readModel(model), ...pages, ...REST, ...room, devices: ['cpu'], deviceOfLayers }
  return { native: binding.NativePrefixNamer.ofModel(form), blockSize: pages.blockSize }
}

/** Checks the device of all layers. Keys do not depend on it, so `auto` is accepted. */
function readPlace(device: unknown): string {
  return device === 'auto' ? device : readFullName(device)
}
