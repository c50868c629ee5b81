// Options of a paged cache, and their checks. There are two kinds: for uniform layers, and for a model whose layers may differ. Options of one kind are refused
// in the other.
import { count, flag, isArray, known, list, type Names, optional, text, typedArray, whole } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { checkDType, type DType } from '../border/host-array.js'
import { readDevice } from '../border/process.js'
import type { TierOptions } from '../tiers/tier-options.js'
import { type EvictionPolicy, readEviction } from './eviction.js'
import { type HuggingFaceConfig, type ModelDescription, readModel } from './model-description.js'
import { checkPageFormat, type PageFormat } from './page-format.js'
import { wellFormed } from './prompt.js'
import { Clock } from './shared-cache.js'

/** Options of pages and of their memory, for both kinds of caches. */
interface PageOptions {
  /** Tokens per block, 16 by default. */
  readonly blockSize?: number
  /** The element type of appended tokens, and of pages that are not low-bit; `'f32'` by default. */
  readonly dtype?: DType
  /**
   * The format of K in pages: `dtype` by default, or a quantized one, `'f8e4m3'` (FP8), `'q8'` (INT8) or `'q4'` (INT4); with `'f32'` also `'f16'`
   * or `'bf16'`.
   */
  readonly keyFormat?: PageFormat
  /**
   * The format of V in pages: `dtype` by default, or a quantized one, `'f8e4m3'` (FP8), `'q8'` (INT8) or `'q4'` (INT4); with `'f32'` also `'f16'`
   * or `'bf16'`.
   */
  readonly valueFormat?: PageFormat
  /** Rotates K by a Hadamard matrix before it is quantised, which spreads out channels with large values; `false` by default. */
  readonly hadamard?: boolean
  /**
   * Rotates V by a Hadamard matrix before it is quantised, which spreads out large values over the row that shares a scale; `false` by default. In a model's
   * `cache` it is `true` by default if `valueFormat` is `'q4'`.
   */
  readonly valueHadamard?: boolean
  /**
   * The meaning of token ids: the model and its rope settings. The keys of blocks depend on it and on the form of the pages: see
   * {@link PrefixNamer}.
   */
  readonly namespace?: string
  /** 32 secret bytes that the keys of blocks depend on; by default random ones of the process. Caches with the same bytes compute the same keys. */
  readonly prefixKey?: Uint8Array
  /** Decides which cached blocks are evicted first. By default those of the lowest priority, the least recently used first. */
  readonly eviction?: EvictionPolicy
  /** The maximum number of events that are kept for {@link PagedKvCache.events}; none by default. */
  readonly events?: number
  /** The clock, in milliseconds; `Date.now` by default. It is read only while a {@link Sequence.retain} has a time limit. */
  readonly now?: () => number
  /** The memory limit of the cache on each device in bytes, including the staging memory of low-bit pages. */
  readonly memoryLimitBytes?: number
  /**
   * The tiers below the pool: host memory, a folder, or a store that machines share. Blocks are offloaded there, and restored for a prompt that is
   * matched with {@link BringOptions}. With a folder or a store, `prefixKey` is required.
   */
  readonly tiers?: TierOptions
}

/**
 * Options of a {@link PagedKvCache} whose layers all have the same sizes and window.
 *
 * A low-bit page is quantised once all its slots are written. Until then its rows are floats in staging memory. The rows of a step and of a
 * draft are also floats until it is committed, since a token reads its own page as floats and the pages before it quantised. A write into a
 * quantised page converts the page to floats and quantises it again, which moves each value by at most one more step. If a fork or a snapshot
 * shares a page whose last tokens are drafted, and no block is available for a copy when they are committed, the page stays in floats, and
 * prompts cannot reuse it.
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
export interface UniformCacheOptions extends PageOptions {
  /** Blocks in the pool. */
  readonly capacity: number
  /** Layers of the model. */
  readonly numLayers: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements per head of K. */
  readonly headDim: number
  /** Elements per head of V; by default the same as for K. 0 if there is no V. */
  readonly valueHeadDim?: number
  /**
   * The number of positions that a token sees, including itself; all by default. Attention over the cache uses this window unless the call
   * gives another. Blocks outside the window of a sequence's last token are freed.
   */
  readonly window?: number
  /** Tokens at the start that stay visible in addition to the window. */
  readonly sinks?: number
  /** The device, `'cpu'` by default. */
  readonly device?: string
  readonly model?: undefined
}

