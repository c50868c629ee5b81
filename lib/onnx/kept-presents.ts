// Tracks which presents the session thread keeps of which sequences, by numbers: each step produces new ones. Presents can be the next pasts of a sequence as far
// as its ids and its encoding are still the same; rows of drafted tokens that were rejected are cut off. Presents of at most `KEPT_MAX` sequences are kept, the most recent ones.
import type { ModelStep } from './backend.js'
import type { SessionPasts } from './sessions.js'
import { isSameIds } from './token-log.js'

/** The maximum number of sequences whose presents are kept. */
const KEPT_MAX = 16

/** Presents, and the ids of their tokens. */
interface Kept {
  readonly ids: Uint32Array
  readonly encoding: string | undefined
  readonly number: number
}

/** @internal The presents of a step, and calls for its result. */
export interface StepPresents {
  readonly pasts: SessionPasts
  /** The step was computed: its presents belong to its sequences. */
  done(): void
  /** The step has failed: its presents are unusable. */
  failed(): void
}

/** @internal The presents of the sequences of a model. */
export class KeptPresents {
  readonly #kept = new Map<number, Kept>()
  #forgotten: number[] = []
  #next = 0

  /** The pasts of a step. O(tokens of its sequences). */
  of({ sequences, offsets, ids }: ModelStep): StepPresents {
    const next = sequences.map(({ sequence, before, encoding }, place) => {
      const kept = this.#kept.get(sequence.id)
      const isSame =
        kept !== undefined && kept.encoding === encoding?.key && isSameIds(kept.ids.subarray(0, before.length), before)
      const from = isSame ? kept.number : undefined
      if (kept !== undefined && from === undefined) this.#forget(sequence.id)
      const own = ids.subarray(offsets[place], offsets[place + 1])
      const all = new Uint32Array(before.length + own.length)
      all.set(before)
      all.set(own, before.length)
      this.#next += 1
      return { id: sequence.id, encoding: encoding?.key, ids: all, length: before.length, from, keep: this.#next }
    })
    const pasts = { sequences: next.map(({ length, from, keep }) => ({ length, from, keep })), forget: this.#forgotten }
    this.#forgotten = []
    return {
      pasts,
      done: () => {
        for (const { id, encoding, ids: all, keep } of next) this.#keep(id, { ids: all, encoding, number: keep })
      },
      failed: () => {
        for (const { id, keep } of next) {
          this.#forget(id)
          this.#forgotten.push(keep)
        }
      },
    }
  }

  #forget(id: number): void {
    const kept = this.#kept.get(id)
    if (kept !== undefined) this.#forgotten.push(kept.number)
    this.#kept.delete(id)
  }

  /** Keeps presents; the sequence that was used longest ago is dropped if there are too many. */
  #keep(id: number, kept: Kept): void {
    this.#kept.delete(id)
    this.#kept.set(id, kept)
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT_MAX) return
      this.#forget(oldest)
    }
  }
}
