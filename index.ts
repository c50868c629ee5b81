/**
 * kvtide: the KV cache for people who run language models from Node.js and TypeScript.
 *
 * @packageDocumentation
 */
export type { AttendKv, BatchedKv, BlockTableKv, ModelPagedKv, PagedKv, RaggedKv } from './lib/attend-kv.js'
export type { AttendAsyncOptions, AttendOptions } from './lib/attend-options.js'
export { attend, attendAsync } from './lib/attend.js'
export type { Attended, AttendedWithLse, AttendOut } from './lib/attended.js'
export { BlockPool, type BlockPoolOptions } from './lib/block-pool.js'
export { BlockTable, type BlockTableOptions } from './lib/block-table.js'
export type { CacheEvent, CacheEvents, ClearedEvent, EventsOptions, RemovedEvent, StoredEvent } from './lib/cache-events.js'
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
export type { EvictionPolicy, Released } from './lib/eviction.js'
export type { HostTensor, OnnxTensor, SequenceLayout, TokenSource } from './lib/host-tensor.js'
export { KvCache, type KvCacheOptions } from './lib/kv-cache.js'
export { KvSnapshot } from './lib/kv-snapshot.js'
export type { BeginOptions, DraftOptions, KvTransaction } from './lib/kv-transaction.js'
export { memoryStats, setMemoryLimit, type MemoryStats } from './lib/memory.js'
export { ModelCache, type ModelGroup } from './lib/model-cache.js'
export type { HuggingFaceConfig, ModelAttention, ModelDescriptionInput, ModelLayer } from './lib/model-description.js'
export type { ContiguousModelCacheOptions, ModelCacheOptions, PagedModelCacheOptions } from './lib/model-options.js'
export { ModelSequence } from './lib/model-sequence.js'
export { ModelSnapshot } from './lib/model-snapshot.js'
export { ModelStep, type ModelStepOptions } from './lib/model-step.js'
export type { LayerKv, ModelDraftTokens, ModelTokens } from './lib/model-tokens.js'
export type { ModelTransaction } from './lib/model-transaction.js'
export type { PageFormat } from './lib/page-format.js'
export { mergeAttention, type AttendedPart } from './lib/merge-attention.js'
export type { SequenceList } from './lib/paged-batch.js'
export { PagedKvCache } from './lib/paged-kv-cache.js'
export type { PagedKvCacheOptions } from './lib/paged-options.js'
export { PagedSequence, type PagedTokens } from './lib/paged-sequence.js'
export { PagedSnapshot } from './lib/paged-snapshot.js'
export type { ModelStats, PagedStats, PoolStats, PromptStats } from './lib/paged-stats.js'
export { PagedStep, type StepOptions } from './lib/paged-step.js'
export type { PagedDraftOptions, PagedTransaction } from './lib/paged-transaction.js'
export { PrefixMatch } from './lib/prefix-match.js'
export { PrefixNamer, type PrefixNamerOptions } from './lib/prefix-namer.js'
export type { AllocationOptions, Explanation, PrefixKeys } from './lib/prompt-questions.js'
export type { PromptExtra, PromptOptions, TokenIds } from './lib/prompt.js'
export type { RetainOptions } from './lib/retain.js'
export { RollbackCache, type RollbackAppendOptions, type RollbackCacheOptions } from './lib/rollback-cache.js'
export { RollbackSnapshot } from './lib/rollback-snapshot.js'
export { RotatingCache, type RotatingCacheOptions } from './lib/rotating-cache.js'
export { RotatingKvCache, type RotatingKvCacheOptions } from './lib/rotating-kv-cache.js'
export { RotatingSnapshot } from './lib/rotating-snapshot.js'
export type { RotatingOptions } from './lib/rotating.js'
export type { AppendOptions, MatchOptions, Seq, SequenceOptions } from './lib/sequence-options.js'
export type { CacheStats } from './lib/stats.js'
export {
  ModelStepBatch,
  StepBatch,
  type ModelStepBatchOptions,
  type StepArrays,
  type StepBatchOptions,
  type StepBatchSizes,
} from './lib/step-batch.js'
export { Tensor, type Kv, type TensorOptions } from './lib/tensor.js'
export type { ReadAsyncOptions } from './lib/tensor-reading.js'
export type { TokenKv, TokenVector } from './lib/token-vector.js'
export { setThreads, threads } from './lib/threads.js'
