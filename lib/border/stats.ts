/** Memory use of a cache, and the number of times that tokens were copied, by reason. */
export interface CacheStats {
  /** Bytes of the cache's own buffer, slack included. */
  readonly bufferBytes: number
  /** Bytes that only views and snapshots hold, in addition to the buffer. */
  readonly heldBytes: number
  /** All bytes in use. */
  readonly usedBytes: number
  /** The cache's own limit; `Infinity` if it has none. */
  readonly limitBytes: number
  /** The number of times the buffer was replaced by a larger one. */
  readonly growths: number
  /** The number of times the window was moved to the front of the buffer. */
  readonly compactions: number
  /** The number of times tokens were copied to preserve a snapshot. */
  readonly copiesOnWrite: number
  /** Bytes that growth, compaction and copies on write have copied. */
  readonly copiedBytes: number
}
