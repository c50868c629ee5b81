/**
 * kvtide: the KV cache for people who run language models from Node.js and TypeScript.
 *
 * @packageDocumentation
 */
export type { AttendKv } from './lib/attention/attend-kv.js'
export type { AttendOptions } from './lib/attention/attend-options.js'
export { attend, attendAsync } from './lib/attention/attend.js'
export type { Attended, AttendedWithLse, AttendOut } from './lib/attention/attended.js'
export { mergeAttention } from './lib/attention/merge-attention.js'
export { BlockPool, type BlockPoolOptions } from './lib/blocks/block-pool.js'
export { BlockTable, type BlockTableOptions } from './lib/blocks/block-table.js'
export type { DType, Float16ArrayLike, TensorData } from './lib/border/dtype.js'
export {
  ERROR_CODES,
  isKvTideError,
  KvTideError,
  type AnyKvTideError,
  type ErrorCode,
  type ErrorDetails,
} from './lib/border/errors.js'
export type { HostTensor, KvSource, TokenSource } from './lib/border/host-tensor.js'
export { memoryStats, setMemoryLimit, type MemoryStats } from './lib/border/memory.js'
export { Snapshot } from './lib/border/snapshot.js'
export type { CacheStats } from './lib/border/stats.js'
export type { AsyncOptions } from './lib/border/async-options.js'
export { Tensor, type Kv, type TensorOptions } from './lib/border/tensor.js'
export { setThreads, threads } from './lib/border/threads.js'
export { KvCache, type KvCacheOptions } from './lib/contiguous/kv-cache.js'
export type { BeginOptions, DraftOptions, KvTransaction } from './lib/contiguous/kv-transaction.js'
export { RollbackCache, type RollbackCacheOptions } from './lib/contiguous/rollback-cache.js'
export { RollbackMark } from './lib/contiguous/rollback-mark.js'
export { RotatingCache, type RotatingCacheOptions } from './lib/contiguous/rotating-cache.js'
export { RotatingKvCache } from './lib/contiguous/rotating-kv-cache.js'
export { RotatingSnapshot } from './lib/contiguous/rotating-snapshot.js'
export type { RotatingKvCacheOptions } from './lib/contiguous/rotating.js'
export type { CacheEvent, CacheEvents } from './lib/sequences/cache-events.js'
export type { EvictionPolicy } from './lib/sequences/eviction.js'
export type { ModelDescription, ModelLayer } from './lib/sequences/model-description.js'
export type { ModelCacheOptions, PagedKvCacheOptions, UniformCacheOptions } from './lib/sequences/options.js'
export type { PageFormat } from './lib/sequences/page-format.js'
export { PagedKvCache, type LayerGroup } from './lib/sequences/paged-kv-cache.js'
export { PrefixMatch, type MatchOptions } from './lib/sequences/prefix-match.js'
export { PrefixNamer, type PrefixNamerOptions } from './lib/sequences/prefix-namer.js'
export type { AllocationOptions, Explanation, PrefixKeys, PromptExtra, PromptOptions, TokenIds } from './lib/sequences/prompt.js'
export type { RetainOptions } from './lib/sequences/retain.js'
export type { SequenceList } from './lib/sequences/sequence-batch.js'
export { Sequence, type SequenceOptions } from './lib/sequences/sequence.js'
export type { PagedStats, PoolStats } from './lib/sequences/stats.js'
export { StepBatch, type StepArrays, type StepBatchOptions } from './lib/sequences/step-batch.js'
export { Step, type StepOptions } from './lib/sequences/step.js'
export type { Tokens } from './lib/sequences/tokens.js'
export type { Transaction } from './lib/sequences/transaction.js'
