/**
 * kvtide: a KV cache for language models that run from Node.js and TypeScript. It has contiguous and paged caches, prefix caching, attention over them,
 * tiers and stores for offloaded blocks, and routers that send a prompt to the worker that has its prefix.
 *
 * @packageDocumentation
 */
export type { Attended, AttendedWithLse, AttendOptions, AttendOut } from './lib/attention/attend-call.js'
export { attend, attendAsync, type AttendKv } from './lib/paged/attend.js'
export { mergeAttention } from './lib/attention/merge-attention.js'
export { BlockPool, type BlockPoolOptions } from './lib/blocks/block-pool.js'
export { BlockTable, type BlockTableOptions } from './lib/blocks/block-table.js'
export {
  ERROR_CODES,
  isKvTideError,
  KvTideError,
  type AnyKvTideError,
  type ErrorCode,
  type ErrorDetails,
} from './lib/errors/errors.js'
export type { GraphRefusal } from './lib/errors/graph-advice.js'
export type { ArrayOf, DType, DTypeOf, Float16ArrayLike, TensorData } from './lib/border/host-array.js'
export { memoryStats, setMemoryLimit, setThreads, threads, type MemoryStats } from './lib/border/process.js'
export { Snapshot } from './lib/border/snapshot.js'
export type { CacheStats } from './lib/border/stats.js'
export type { AsyncOptions } from './lib/border/stop-signal.js'
export {
  Tensor,
  type DTypeOfSource,
  type HostTensor,
  type Kv,
  type KvSource,
  type TensorOptions,
  type TokenSource,
} from './lib/border/tensor.js'
export { KvCache, type KvCacheOptions } from './lib/contiguous/kv-cache.js'
export type { BeginOptions, DraftOptions, KvTransaction } from './lib/contiguous/kv-transaction.js'
export { RollbackCache, RollbackMark, type RollbackCacheOptions } from './lib/contiguous/rollback-cache.js'
export { RotatingCache, type RotatingCacheOptions } from './lib/contiguous/rotating-cache.js'
export { RotatingKvCache } from './lib/contiguous/rotating-kv-cache.js'
export { RotatingSnapshot, type RotatingKvCacheOptions } from './lib/contiguous/rotating.js'
export { DynamoRouter, type DynamoRouterOptions } from './lib/router/dynamo-router.js'
export { type EventPublisher, publishEvents, type PublishOptions } from './lib/router/event-publisher.js'
export {
  type Following,
  type FollowOptions,
  type FollowStats,
  PrefixRouter,
  type Route,
  type RoutedEvent,
} from './lib/router/prefix-router.js'
export type { RouteOptions } from './lib/router/route-options.js'
export type { CacheEvent, CacheEvents, CacheReplay, KeptContent } from './lib/sequences/cache-events.js'
export type { EvictionPolicy } from './lib/sequences/eviction.js'
export type { CacheForm, LayerGroup, StatePlace } from './lib/sequences/layer-group.js'
export type {
  EmptyLayer,
  ModelDescription,
  ModelLayer,
  StateLayer,
  StateTensor,
} from './lib/sequences/model-description.js'
export type { ModelCacheOptions, PagedKvCacheOptions, UniformCacheOptions } from './lib/sequences/options.js'
export type { PageFormat } from './lib/sequences/page-format.js'
export { PagedKvCache, type Admission } from './lib/paged/paged-kv-cache.js'
export { PrefixNamer, type PrefixNamerOptions } from './lib/sequences/prefix-namer.js'
export {
  PrefixMatch,
  type AdmissionOptions,
  type AllocationOptions,
  type Explanation,
  type Lacking,
  type MatchOptions,
  type PrefixKeys,
  type PromptExtra,
  type PromptOptions,
} from './lib/sequences/prompt.js'
export type { SequenceList } from './lib/sequences/sequence-batch.js'
export { Sequence, type RetainOptions, type SequenceOptions } from './lib/paged/sequence.js'
export type { PagedStats, PoolStats } from './lib/sequences/stats.js'
export { StepBatch, type StepArrays, type StepBatchOptions } from './lib/sequences/step-batch.js'
export { Step, type StepOptions } from './lib/sequences/step.js'
export type { KvArrays, TokenIds, Tokens } from './lib/sequences/tokens.js'
export type { Transaction } from './lib/sequences/transaction.js'
export type { BlockStore, BlockStoreCall, StoreEntry } from './lib/tiers/block-store.js'
export type { LayerLoadOptions } from './lib/files/load-tensors.js'
export type { LoadOptions, LoadSequenceOptions } from './lib/paged/load.js'
export { ObjectStore, type ObjectStoreOptions } from './lib/tiers/object-store.js'
export type { FileOptions, Progress } from './lib/files/progress.js'
export { RedisStore, type RedisStoreOptions } from './lib/tiers/redis-store.js'
export type { StoreEvent, StoreFault, StoreHealth } from './lib/tiers/shared-store.js'
export type { SavedSource } from './lib/files/source.js'
export type {
  BringOptions,
  DiskTier,
  MemoryTier,
  StoreTier,
  TierName,
  TierOptions,
  TierPolicy,
  TiersStats,
  TierStats,
} from './lib/tiers/tier-options.js'
