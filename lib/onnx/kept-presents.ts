import type { ModelStep } from './backend.js'
import type { SessionPasts } from './sessions.js'

/**
 * Which presents a session has kept of which sequences, by numbers: each step has new ones. Presents of a sequence are its next pasts only if its
 * ids are still the same; they are kept of as many sequences as {@link KEPT_MAX} says, those of the last steps.
 */

/** Of how many sequences presents are kept. */
const KEPT_MAX = 16

/** Presents, and the ids that they are of. */
interface Kept {
  readonly ids: Uint32Array
  readonly number: number
}

/** @internal What has become of a step's presents. */
export interface StepPresents {
  readonly pasts: SessionPasts
  /** The step was computed: they are those of its sequences. */
  done(): void
  /** It was not: nothing is known of them. */
  failed(): void
}

/** @internal The presents of the sequences of a model. */
export class KeptPresents {
  readonly #kept = new Map<number, Kept>()
  #forgotten: number[] = []
  #next = 0

  /** The pasts of a step. O(tokens of its sequences). */
  of({ sequences, offsets, ids }: ModelStep): StepPresents {
    const next = sequences.map(({ sequence, before }, place) => {
      const kept = this.#kept.get(sequence.id)
      const from = kept !== undefined && isSame(kept.ids, before) ? kept.number : undefined
      if (kept !== undefined && from === undefined) this.#forget(sequence.id)
      const own = ids.subarray(offsets[place], offsets[place + 1])
      const all = new Uint32Array(before.length + own.length)
      all.set(before)
      all.set(own, before.length)
      this.#next += 1
      return { id: sequence.id, ids: all, length: before.length, from, keep: this.#next }
    })
    const pasts = { sequences: next.map(({ length, from, keep }) => ({ length, from, keep })), forget: this.#forgotten }
    this.#forgotten = []
    return {
      pasts,
      done: () => {
        for (const { id, ids: all, keep } of next) this.#keep(id, { ids: all, number: keep })
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

  /** The sequence that was kept longest makes room. */
  #keep(id: number, kept: Kept): void {
    this.#kept.delete(id)
    this.#kept.set(id, kept)
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT_MAX) return
      this.#forget(oldest)
    }
  }
}

function isSame(one: Uint32Array, other: Uint32Array): boolean {
  return one.length === other.length && one.every((id, place) => id === other[place])
}
