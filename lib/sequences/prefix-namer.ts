import type { NativePrefixNamer } from '#binding'

import { isArray, known } from '../border/check.js'
import { readFullName } from '../border/device.js'
import { INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import { readModel } from './model-description.js'
import { type Given, type ModelCacheOptions, OPTION_NAMES, type UniformCacheOptions, readDevices, readModelPages, readPages } from './options.js'
import { type PromptOptions, readKeys, type TokenIds } from './prompt.js'

/** What a {@link PrefixNamer} is made with: the options of a cache, or those of them that names depend on. The others are not looked at. */
export type PrefixNamerOptions =
  | (Pick<UniformCacheOptions, 'numLayers' | 'numKvHeads' | 'headDim'> & Partial<UniformCacheOptions>)
  | (Pick<ModelCacheOptions, 'model'> & Partial<ModelCacheOptions>)

/**
 * Names the blocks of prompts as a cache does, and holds no memory for pages: for a router that sends prompts to where their blocks are,
 * which it knows from `events` and `indexedKeys` of the caches.
 *
 * Names are alike where all of this is:
 *
 * - `prefixKey`; where there is none, the process;
 * - `namespace`;
 * - `blockSize`, `dtype`, `keyFormat`, `valueFormat` and `hadamard`;
 * - of layers that are alike, `numLayers`, `numKvHeads`, `headDim` and `valueHeadDim`; of a model, the same numbers of
 *   each of its groups in their order ({@link PagedKvCache.groups}): layers with the same window, of the same sizes, on the same device
 *   are one;
 * - the salt, the extras and the tokens of a prompt.
 *
 * Nothing else is in a name: neither capacities and limits, nor eviction and events, nor a device or a window by itself. A cache of
 * layers that are alike names as one of a model whose only group is the same. What stands for the model itself is the namespace: two models of the
 * same sizes want one each.
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
  /** Tokens of a block. */
  declare readonly blockSize: number

  constructor(options: PrefixNamerOptions) {
    const given = known<Given>('options', options, OPTION_NAMES)
    const { model } = given
    const { native, blockSize } = model === undefined ? ofPages(given) : ofModel(given, model)
    super(INTERNAL, native, PrefixNamer)
    settle(this, { blockSize })
  }

  /** The names of a prompt's whole blocks, as the cache's own `keys` has them. O(tokens). */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(nativeThis<NativePrefixNamer>(this, PrefixNamer), tokens, options)
  }
}

/** What a cache is made with beside what is in names. */
const REST = { events: 0, eviction: undefined, memoryLimitBytes: undefined }

function ofPages(given: Given) {
  const pages = readPages(given)
  readPlace(given.device)
  const form = { ...pages, ...REST, capacity: 0, window: undefined, sinks: 0, device: 'cpu' }
  return { native: binding.NativePrefixNamer.ofPages(form), blockSize: pages.blockSize }
}

function ofModel(given: Given, model: unknown) {
  const pages = readModelPages(given)
  const { device } = given
  const { deviceOfLayers } = readDevices(device, isArray(device) ? readFullName : readPlace)
  const room = { blocks: undefined, blocksEach: 0, memoryBytes: 0, maxSequences: 0, maxPrefillTokens: undefined }
  const form = { model: readModel(model), ...pages, ...REST, ...room, devices: ['cpu'], deviceOfLayers }
  return { native: binding.NativePrefixNamer.ofModel(form), blockSize: pages.blockSize }
}

/** One device for all, which is in no name: whichever it is. */
function readPlace(device: unknown): string {
  return device === 'auto' ? device : readFullName(device)
}
