import { count, flag, isArray, known, list, type Names, optional, text, whole } from './check.js'
import { readDevice } from './device.js'
import { checkDType, type DType } from './dtype.js'
import { invalid } from './errors.js'
import { readEviction, type EvictionPolicy } from './eviction.js'
import { readModel, type HuggingFaceConfig, type ModelDescriptionInput } from './model-description.js'
import { checkPageFormat, type PageFormat } from './page-format.js'
import { PagedClock } from './paged-clock.js'
import { callable, readNaming } from './paged-options.js'

/** What every {@link ModelCache} is made with. */
interface CommonModelOptions {
  /** Its layers: described by hand, or a `config.json`. */
  readonly model: ModelDescriptionInput | HuggingFaceConfig
  /** The element type of what goes in, `'f32'` unless said otherwise. */
  readonly dtype?: DType
  /** Where it lives, `'cpu'` unless said otherwise; or where each layer does, one name for each. */
  readonly device?: string | readonly string[]
  /** The most bytes that it may keep on each device. */
  readonly memoryLimitBytes?: number
}

/** All sequences in blocks that they share. */
export interface PagedModelCacheOptions extends CommonModelOptions {
  /** The sequences share blocks. */
  readonly kind: 'paged'
  /** Tokens of a block, 16 unless said otherwise. */
  readonly blockSize?: number
  /** Blocks of every group of layers, or of each; see {@link ModelCache.groups}. */
  readonly blocks?: number | readonly number[]
  /**
   * Instead of `blocks`: as many as fit, for at most `maxSequences` at once. A group that slides gets what its windows take, and
   * `maxPrefillTokens`, but at most half; the others get the rest.
   */
  readonly memoryBytes?: number
  /** Sequences at once, beside `memoryBytes`. */
  readonly maxSequences?: number
  /**
   * Tokens that one call appends at most, of all its sequences, beside `memoryBytes`; 512 unless said otherwise. A window lets go
   * of what it passes once a call's tokens are all there, so a longer prompt may be `OUT_OF_BLOCKS`: append it piece by piece.
   */
  readonly maxPrefillTokens?: number
  /** How pages keep K: `dtype` unless said otherwise, or `'f8e4m3'`, `'q8'`, `'q4'`. */
  readonly keyFormat?: PageFormat
  /** How pages keep V: `dtype` unless said otherwise, or `'f8e4m3'`, `'q8'`, `'q4'`. */
  readonly valueFormat?: PageFormat
  /** Rotates K by a Hadamard matrix before it is quantised. */
  readonly hadamard?: boolean
  /** What the tokens mean: the model, its rope settings. It is in the names of prompts, with the form of the pages: see {@link PrefixNamer}. */
  readonly namespace?: string
  /** 32 secret bytes under which prompts are named, random ones of the process unless given. */
  readonly prefixKey?: Uint8Array
  /** Which of the blocks that nobody holds make room first; the lowest priority, and in it the least recently used, unless given. */
  readonly eviction?: EvictionPolicy
  /** Events that are kept for {@link ModelCache.events}, none unless said otherwise. */
  readonly events?: number
  /** The time in milliseconds, `Date.now` unless given; asked for only while a {@link ModelSequence.retain} has a time limit. */
  readonly now?: () => number
}

/** Each sequence in tensors of its own: growing ones, and windows. */
export interface ContiguousModelCacheOptions extends CommonModelOptions {
  /** The sequences share nothing. */
  readonly kind: 'contiguous'
  /** Rows of each sequence, which move in lockstep; 1 unless said otherwise. */
  readonly batchSize?: number
  /** The most tokens of a sequence. */
  readonly maxSeqLen?: number
  /** Slots that a layer has at the start, 256 unless said otherwise. */
  readonly initialCapacity?: number
  /** Layers that slide keep every token as well, so that a sequence can be truncated anywhere; `false` unless said otherwise. */
  readonly keepAll?: boolean
}

/** What a {@link ModelCache} is made with. */
export type ModelCacheOptions = PagedModelCacheOptions | ContiguousModelCacheOptions

const COMMON = ['model', 'dtype', 'device', 'memoryLimitBytes'] as const
/** Options of one kind alone. */
const PAGED = ['blockSize', 'blocks', 'memoryBytes', 'maxSequences', 'maxPrefillTokens', 'keyFormat', 'valueFormat', 'hadamard', 'namespace', 'prefixKey', 'eviction', 'events', 'now'] as const
const CONTIGUOUS = ['batchSize', 'maxSeqLen', 'initialCapacity', 'keepAll'] as const

