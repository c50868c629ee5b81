import type { NativePrefixNamer } from '#binding'

import { binding } from './binding.js'
import { isArray, known, optional, type Names } from './check.js'
import { readFullName } from './device.js'
import { checkDType } from './dtype.js'
import { invalid } from './errors.js'
import { readModel } from './model-description.js'
import { MODEL_NAMES, readDevices, readModelNaming, type PagedModelCacheOptions } from './model-options.js'
import { endThis, INTERNAL, nativeThis, Owner, settle } from './owner.js'
import { PAGED_NAMES, readPages, type PagedKvCacheOptions } from './paged-options.js'
import { readKeys } from './prompt-questions.js'
import type { PromptOptions, TokenIds } from './prompt.js'

/** What a {@link PrefixNamer} is made with: the options of a cache, or those of them that names depend on. The others are not looked at. */
export type PrefixNamerOptions =
  | (Pick<PagedKvCacheOptions, 'numLayers' | 'numKvHeads' | 'headDim'> & Partial<PagedKvCacheOptions>)
  | (Pick<PagedModelCacheOptions, 'model'> & Partial<PagedModelCacheOptions>)

/**
 * Names the blocks of prompts as a cache does, and holds no memory for pages: for a router that sends prompts to where their blocks are,
 * which it knows from `events` and `indexedKeys` of the caches.
 *
 * Names are alike where all of this is:
 *
 * - `prefixKey`; where there is none, the process;
 * - `namespace`;
 * - `blockSize`, `dtype`, `keyFormat`, `valueFormat` and `hadamard`;
 * - of a {@link PagedKvCache}, `numLayers`, `numKvHeads`, `headDim` and `valueHeadDim`; of a {@link ModelCache}, the same numbers of
 *   each of its groups in their order ({@link ModelCache.groups}): layers with the same window, of the same sizes, on the same device
 *   are one;
 * - the salt, the extras and the tokens of a prompt.
 *
 * Nothing else is in a name: neither capacities and limits, nor eviction and events, nor a device or a window by itself. A cache of one
 * kind names as one of the other whose only group is the same. What stands for the model itself is the namespace: two models of the
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
    const given = known<PagedKvCacheOptions & PagedModelCacheOptions>('options', options, NAMES)
    const { model } = given
    const { native, blockSize } = model === undefined ? ofPages(given) : ofModel(given, model)
    super(INTERNAL, native, PrefixNamer)
    settle(this, { blockSize })
  }

  /** The names of a prompt's whole blocks, as the cache's own `keys` has them. O(tokens). */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(nativeThis<NativePrefixNamer>(this, PrefixNamer), tokens, options)
  }

  /** Ends it. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, PrefixNamer)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, PrefixNamer)
  }
}

type Given<Options> = { readonly [Name in keyof Options]?: unknown }

const NAMES: Names<PagedKvCacheOptions & PagedModelCacheOptions> = { ...PAGED_NAMES, ...MODEL_NAMES }

/** What a cache is made with beside what is in names. */
const REST = { events: 0, eviction: undefined, memoryLimitBytes: undefined }

function ofPages(given: Given<PagedKvCacheOptions>) {
  const pages = readPages(given)
  readPlace(given.device)
  const form = { ...pages, ...REST, capacity: 0, window: undefined, sinks: 0, device: 'cpu' }
  return { native: binding.NativePrefixNamer.ofPages(form), blockSize: pages.blockSize }
}

function ofModel(given: Given<PagedModelCacheOptions>, model: unknown) {
  const { kind } = given
  if (kind !== undefined && kind !== 'paged') throw invalid('kind', kind, 'paged: in tensors there are no blocks')
  const naming = readModelNaming(given)
  const { device } = given
  const { deviceOfLayers } = readDevices(device, isArray(device) ? readFullName : readPlace)
  const form = {
    model: readModel(model),
    dtype: optional(checkDType, 'dtype', given.dtype) ?? 'f32',
    devices: ['cpu'],
    deviceOfLayers,
    memoryLimitBytes: undefined,
    paged: { ...naming, ...REST, blocks: undefined, blocksEach: 0, memoryBytes: 0, maxSequences: 0, maxPrefillTokens: undefined },
    contiguous: undefined,
  }
  return { native: binding.NativePrefixNamer.ofModel(form), blockSize: naming.blockSize }
}

/** One device for all, which is in no name: whichever it is. */
function readPlace(device: unknown): string {
  return device === 'auto' ? device : readFullName(device)
}