/**
 * Options of a {@link PagedKvCache} for a model. Its layers may keep all tokens, a window or states, or share the keys and values of another
 * layer. Layers of the same kind and sizes form a group with one pool.
 */
export interface ModelCacheOptions extends PageOptions {
  /** The model, described by hand or as its `config.json`. */
  readonly model: ModelDescription | HuggingFaceConfig
  /** Blocks of each group: one number for all groups, or one for each in the order of {@link PagedKvCache.groups}. A block of a group of states is a slot. */
  readonly capacity?: number | readonly number[]
  /**
   * Instead of `capacity`: the size of the cache in bytes, for at most `maxSequences` at once. Sliding groups get the blocks that their windows
   * and `maxPrefillTokens` need, but at most half of the bytes. A group of states gets two slots for each sequence, and for checkpoints an eighth of
   * the bytes, at least two more slots for each sequence: together at most half of the bytes. The other groups get the rest.
   */
  readonly memoryBytes?: number
  /** The maximum number of sequences at once. Required with `memoryBytes`. */
  readonly maxSequences?: number
  /**
   * The maximum number of tokens that one call appends to all its sequences; 512 by default. Only with `memoryBytes`. A window drops old
   * tokens only at the end of a call, so a longer append may throw `OUT_OF_BLOCKS`: append a longer prompt in parts.
   */
  readonly maxPrefillTokens?: number
  /** The device, `'cpu'` by default, or one name for each layer. */
  readonly device?: string | readonly string[]
}

/** Options of a {@link PagedKvCache}: for uniform layers, or for a model. */
export type PagedKvCacheOptions = UniformCacheOptions | ModelCacheOptions

/** @internal Options of either kind, each read once. */
export type GivenOptions = { readonly [Name in keyof UniformCacheOptions | keyof ModelCacheOptions]?: unknown }

const PAGES = {
  blockSize: 0,
  dtype: 0,
  keyFormat: 0,
  valueFormat: 0,
  hadamard: 0,
  valueHadamard: 0,
  namespace: 0,
  prefixKey: 0,
  eviction: 0,
  events: 0,
  now: 0,
  memoryLimitBytes: 0,
  tiers: 0,
  capacity: 0,
  device: 0,
} as const
const ALIKE = { numLayers: 0, numKvHeads: 0, headDim: 0, valueHeadDim: 0, window: 0, sinks: 0 } as const
const OF_MODELS = { memoryBytes: 0, maxSequences: 0, maxPrefillTokens: 0 } as const

/** @internal The names of all options. */
export const OPTION_NAMES: Names<GivenOptions> = { model: 0, ...PAGES, ...ALIKE, ...OF_MODELS }

/** @internal Reads options, each of them once. Options of the other kind are refused. */
export function readOptions(options: unknown) {
  const given = known<GivenOptions>('options', options, OPTION_NAMES)
  const { model } = given
  const form = model === undefined ? readAlike(given) : readModelForm(given, model)
  for (const name of Object.keys(model === undefined ? OF_MODELS : ALIKE) as (keyof GivenOptions)[]) {
    const value = given[name]
    if (value !== undefined)
      throw invalid(
        name,
        value,
        model === undefined
          ? 'no value without a model'
          : 'no value together with a model, which defines it for each layer',
      )
  }
  return { form, tiers: given.tiers, clock: new Clock(optional(callable, 'now', given.now) ?? Date.now) }
}

function readAlike(given: GivenOptions) {
  const capacity = count('capacity', given.capacity)
  const pages = readPages(given)
  const window = optional(atLeastOne, 'window', given.window)
  const sinks = optional(count, 'sinks', given.sinks) ?? 0
  if (window === undefined && sinks > 0) throw invalid('sinks', sinks, 'no sinks without a window')
  return { capacity, ...pages, window, sinks, device: readDevice(given.device), ...readCosts(given) }
}