/** @internal All of them, of both kinds. */
export const MODEL_NAMES = Object.fromEntries(['kind', ...COMMON, ...PAGED, ...CONTIGUOUS].map(name => [name, 0])) as Names<Given>

type Given = { readonly [Name in keyof PagedModelCacheOptions | keyof ContiguousModelCacheOptions]?: unknown }

/** @internal Reads options, each of them once. */
export function readModelOptions(options: unknown) {
  const source = known<Given>('options', options, MODEL_NAMES)
  const kind = readKind(source.kind)
  const given: Given = Object.fromEntries([...COMMON, ...PAGED, ...CONTIGUOUS].map(name => [name, source[name]]))
  for (const name of kind === 'paged' ? CONTIGUOUS : PAGED) {
    if (given[name] !== undefined) throw invalid(name, given[name], `none where kind is ${kind}`)
  }
  const form = {
    model: readModel(given.model),
    dtype: optional(checkDType, 'dtype', given.dtype) ?? ('f32' as const),
    ...readDevices(given.device),
    memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
    paged: kind === 'paged' ? readPaged(given) : undefined,
    contiguous: kind === 'contiguous' ? readContiguous(given) : undefined,
  }
  return { kind, form, clock: new PagedClock(optional(callable, 'now', given.now) ?? Date.now) }
}

/** @internal The devices of a model's layers, and which of them each layer has. */
export function readDevices(device: unknown, read: (device: unknown) => string = readDevice): { devices: string[]; deviceOfLayers: Uint32Array | undefined } {
  if (!isArray(device)) return { devices: [read(device)], deviceOfLayers: undefined }
  const names = list('device', device, (argument, name) => read(text(argument, name)))
  const devices = [...new Set(names)]
  if (devices.length === 0) throw invalid('device', device, 'a name for each layer')
  return { devices, deviceOfLayers: Uint32Array.from(names, name => devices.indexOf(name)) }
}

function readKind(kind: unknown): 'paged' | 'contiguous' {
  if (kind === 'paged' || kind === 'contiguous') return kind
  throw invalid('kind', kind, 'paged or contiguous')
}

const atLeastOne = (argument: string, value: unknown): number => count(argument, value, 1)

function readPaged(given: Given) {
  const { blocks, memoryBytes, maxSequences } = given
  if (blocks === undefined && memoryBytes === undefined) throw invalid('blocks', blocks, 'a number of blocks, or memoryBytes and maxSequences')
  if (blocks !== undefined && memoryBytes !== undefined) throw invalid('memoryBytes', memoryBytes, 'none beside blocks')
  for (const name of ['maxSequences', 'maxPrefillTokens'] as const) {
    if (memoryBytes === undefined && given[name] !== undefined) throw invalid(name, given[name], 'none without memoryBytes')
  }
  return {
    ...readModelNaming(given),
    blocks: isArray(blocks) ? list('blocks', blocks, count) : undefined,
    blocksEach: blocks === undefined || isArray(blocks) ? undefined : count('blocks', blocks),
    memoryBytes: optional(whole, 'memoryBytes', memoryBytes) ?? 0,
    maxSequences: memoryBytes === undefined ? 0 : atLeastOne('maxSequences', maxSequences),
    maxPrefillTokens: optional(count, 'maxPrefillTokens', given.maxPrefillTokens),
    events: optional(count, 'events', given.events) ?? 0,
    eviction: optional(readEviction, 'eviction', given.eviction),
  }
}

/** @internal What the pages of all groups are named under. */
export function readModelNaming(given: Given) {
  return {
    keyFormat: optional(checkPageFormat, 'keyFormat', given.keyFormat),
    valueFormat: optional(checkPageFormat, 'valueFormat', given.valueFormat),
    ...readNaming(given),
  }
}

function readContiguous(given: Given) {
  return {
    batchSize: optional(atLeastOne, 'batchSize', given.batchSize) ?? 1,
    maxSeqLen: optional(atLeastOne, 'maxSeqLen', given.maxSeqLen),
    initialCapacity: optional(count, 'initialCapacity', given.initialCapacity) ?? 256,
    keepAll: optional(flag, 'keepAll', given.keepAll) ?? false,
  }
}
