/**
 * kvtide: the KV cache for people who run language models from Node.js and TypeScript.
 *
 * @packageDocumentation
 */
export type { AttendKv, BatchedKv, BlockTableKv, PagedKv, RaggedKv } from './lib/attend-kv.js'
export type { AttendAsyncOptions, AttendOptions } from './lib/attend-options.js'
export { attend, attendAsync, type Attended, type AttendedWithLse, type AttendOut } from './lib/attend.js'
export { BlockPool, type BlockPoolOptions } from './lib/block-pool.js'
export { BlockTable, type BlockTableOptions } from './lib/block-table.js'
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
export type { HostTensor, OnnxTensor, SequenceLayout, TokenSource } from './lib/host-tensor.js'
export { KvCache, type KvCacheOptions } from './lib/kv-cache.js'
export { KvSnapshot } from './lib/kv-snapshot.js'
export type { BeginOptions, DraftOptions, KvTransaction } from './lib/kv-transaction.js'
export { memoryStats, setMemoryLimit, type MemoryStats } from './lib/memory.js'
export type { PageFormat } from './lib/page-format.js'
export { mergeAttention, type AttendedPart } from './lib/merge-attention.js'
export { PagedKvCache, type PagedKvCacheOptions, type TokenKv, type TokenVector } from './lib/paged-kv-cache.js'
export { RollbackCache, type RollbackAppendOptions, type RollbackCacheOptions } from './lib/rollback-cache.js'
export { RollbackSnapshot } from './lib/rollback-snapshot.js'
export { RotatingCache, type RotatingCacheOptions } from './lib/rotating-cache.js'
export { RotatingKvCache, type RotatingKvCacheOptions } from './lib/rotating-kv-cache.js'
export { RotatingSnapshot } from './lib/rotating-snapshot.js'
export type { RotatingOptions } from './lib/rotating.js'
export type { CacheStats } from './lib/stats.js'
export { Tensor, type Kv, type TensorOptions } from './lib/tensor.js'
export { setThreads, threads } from './lib/threads.js'
