import { count, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { milliseconds } from './clock.js'
import type { SharedCache } from './shared-cache.js'

const OPTIONS: Names<RetainOptions> = { from: 0, to: 0, priority: 0, forMs: 0, until: 0 }

/**
 * A priority for the blocks of some tokens. It decides which blocks make room first, once nobody holds them and others are needed.
 *
 * 1. The block of the lowest *rank* goes first; of equal ranks the block that was released first.
 * 2. A block's own rank is its priority, or what the {@link EvictionPolicy} makes of its priority and its place in the sequence. The
 *    priority is 50 unless one was given, and again once its time limit is over.
 * 3. When a sequence releases a block (by a truncation, a restore, the end of a fork, a copy for a writer), the block hands its rank on
 *    to all blocks before it in that sequence, whether they are released too or not. A block's rank is the highest of its own and of
 *    those handed on to it, and it hands that on in turn. So no block goes before blocks that cannot be found without it.
 * 4. Ranks with time limits are joined: the highest rank until the limit, and the highest rank after it. Of two limits the later one
 *    counts where the rank falls, the earlier one where it rises. So the joined rank is never lower than one of its parts.
 * 5. A new priority removes the ranks that were handed on to the block before. Blocks before it keep theirs. The block itself may then
 *    go before blocks that followed it and were already released.
 * 6. A block that left the window is released before the blocks that follow it, which are found without it. It hands its rank on to the
 *    sinks only.
 * 7. The copy that a writer gets starts without a priority, and with no rank handed on to it.
 */
export interface RetainOptions {
  /** The first token, 0 unless said otherwise. */
  readonly from?: number
  /** The token behind the last, the sequence's length unless said otherwise. Every block with one of these tokens gets the priority. */
  readonly to?: number
  /** 0 to 100; 0 goes first. */
  readonly priority: number
  /** How many milliseconds it lasts; without a limit it lasts for good. */
  readonly forMs?: number
  /** The time of the cache's clock at which it ends, instead of `forMs`. */
  readonly until?: number
}

/** @internal Gives blocks of a sequence a priority. */
export function retain(shared: SharedCache, id: number, options: unknown): void {
  const { from, to, priority, forMs, until } = known<RetainOptions>('options', options, OPTIONS)
  const start = optional(count, 'from', from) ?? 0
  const end = optional(count, 'to', to) ?? shared.native.sequenceLength(id)
  if (to !== undefined && end < start) throw invalid('to', to, `at least ${start}, where it starts`)
  const rank = count('priority', priority, 0, 100)
  if (forMs !== undefined && until !== undefined) throw invalid('until', until, 'none beside forMs')
  const [lasts, limit] = [optional(milliseconds, 'forMs', forMs), optional(milliseconds, 'until', until)]
  const over = lasts === undefined ? limit : milliseconds('forMs', shared.clock.read() + lasts)
  const native = shared.ticked()
  native.retain(id, Math.min(start, end), end, rank, over)
  if (over !== undefined) shared.clock.limit(over)
  shared.changed()
}
