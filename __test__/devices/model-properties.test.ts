// Random operations on the cache of a model, against lists of tokens: what every layer sees is attention over all of them.
import fc from 'fast-check'

import { isKvTideError, PagedKvCache, type Sequence, type Snapshot, type Transaction } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { HYBRID, layersOf, runStep } from '../support/model-rows.js'
import { check } from '../support/properties.js'

const OPERATIONS = [
  'create',
  'drop',
  'step',
  'step',
  'step',
  'together',
  'append',
  'undone',
  'begin',
  'commit',
  'rollback',
  'fork',
  'hold',
  'restore',
  'truncate',
] as const
type Operation = readonly [(typeof OPERATIONS)[number], number, number]

const operations: fc.Arbitrary<Operation[]> = fc.array(
  fc.tuple(fc.constantFrom(...OPERATIONS), fc.nat({ max: 30 }), fc.nat({ max: 7 })),
  { maxLength: 40 },
)

/** A sequence, what it should hold, and where its open transactions begin. */
interface Known {
  readonly sequence: Sequence
  tokens: number[]
  readonly open: { readonly draft: Transaction; readonly start: number }[]
}

/** A layer that keeps every token. */
const FULL = HYBRID.layers.findIndex(({ kind }) => kind === 'full')

class Run {
  readonly cache: PagedKvCache
  readonly #known: Known[] = []
  readonly #held: { readonly snapshot: Snapshot; readonly tokens: readonly number[] }[] = []
  #next = 1

  constructor(cache: PagedKvCache) {
    this.cache = cache
  }

  #take(count: number): number[] {
    return Array.from({ length: count }, () => this.#next++ % 499)
  }

  /** A step of some sequences, each with new tokens; it is committed, or leaves nothing. */
  #step(of: readonly Known[], count: number, isCommitted: boolean): void {
    const histories = of.map(({ tokens }) => [...tokens, ...this.#take(count)])
    using step = this.cache.beginStep({
      sequences: of.map(({ sequence }) => sequence),
      offsets: Array.from({ length: of.length + 1 }, (_, place) => place * count),
    })
    const off = runStep(step, histories)
    if (off > 1e-5) throw new Error(`attention is off by ${off}`)
    if (!isCommitted) return
    step.commit()
    for (const [place, known] of of.entries()) known.tokens = histories[place] as number[]
  }

  operate([name, choice, size]: Operation): void {
    const known = this.#known[choice % Math.max(this.#known.length, 1)]
    if (name === 'create' || known === undefined)
      this.#known.push({ sequence: this.cache.openSequence(), tokens: [], open: [] })
    else if (name === 'step') this.#step([known], size + 1, true)
    else if (name === 'undone') this.#step([known], size + 1, false)
    else if (name === 'together') this.#step(this.#known, 1, true)
    else if (name === 'begin') this.#begin(known)
    else if (name === 'commit' || name === 'rollback') this.#end(known, name === 'commit', size)
    else if (known.open.length === 0) this.#alone(name, known, choice, size)
    this.#compare()
  }

  #begin({ sequence, tokens, open }: Known): void {
    open.push({ draft: open.at(-1)?.draft.begin() ?? sequence.begin(), start: tokens.length })
  }

  #end(known: Known, isCommitted: boolean, size: number): void {
    const last = known.open.pop()
    if (last === undefined) return
    const kept = isCommitted ? Math.min(size, known.tokens.length - last.start) : 0
    if (isCommitted) last.draft.commit(kept)
    else last.draft.rollback()
    known.tokens = known.tokens.slice(0, last.start + kept)
  }

  /** The operations of a sequence without an open transaction. */
  #alone(name: Operation[0], known: Known, choice: number, size: number): void {
    const { sequence, tokens } = known
    if (name === 'append') {
      const more = this.#take(size + 1)
      sequence.append({ layers: layersOf(more) })
      known.tokens = [...tokens, ...more]
    } else if (name === 'fork') this.#known.push({ sequence: sequence.fork(), tokens: [...tokens], open: [] })
    else if (name === 'hold') this.#held.push({ snapshot: sequence.snapshot(), tokens: [...tokens] })
    else if (name === 'restore') {
      const held = this.#held[choice % Math.max(this.#held.length, 1)]
      if (held === undefined) return
      sequence.restore(held.snapshot)
      known.tokens = [...held.tokens]
    } else if (name === 'truncate') this.#truncate(known, Math.max(tokens.length - size, 0))
    else {
      sequence.drop()
      this.#known.splice(this.#known.indexOf(known), 1)
    }
  }

  /** A window may have let go of what would be seen again: then nothing has changed. */
  #truncate(known: Known, length: number): void {
    try {
      known.sequence.truncate(length)
      known.tokens = known.tokens.slice(0, length)
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
    }
  }

  #compare(): void {
    this.cache.checkInvariants()
    for (const { sequence, tokens, open } of this.#known) {
      const found = [sequence.length, sequence.committedLength]
      const wanted = [tokens.length, open[0]?.start ?? tokens.length]
      if (found.join() !== wanted.join()) throw new Error(`lengths are ${found.join()}, not ${wanted.join()}`)
      const kv = sequence.kv(FULL)
      const shown = kv?.k.shape[2] ?? 0
      if (shown !== tokens.length) throw new Error(`${shown} tokens are shown of ${tokens.length}`)
      kv?.k.dispose()
      kv?.v.dispose()
    }
    const { usedBytes, heldBytes, bufferBytes } = this.cache.stats()
    const isHeld = this.#held.length > 0 || heldBytes === 0
    if (usedBytes !== bufferBytes + heldBytes || !isHeld)
      throw new Error(`${usedBytes} bytes used, ${heldBytes} held, ${bufferBytes} in buffers`)
  }
}

for (const blockSize of [4, 1]) {
  onDevices(`blocks of ${blockSize}: every layer sees what it should, whatever was done before`, (t, device) => {
    check(t, operations, steps => {
      using cache = new PagedKvCache({ model: HYBRID, device, blockSize, capacity: 1600 / blockSize })
      const run = new Run(cache)
      for (const step of steps) run.operate(step)
    })
  })
}
