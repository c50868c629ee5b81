/** What a cache costs: memory in use, and how often tokens were copied, by reason. */
export interface CacheStats {
  /** Bytes of the cache's own buffer, slack included. */
  readonly bufferBytes: number
  /** Bytes that only views and snapshots hold, on top of those. */
  readonly heldBytes: number
  /** All bytes in use. */
  readonly usedBytes: number
  /** The cache's own limit; `Infinity` when it has none. */
  readonly limitBytes: number
  /** Times the buffer was replaced by a larger one. */
  readonly growths: number
  /** Times the window moved to the front of the buffer. */
  readonly compactions: number
  /** Times tokens were copied to keep a snapshot whole. */
  readonly copiesOnWrite: number
  /** Bytes that growth, compaction and copies on write have copied. */
  readonly copiedBytes: number
}
