// The tokens of a step: the share of each task, the transactions of drafted tokens, and the rows of logits that are wanted.
import { isKvTideError } from '../errors/errors.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { openOn, type Transaction } from '../sequences/transaction.js'
import { joinedRows, type StepEmbeds, type StepRows } from './spans.js'
import type { Drafted, Task } from './task.js'

/** @internal A task's tokens in a step. */
export interface StepPart {
  readonly task: Task
  readonly tokens: Uint32Array
  readonly drafted: Drafted
  /** The transaction that contains the drafted tokens until they are verified. */
  readonly draft: Transaction | undefined
}

/** @internal Opens a transaction for drafted tokens. */
export function withDraft(shared: SharedCache, part: StepPart): StepPart {
  return part.drafted.tokens.length === 0 ? part : { ...part, draft: openOn(shared, part.task.state.sequence.id) }
}

/**
 * @internal Commits the accepted part of a draft. If layers keep states that were not kept after each drafted token, a partly accepted draft is rolled back as a whole, and the
 * next step computes the accepted tokens again. Returns false in that case.
 */
export function commitDraft(draft: Transaction, count: number): boolean {
  try {
    draft.commit(count)
    return true
  } catch (error) {
    if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
    draft.dispose()
    return false
  }
}

/** @internal The tokens of a step in one array, and the rows of logits that are wanted. */
export class WantedRows {
  readonly offsets: Int32Array
  readonly ids: Uint32Array
  readonly positions: Int32Array
  readonly rows: Int32Array
  /** Rows of embeddings that are given. */
  readonly embeds: StepEmbeds | undefined
  /** For each part, its first row, its number of rows, and the position of the first row. */
  readonly firstRows: number[] = []
  readonly rowCounts: number[] = []
  readonly firstPositions: number[] = []

  /** `positionRows` is the number of rows of positions that the model takes. */
  constructor(parts: readonly StepPart[], positionRows: 1 | 3 = 1) {
    const lengths = parts.map(({ tokens, drafted }) => tokens.length + drafted.tokens.length)
    const total = lengths.reduce((sum, length) => sum + length, 0)
    this.offsets = new Int32Array(parts.length + 1)
    this.ids = new Uint32Array(total)
    this.positions = new Int32Array(positionRows * total)
    const given: StepRows = { places: [], rows: [] }
    const rows: number[] = []
    for (const [place, { task, tokens, drafted }] of parts.entries()) {
      const [start, length] = [this.offsets[place] as number, lengths[place] as number]
      const { computed, firstPosition, spans } = task.state
      this.offsets[place + 1] = start + length
      this.ids.set(tokens, start)
      this.ids.set(drafted.tokens, start + tokens.length)
      const placing = { at: start, from: computed, count: length, offset: firstPosition }
      spans.place(this.positions, placing, total, positionRows)
      spans.collect(placing, given)
      const first = Math.max(task.firstRow, computed)
      this.firstRows.push(rows.length)
      this.firstPositions.push(first)
      for (let position = first; position < computed + length; position++) rows.push(start + position - computed)
      this.rowCounts.push(Math.max(0, computed + length - first))
    }
    this.embeds = joinedRows(given)
    // A step in the middle of prompts needs no logits, but a graph returns at least one row.
    this.rows = Int32Array.from(rows.length === 0 ? [total - 1] : rows)
  }
}
