import { count, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { type Engine, milliseconds } from './engine.js'

const OPTIONS: Names<RetainOptions> = { from: 0, to: 0, priority: 0, forMs: 0, until: 0 }

/**
 * Which blocks make room first, once nobody holds them and others are needed: those of some tokens get a priority.
 *
 * 1. The block of the lowest *rank* goes first; of equal ones the one that was let go of first.
 * 2. A block's own rank is what the {@link EvictionPolicy} makes of its priority and its place in the sequence; without one it is
 *    the priority. That is 50 where none was given, and again from its limit on.
 * 3. A block that is let go of hands its rank on to all blocks before it in the sequence that lets go of it, whether they go with it
 *    or stay: a truncation or a restore, a fork that ends, a writer that gets a copy. A block's rank is the highest of its own and of
 *    what was handed on to it, and hands that on in turn. So no block goes before those that followed it, which could not be found
 *    without it.
 * 4. Ranks with limits are joined: the highest until the limit, the highest from then on; of two limits the later one where the
 *    rank falls, the earlier one where it rises. So it is at no time lower than one that it is made of.
 * 5. A new priority takes away what was handed on to the block until then. The blocks before it keep what they have; itself it may
 *    go before blocks that followed it and that were let go of already.
 * 6. A block that left the window is let go of before those that follow it, which are found without it: it hands its rank on to the
 *    sinks alone.
 * 7. A copy that a writer gets begins with no priority, and with nothing handed on to it.
 */
export interface RetainOptions {
  /** The first token, 0 unless said otherwise. */
  readonly from?: number
  /** The one behind the last, the sequence's length unless said otherwise. Every block counts that has one of the tokens; no tokens are no block. */
  readonly to?: number
  /** From 0, which goes first, to 100. */
  readonly priority: number
  /** For so many milliseconds; for good unless a limit is given. */
  readonly forMs?: number
  /** Until this time of the cache's clock, instead of `forMs`. */
  readonly until?: number
}

/** @internal Says how long the blocks of a sequence are kept. */
export function retain(engine: Engine, id: number, options: unknown): void {
  const { from, to, priority, forMs, until } = known<RetainOptions>('options', options, OPTIONS)
  const start = optional(count, 'from', from) ?? 0
  const end = optional(count, 'to', to) ?? engine.native.sequenceLength(id)
  if (to !== undefined && end < start) throw invalid('to', to, `at least ${start}, where it starts`)
  const rank = count('priority', priority, 0, 100)
  if (forMs !== undefined && until !== undefined) throw invalid('until', until, 'none beside forMs')
  const [lasts, limit] = [optional(milliseconds, 'forMs', forMs), optional(milliseconds, 'until', until)]
  const over = lasts === undefined ? limit : milliseconds('forMs', engine.clock.read() + lasts)
  const native = engine.ticked()
  native.retain(id, Math.min(start, end), end, rank, over)
  if (over !== undefined) engine.clock.limit(over)
  engine.changed()
}
