// The cross cache: the keys and values of encodings, which a decoder computes once and every sequence of the encoding uses. The backend keeps them under numbers
// (crossings, cross-tensors); this file decides which of them are kept. If the limit in bytes is exceeded, the least recently used one is dropped. If a
// sequence of its encoding goes on later, the cross cache is computed again from the states that the sequence has. All cross caches of a step are kept until it
// ends.
//
// An entry has the encoder's inputs as well, so that the encoder does not run a second time for the same inputs.
import type { StepSequence } from './backend.js'
import { type Encoding, statesOf } from './encoding.js'
import type { SessionEncodings } from './sessions.js'

/** Statistics of the cross cache of a model. */
export interface CrossCacheStats {
  /** Encodings that are kept, and the bytes of their states, keys and values. */
  readonly encodings: number
  readonly bytes: number
  /** The number of times that keys and values of an encoding were computed. */
  readonly computed: number
  /** The number of runs of the encoder. */
  readonly encoderRuns: number
}

/** The memory of an encoding whose keys and values a backend keeps. */
interface KeptEncoding {
  /** The bytes of the keys and values of one frame. */
  readonly frameBytes: number
  /** The number of copies of its states. */
  readonly copies: 1 | 2
}

interface Entry {
  readonly encoding: Encoding
  /** The hash of the encoder's inputs, if kvtide ran it. */
  inputs: string | undefined
  /** The number under which the backend keeps its keys and values; `undefined` if it does not. */
  number: number | undefined
}

/** @internal The encodings of a step, and calls for its result. */
export interface StepEncodings {
  readonly encodings: SessionEncodings
  done(): void
  failed(): void
}

/** @internal The encodings of a model. */
export class CrossCache {
  readonly #bytesMax: number
  readonly #kept: KeptEncoding
  /** By key, the one that was used longest ago first. */
  readonly #entries = new Map<string, Entry>()
  /** The bytes of all entries. */
  #bytes = 0
  #forgotten: number[] = []
  #next = 0
  #computed = 0
  #encoderRuns = 0

  constructor(bytesMax: number, kept: KeptEncoding) {
    this.#bytesMax = bytesMax
    this.#kept = kept
  }

  stats(): CrossCacheStats {
    return {
      encodings: this.#entries.size,
      bytes: this.#bytes,
      computed: this.#computed,
      encoderRuns: this.#encoderRuns,
    }
  }

  /** The encoding of the encoder's inputs with this hash, if it is kept. */
  find(inputs: string): Encoding | undefined {
    const found = [...this.#entries.values()].find(entry => entry.inputs === inputs)
    if (found !== undefined) this.#use(found)
    return found?.encoding
  }

  /** Keeps an encoding that the encoder has computed. */
  add(inputs: string, encoding: Encoding): void {
    this.#encoderRuns += 1
    const entry = this.#entries.get(encoding.key) ?? { encoding, inputs, number: undefined }
    entry.inputs = inputs
    this.#use(entry)
    this.#evict()
  }

  /** Forgets everything, as if nothing had been computed. */
  reset(): void {
    for (const entry of this.#entries.values()) if (entry.number !== undefined) this.#forgotten.push(entry.number)
    this.#entries.clear()
    this.#bytes = 0
    this.#computed = 0
  }

  /** Takes the numbers of encodings that are no longer needed. */
  forgotten(): number[] {
    const all = this.#forgotten
    this.#forgotten = []
    return all
  }

  /** The encodings of a step. */
  of(sequences: readonly StepSequence[]): StepEncodings {
    const added: Entry[] = []
    const entries = sequences.map(({ encoding }) => {
      const own = encoding as Encoding
      const entry = this.#entries.get(own.key) ?? { encoding: own, inputs: undefined, number: undefined }
      this.#use(entry)
      if (entry.number === undefined) {
        this.#next += 1
        this.#change(entry, () => (entry.number = this.#next))
        added.push(entry)
      }
      return entry
    })
    const encodings = {
      numbers: entries.map(entry => entry.number as number),
      added: added.map(({ encoding, number }) => ({ number: number as number, states: statesOf(encoding) })),
      forget: this.forgotten(),
    }
    return {
      encodings,
      done: () => {
        this.#computed += added.length
        this.#evict()
      },
      // The backend may have taken them or not.
      failed: () => {
        this.#forgotten.push(...encodings.forget)
        for (const entry of added) this.#forget(entry)
      },
    }
  }

  #use(entry: Entry): void {
    this.#change(entry, () => {
      this.#entries.delete(entry.encoding.key)
      this.#entries.set(entry.encoding.key, entry)
    })
  }

  #forget(entry: Entry): void {
    if (entry.number !== undefined) this.#forgotten.push(entry.number)
    this.#change(entry, () => (entry.number = undefined))
  }

  #evict(): void {
    for (const entry of this.#entries.values()) {
      if (this.#bytes <= this.#bytesMax) return
      this.#forget(entry)
      this.#change(entry, () => this.#entries.delete(entry.encoding.key))
    }
  }

  /** Changes an entry, and counts the difference of its bytes. */
  #change(entry: Entry, change: () => void): void {
    const before = this.#bytesOf(entry)
    change()
    this.#bytes += this.#bytesOf(entry) - before
  }

  /** The bytes of an entry that is kept. */
  #bytesOf(entry: Entry): number {
    const { encoding, number } = entry
    if (this.#entries.get(encoding.key) !== entry) return 0
    const { data, frames } = statesOf(encoding)
    const { frameBytes, copies } = this.#kept
    return number === undefined ? data.byteLength : copies * data.byteLength + frames * frameBytes
  }
}
