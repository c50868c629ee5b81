// The tokens of a step: the share of each task, and the rows of logits that are wanted.
import type { Transaction } from '../sequences/transaction.js'
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