function readModelForm(given: GivenOptions, model: unknown) {
  const { capacity, memoryBytes, maxSequences, maxPrefillTokens } = given
  const description = readModel(model)
  const places = readDevices(given.device)
  if (capacity === undefined && memoryBytes === undefined)
    throw invalid('capacity', capacity, 'a number of blocks, or memoryBytes and maxSequences')
  if (capacity !== undefined && memoryBytes !== undefined)
    throw invalid('memoryBytes', memoryBytes, 'no value together with capacity')
  for (const [name, value] of Object.entries({ maxSequences, maxPrefillTokens })) {
    if (memoryBytes === undefined && value !== undefined) throw invalid(name, value, 'no value without memoryBytes')
  }
  return {
    model: description,
    ...places,
    ...readModelPages(given),
    blocks: isArray(capacity) ? list('capacity', capacity, count) : undefined,
    blocksEach: capacity === undefined || isArray(capacity) ? undefined : count('capacity', capacity),
    memoryBytes: optional(whole, 'memoryBytes', memoryBytes) ?? 0,
    maxSequences: memoryBytes === undefined ? 0 : atLeastOne('maxSequences', maxSequences),
    maxPrefillTokens: optional(count, 'maxPrefillTokens', maxPrefillTokens),
    ...readCosts(given),
  }
}

/** Eviction, events and the memory limit. */
function readCosts(given: GivenOptions) {
  return {
    events: optional(count, 'events', given.events) ?? 0,
    memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
    eviction: optional(readEviction, 'eviction', given.eviction),
  }
}

/** @internal The form of pages for uniform layers, and the options that keys of blocks depend on. */
export function readPages(given: GivenOptions) {
  const headDim = count('headDim', given.headDim, 1)
  const { dtype, keyFormat, valueFormat, ...naming } = readModelPages(given)
  return {
    numLayers: count('numLayers', given.numLayers, 1),
    numKvHeads: count('numKvHeads', given.numKvHeads, 1),
    headDim,
    valueHeadDim: optional(count, 'valueHeadDim', given.valueHeadDim) ?? headDim,
    dtype,
    keyFormat,
    valueFormat,
    ...naming,
  }
}

/** @internal As {@link readPages}, for a model, whose description has the sizes. */
export function readModelPages(given: GivenOptions) {
  const dtype = optional(checkDType, 'dtype', given.dtype) ?? ('f32' as const)
  return {
    dtype,
    keyFormat: optional(checkPageFormat, 'keyFormat', given.keyFormat) ?? dtype,
    valueFormat: optional(checkPageFormat, 'valueFormat', given.valueFormat) ?? dtype,
    blockSize: optional(atLeastOne, 'blockSize', given.blockSize) ?? 16,
    hadamard: optional(flag, 'hadamard', given.hadamard) ?? false,
    valueHadamard: optional(flag, 'valueHadamard', given.valueHadamard) ?? false,
    namespace: optional(wellFormed, 'namespace', given.namespace) ?? '',
    prefixKey: optional(secret, 'prefixKey', given.prefixKey),
  }
}

/** @internal The devices of a model, and the index of each layer's device among them. */
export function readDevices(
  device: unknown,
  read: (device: unknown) => string = readDevice,
): { devices: string[]; deviceOfLayers: Uint32Array | undefined } {
  if (!isArray(device)) return { devices: [read(device)], deviceOfLayers: undefined }
  const names = list('device', device, (argument, name) => read(text(argument, name)))
  const devices = [...new Set(names)]
  if (devices.length === 0) throw invalid('device', device, 'a name for each layer')
  return { devices, deviceOfLayers: Uint32Array.from(names, name => devices.indexOf(name)) }
}

const atLeastOne = (argument: string, value: unknown): number => count(argument, value, 1)

function secret(argument: string, value: unknown): Uint8Array {
  const key = typedArray<Uint8Array>(argument, value, ['Uint8Array'])
  if (key.length !== 32) throw invalid(argument, value, 'a Uint8Array of 32 bytes')
  return key
}

function callable(argument: string, value: unknown): () => unknown {
  if (typeof value === 'function') return value as () => unknown
  throw invalid(argument, value, 'a function that returns the time in milliseconds')
}
