import { count, known, type Names, optional } from './check.js'
import { invalid } from './errors.js'
import { milliseconds } from './paged-clock.js'
import type { SequencesEngine } from './paged-engine.js'

const OPTIONS: Names<RetainOptions> = { from: 0, to: 0, priority: 0, forMs: 0, until: 0 }

/** How long blocks are kept once nobody holds them. */
export interface RetainOptions {
  /** The first token, 0 unless said otherwise. */
  readonly from?: number
  /** The one behind the last, the sequence's length unless said otherwise. */
  readonly to?: number
  /** From 0, which goes first, to 100; 50 where nothing was said. What follows from it an {@link EvictionPolicy} can say. */
  readonly priority: number
  /** For so many milliseconds; for good unless a limit is given. */
  readonly forMs?: number
  /** Until this time of the cache's clock, instead of `forMs`. */
  readonly until?: number
}

/** @internal Says how long the blocks of a sequence are kept. */
export function retain(engine: SequencesEngine, id: number, options: unknown): void {
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
