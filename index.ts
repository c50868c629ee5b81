/**
 * kvtide: the KV cache for people who run language models from Node.js and TypeScript.
 *
 * @packageDocumentation
 */
export type { AttendKv, BatchedKv, BlockTableKv, PagedKv, RaggedKv } from './lib/attend-kv.js'
export type { AttendAsyncOptions, AttendOptions } from './lib/attend-options.js'
export { attend, attendAsync } from './lib/attend.js'
export type { Attended, AttendedWithLse, AttendOut } from './lib/attended.js'
export { BlockPool, type BlockPoolOptions } from './lib/block-pool.js'
export { BlockTable, type BlockTableOptions } from './lib/block-table.js'
export type { CacheEvent, CacheEvents, ClearedEvent, EventsOptions, RemovedEvent, StoredEvent } from './lib/sequences/cache-events.js'
export type { DType, Float16ArrayLike, TensorData } from './lib/dtype.js'
export {
  ERROR_CODES,
  isKvTideError,
  KvTideError,
  type AnyKvTideError,
  type ArgumentDetails,
  type ErrorCode,
  type ErrorDetails,
  type ErrorDetailsByCode,
} from './lib/errors.js'
export type { EvictionPolicy, Released } from './lib/sequences/eviction.js'
export type { HostTensor, OnnxTensor, SequenceLayout, TokenSource } from './lib/host-tensor.js'
export { KvCache, type KvCacheOptions } from './lib/kv-cache.js'
export type { BeginOptions, DraftOptions, KvTransaction } from './lib/kv-transaction.js'
export { memoryStats, setMemoryLimit, type MemoryStats } from './lib/memory.js'
export type { HuggingFaceConfig, ModelAttention, ModelDescriptionInput, ModelLayer } from './lib/sequences/model-description.js'
export type { KvSource, Tokens } from './lib/sequences/tokens.js'
export type { Transaction } from './lib/sequences/transaction.js'
export type { PageFormat } from './lib/sequences/page-format.js'
export { mergeAttention, type AttendedPart } from './lib/merge-attention.js'
export type { SequenceList } from './lib/sequences/batch.js'
export { PagedKvCache, type LayerGroup } from './lib/sequences/paged-kv-cache.js'
export type { ModelCacheOptions, PagedKvCacheOptions, PageOptions } from './lib/sequences/options.js'
export { Sequence } from './lib/sequences/sequence.js'
export { Snapshot } from './lib/snapshot.js'
export type { PagedStats, PoolStats, PromptStats } from './lib/sequences/stats.js'
export { Step, type StepOptions } from './lib/sequences/step.js'
export { PrefixMatch } from './lib/sequences/prefix-match.js'
export { PrefixNamer, type PrefixNamerOptions } from './lib/sequences/prefix-namer.js'
export type { AllocationOptions, Explanation, PrefixKeys } from './lib/sequences/prompt-questions.js'
export type { PromptExtra, PromptOptions, TokenIds } from './lib/sequences/prompt.js'
export type { RetainOptions } from './lib/sequences/retain.js'
export { RollbackCache, type RollbackAppendOptions, type RollbackCacheOptions } from './lib/rollback-cache.js'
export { RollbackSnapshot } from './lib/rollback-snapshot.js'
export { RotatingCache, type RotatingCacheOptions } from './lib/rotating-cache.js'
export { RotatingKvCache, type RotatingKvCacheOptions } from './lib/rotating-kv-cache.js'
export { RotatingSnapshot } from './lib/rotating-snapshot.js'
export type { RotatingOptions } from './lib/rotating.js'
export type { AppendOptions, MatchOptions, Seq, SequenceOptions } from './lib/sequences/sequence-options.js'
export type { CacheStats } from './lib/stats.js'
export { StepBatch, type StepArrays, type StepBatchOptions } from './lib/sequences/step-batch.js'
export { Tensor, type Kv, type TensorOptions } from './lib/tensor.js'
export type { ReadAsyncOptions } from './lib/tensor-reading.js'
export type { TokenKv, TokenVector } from './lib/sequences/token-vector.js'
export { setThreads, threads } from './lib/threads.js'
