// Random operations on PagedKvCache, against a map of every token that was written.
import fc from 'fast-check'

import { PagedKvCache } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { check, expected, Numbering, refused, same, shapesOn, type Shape } from '../support/properties.js'

type Kind = 'create' | 'drop' | 'ensure' | 'write' | 'read'
type Step = [Kind, number, number, number]

const sizes = fc.record({
  capacity: fc.integer({ min: 0, max: 6 }),
  blockSize: fc.integer({ min: 1, max: 4 }),
  numLayers: fc.integer({ min: 1, max: 3 }),
})
const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.tuple(
    fc.constantFrom<Kind>('create', 'drop', 'ensure', 'write', 'write', 'write', 'write', 'read'),
    fc.nat({ max: 30 }),
    fc.nat({ max: 12 }),
    fc.nat({ max: 3 }),
  ),
  { maxLength: 60 },
)

/** The content of one sequence. */
interface Sequence {
  blocks: number
  length: number
  readonly written: Map<string, number>
}

class Run {
  readonly cache: PagedKvCache
  readonly #sequences = new Map<number, Sequence>()
  readonly #numbering = new Numbering()
  readonly #shape: Shape
  readonly #size: { capacity: number; blockSize: number; numLayers: number }
  #next = 0

  constructor(size: { capacity: number; blockSize: number; numLayers: number }, shape: Shape) {
    this.#size = size
    this.#shape = { ...shape, batch: 1 }
    this.cache = new PagedKvCache({
      ...size,
      numKvHeads: shape.heads,
      headDim: shape.dim,
      dtype: shape.dtype,
      device: shape.device,
    })
  }

  get #free(): number {
    return this.#size.capacity - [...this.#sequences.values()].reduce((blocks, sequence) => blocks + sequence.blocks, 0)
  }

  step([kind, choice, place, layer]: Step): void {
    const id = choice % (this.#next + 1)
    const sequence = this.#sequences.get(id)
    if (kind === 'create') {
      same('id', this.cache.createSequence(), this.#next)
      this.#sequences.set(this.#next, { blocks: 0, length: 0, written: new Map() })
      this.#next += 1
    } else if (sequence === undefined) {
      this.#unknown(id)
    } else if (kind === 'drop') {
      this.cache.dropSequence(id)
      this.#sequences.delete(id)
    } else if (kind === 'ensure') {
      this.#grow(sequence, place, () => this.cache.ensureCapacity(id, place))
    } else if (kind === 'write') {
      this.#write(id, sequence, place, layer)
    } else {
      this.#read(id, sequence, place, layer % this.#size.numLayers)
    }
  }

  #unknown(id: number): void {
    refused('SEQUENCE_NOT_FOUND', () => this.cache.dropSequence(id))
    refused('SEQUENCE_NOT_FOUND', () => this.cache.ensureCapacity(id, 1))
    refused('SEQUENCE_NOT_FOUND', () => this.cache.readKv(id, 0, 0))
    same('an unknown sequence', [this.cache.sequenceLength(id), this.cache.sequenceCapacity(id)], [0, 0])
  }

  /** Runs what needs blocks for `tokens` tokens; true when there were enough. */
  #grow(sequence: Sequence, tokens: number, call: () => void): boolean {
    const missing = Math.ceil(tokens / this.#size.blockSize) - sequence.blocks
    if (missing > this.#free) {
      refused('OUT_OF_BLOCKS', call)
      return false
    }
    call()
    sequence.blocks += Math.max(missing, 0)
    return true
  }

  #write(id: number, sequence: Sequence, pos: number, layer: number): void {
    const [token] = this.#numbering.take(1) as [number]
    const [key, value] = [expected(this.#shape, [token], 0), expected(this.#shape, [token], 1)]
    const call = (): void => this.cache.writeKv(id, layer, pos, key, value)
    if (layer >= this.#size.numLayers) return refused('INVALID_ARGUMENT', call)
    if (!this.#grow(sequence, pos + 1, call)) return
    sequence.length = Math.max(sequence.length, pos + 1)
    sequence.written.set(`${layer} ${pos}`, token)
  }

  #read(id: number, sequence: Sequence, pos: number, layer: number): void {
    const token = sequence.written.get(`${layer} ${pos}`)
    if (token === undefined) return refused('POSITION_OUT_OF_RANGE', () => this.cache.readKv(id, layer, pos))
    const found = this.cache.readKv(id, layer, pos)
    for (const [part, data] of [found.key, found.value].entries()) {
      const wanted = expected(this.#shape, [token], part)
      if (Buffer.compare(new Uint8Array(data.buffer), new Uint8Array(wanted.buffer)) !== 0)
        throw new Error(`${id} ${layer} ${pos} shows something else`)
    }
  }

  check(): void {
    const { cache } = this
    const { capacity, blockSize, numLayers } = this.#size
    same('blocks', [cache.freeCount, cache.totalCount], [this.#free, capacity])
    same('utilization', cache.poolUtilization(), capacity === 0 ? 0 : (capacity - this.#free) / capacity)
    same('ids', cache.sequenceIds(), [...this.#sequences.keys()])
    for (const [id, sequence] of this.#sequences) {
      same(
        'a sequence',
        [cache.sequenceLength(id), cache.sequenceCapacity(id)],
        [sequence.length, sequence.blocks * blockSize],
      )
      for (let layer = 0; layer < numLayers; layer++) {
        for (let pos = 0; pos <= sequence.length; pos++) this.#read(id, sequence, pos, layer)
      }
    }
  }
}

onDevices('PagedKvCache shows what a map of all written tokens says', (t, device) => {
  check(t, fc.tuple(sizes, shapesOn(device), steps), ([size, shape, sequence]) => {
    const run = new Run(size, shape)
    for (const step of sequence) run.step(step)
    run.check()
    run.cache.dispose()
  })
})
