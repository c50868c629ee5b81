// Random operations on KvCache, against a list of the tokens in it.
import fc from 'fast-check'

import { KvCache, type Snapshot } from '../../index.js'
import { onDevices } from '../support/devices.js'
import {
  check,
  Kept,
  Numbering,
  ownsItsBuffer,
  refused,
  same,
  shapesOn,
  source,
  type Shape,
} from '../support/properties.js'

type Kind = 'update' | 'fused' | 'truncate' | 'reset' | 'snapshot' | 'restore' | 'forget' | 'again'
type Step = [Kind, number, boolean]

const sizes = fc.record({
  initialCapacity: fc.integer({ min: 0, max: 6 }),
  maxSeqLen: fc.integer({ min: 1, max: 24 }),
  stableAddresses: fc.boolean(),
})
const often: Kind[] = ['update', 'fused', 'truncate', 'snapshot', 'restore']
const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.tuple(
    fc.oneof(
      { weight: 9, arbitrary: fc.constantFrom(...often) },
      { weight: 1, arbitrary: fc.constantFrom<Kind>('reset', 'forget', 'again') },
    ),
    fc.integer({ min: 0, max: 9 }),
    fc.boolean(),
  ),
  { maxLength: 40 },
)

class Run {
  cache: KvCache
  kept: Kept
  tokens: number[] = []
  readonly snapshots: { snapshot: Snapshot; tokens: number[] }[] = []
  readonly #numbering = new Numbering()
  readonly #make: () => KvCache
  readonly #shape: Shape

  constructor(size: { initialCapacity: number; maxSeqLen: number; stableAddresses: boolean }, shape: Shape) {
    this.#shape = shape
    this.#make = () =>
      new KvCache({
        device: shape.device,
        batchSize: shape.batch,
        numKvHeads: shape.heads,
        headDim: shape.dim,
        dtype: shape.dtype,
        ...size,
      })
    this.cache = this.#make()
    this.kept = new Kept(shape)
  }

  step([kind, n, keep]: Step): void {
    const { cache, tokens, snapshots } = this
    if (kind === 'update' || kind === 'fused') {
      this.#append(kind, n, keep)
    } else if (kind === 'truncate') {
      if (n > tokens.length) return refused('CANNOT_ROLL_BACK', () => cache.truncate(n))
      cache.truncate(n)
      tokens.length = n
    } else if (kind === 'reset') {
      cache.reset()
      tokens.length = 0
    } else if (kind === 'snapshot') {
      snapshots.push({ snapshot: cache.snapshot(), tokens: [...tokens] })
    } else if (kind === 'again') {
      // Another cache goes on, with the snapshots of this one.
      cache.dispose()
      this.cache = this.#make()
      this.kept = new Kept(this.#shape)
      this.tokens = []
    } else {
      this.#withSnapshot(kind, n)
    }
  }

  #append(kind: 'update' | 'fused', n: number, keep: boolean): void {
    const { cache, tokens } = this
    const added = this.#numbering.take(n)
    const [k, v] = [source(this.#shape, added, 0), source(this.#shape, added, 1)]
    const call = (): ReturnType<KvCache['update']> => (kind === 'fused' ? cache.updateFused(k, v) : cache.update(k, v))
    if (tokens.length + n > cache.maxSeqLen) return refused('CACHE_OVERFLOW', call)
    const shown = call()
    tokens.push(...added)
    this.kept.add([shown.k, shown.v], tokens, keep)
  }

  #withSnapshot(kind: Kind, n: number): void {
    const place = n % Math.max(this.snapshots.length, 1)
    const chosen = this.snapshots[place]
    if (chosen === undefined) return
    if (kind === 'forget') {
      chosen.snapshot.dispose()
      refused('DISPOSED', () => this.cache.restore(chosen.snapshot))
      this.snapshots.splice(place, 1)
    } else {
      this.cache.restore(chosen.snapshot)
      this.tokens = [...chosen.tokens]
    }
  }

  end(): void {
    this.kept.end()
    for (const { snapshot } of this.snapshots) snapshot.dispose()
    // What it shows next is of the memory that it has now.
    this.cache.reset()
    this.tokens = []
    this.#append('update', 1, false)
    ownsItsBuffer(this.cache.stats())
    this.cache.dispose()
  }

  check(): void {
    const { cache, tokens } = this
    same('seqLen', [cache.seqLen, cache.isEmpty], [tokens.length, tokens.length === 0])
    if (cache.capacity < tokens.length || cache.capacity > cache.maxSeqLen)
      throw new Error(`the capacity is ${cache.capacity}`)
    if (tokens.length === 0) {
      refused('CACHE_EMPTY', () => cache.getKv())
    } else {
      const { k, v } = cache.getKv()
      this.kept.add([k, v], tokens, tokens.length % 3 === 0)
    }
    this.kept.check()
    const { usedBytes, heldBytes, bufferBytes } = cache.stats()
    if (usedBytes !== heldBytes + bufferBytes)
      throw new Error(`${usedBytes} used, ${heldBytes} held, ${bufferBytes} in the buffer`)
  }
}

onDevices('KvCache shows what a list of its tokens says', (t, device) => {
  check(t, fc.tuple(sizes, shapesOn(device), steps), ([size, shape, sequence]) => {
    const run = new Run(size, shape)
    for (const step of sequence) {
      run.step(step)
      run.check()
    }
    run.end()
  })
})
