import { count, flag, known, type Names, optional, typedArray, whole } from './check.js'
import { readDevice } from './device.js'
import { checkDType, type DType } from './dtype.js'
import { invalid } from './errors.js'
import { readEviction, type EvictionPolicy } from './eviction.js'
import { checkPageFormat, type PageFormat } from './page-format.js'
import { PagedClock } from './paged-clock.js'
import { wellFormed } from './prompt.js'

/** @internal All of them. */
export const PAGED_NAMES: Names<PagedKvCacheOptions> = { capacity: 0, blockSize: 0, numLayers: 0, numKvHeads: 0, headDim: 0, valueHeadDim: 0, dtype: 0, keyFormat: 0, valueFormat: 0, hadamard: 0, window: 0, sinks: 0, namespace: 0, prefixKey: 0, eviction: 0, events: 0, now: 0, device: 0, memoryLimitBytes: 0 }

/**
 * What a {@link PagedKvCache} is made with.
 *
 * Low-bit pages are quantised when all their slots are written; until then their rows lie in floats, in staging memory that
 * grows with what is unfinished. A write into a page that was quantised takes it back to floats and quantises it again, which
 * moves each value by at most one more step. A page that a fork or a snapshot took while its last tokens were drafted stays in floats
 * when they are committed, and prompts do not find it.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 64, keyFormat: 'q8', valueFormat: 'q8' })
 * const [one, other] = [cache.createSequence(), cache.createSequence()]
 * const tokens = { data: new Float32Array(2 * 5 * 64).fill(0.5), shape: [2, 1, 5, 64] } // five of both layers
 * cache.append([one, other], tokens, tokens, [0, 4, 5])
 * const { k } = cache.gather(one, 1)
 * console.log(k.shape, k.dtype) // [1, 4, 64] f32
 * console.log(cache.bytesPerToken < 0.3 * 2 * 2 * 64 * 4) // true
 * ```
 */
export interface PagedKvCacheOptions {
  /** Blocks in the pool. */
  readonly capacity: number
  /** Tokens of a block, 16 unless said otherwise. */
  readonly blockSize?: number
  /** Layers of the model. */
  readonly numLayers: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements of one head of K. */
  readonly headDim: number
  /** Elements of one head of V, as in K unless said otherwise; 0 when there is no V. */
  readonly valueHeadDim?: number
  /** The element type of what goes in, and of pages that are not low-bit; `'f32'` unless said otherwise. */
  readonly dtype?: DType
  /** How pages keep K: `dtype` unless said otherwise, or `'f8e4m3'`, `'q8'`, `'q4'`. */
  readonly keyFormat?: PageFormat
  /** How pages keep V: `dtype` unless said otherwise, or `'f8e4m3'`, `'q8'`, `'q4'`. */
  readonly valueFormat?: PageFormat
  /** Rotates K by a Hadamard matrix before it is quantised, which spreads channels that stand out; `false` unless said otherwise. */
  readonly hadamard?: boolean
  /**
   * Tokens that a token of the model sees, itself among them: what attention over the cache sees unless it says otherwise, and
   * blocks that left the window of a sequence's last token are given back. All unless said otherwise.
   */
  readonly window?: number
  /** Tokens at the start that a window does not hide. */
  readonly sinks?: number
  /**
   * What the tokens mean: the model, its rope settings. It is in the names of prompts, with the form of the pages: see
   * {@link PrefixNamer}.
   */
  readonly namespace?: string
  /** 32 secret bytes under which prompts are named, random ones of the process unless given. The same ones name them alike elsewhere. */
  readonly prefixKey?: Uint8Array
  /** Which of the blocks that nobody holds make room first; the lowest priority, and in it the least recently used, unless given. */
  readonly eviction?: EvictionPolicy
  /** Events that are kept for {@link PagedKvCache.events}, none unless said otherwise. */
  readonly events?: number
  /** The time in milliseconds, `Date.now` unless given; asked for only while a {@link PagedSequence.retain} has a time limit. */
  readonly now?: () => number
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
  /** The most bytes that it may keep, staging of low-bit pages included. */
  readonly memoryLimitBytes?: number
}

/** @internal Options that were read: as the addon wants them. */
export type PagedForm = ReturnType<typeof readOptions>['form']

/** @internal Reads options, each of them once. */
export function readOptions(options: unknown) {
  const given = known<PagedKvCacheOptions>('options', options, PAGED_NAMES)
  const pages = readPages(given)
  const window = optional(atLeastOne, 'window', given.window)
  const sinks = optional(count, 'sinks', given.sinks) ?? 0
  if (window === undefined && sinks > 0) throw invalid('sinks', sinks, 'none without a window')
  const form = {
    capacity: count('capacity', given.capacity),
    ...pages,
    window,
    sinks,
    events: optional(count, 'events', given.events) ?? 0,
    device: readDevice(given.device),
    memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
  }
  const clock = new PagedClock(optional(callable, 'now', given.now) ?? Date.now)
  return { form: { ...form, eviction: optional(readEviction, 'eviction', given.eviction) }, clock }
}

/** What is read of options; a getter among them may do anything, so each is read once. */
type Given = { readonly [Name in keyof PagedKvCacheOptions]?: unknown }

/** @internal The form of pages, and what they are named under: all that names depend on. */
export function readPages(given: Given) {
  const headDim = count('headDim', given.headDim, 1)
  const dtype = optional(checkDType, 'dtype', given.dtype) ?? 'f32'
  return {
    numLayers: count('numLayers', given.numLayers, 1),
    numKvHeads: count('numKvHeads', given.numKvHeads, 1),
    headDim,
    valueHeadDim: optional(count, 'valueHeadDim', given.valueHeadDim) ?? headDim,
    dtype,
    keyFormat: optional(checkPageFormat, 'keyFormat', given.keyFormat) ?? dtype,
    valueFormat: optional(checkPageFormat, 'valueFormat', given.valueFormat) ?? dtype,
    ...readNaming(given),
  }
}

/** @internal What pages of any form are named under. */
export function readNaming(given: Pick<Given, 'blockSize' | 'hadamard' | 'namespace' | 'prefixKey'>) {
  return {
    blockSize: optional(atLeastOne, 'blockSize', given.blockSize) ?? 16,
    hadamard: optional(flag, 'hadamard', given.hadamard) ?? false,
    namespace: optional(wellFormed, 'namespace', given.namespace) ?? '',
    prefixKey: optional(secret, 'prefixKey', given.prefixKey),
  }
}

const atLeastOne = (argument: string, value: unknown): number => count(argument, value, 1)

/** @internal 32 bytes. */
export function secret(argument: string, value: unknown): Uint8Array {
  const key = typedArray<Uint8Array>(argument, value, ['Uint8Array'])
  if (key.length !== 32) throw invalid(argument, value, 'a Uint8Array of 32 bytes')
  return key
}

/** @internal A clock. */
export function callable(argument: string, value: unknown): () => unknown {
  if (typeof value === 'function') return value as () => unknown
  throw invalid(argument, value, 'a function that gives the time in milliseconds')
}
