// Attention over what a window shows, unless it names another, against the tokens that ever came.
import fc from 'fast-check'

import {
  attend,
  RotatingKvCache,
  type AttendOptions,
  type HostTensor,
  type Kv,
  type KvTransaction,
} from '../../index.js'
import { onDevices } from '../support/devices.js'
import { check, refused, same } from '../support/properties.js'
import { span } from '../support/tokens.js'

const options = fc.record({
  maxSeqLen: fc.integer({ min: 1, max: 6 }),
  sinks: fc.integer({ min: 0, max: 2 }),
  slack: fc.integer({ min: 0, max: 5 }),
})

type Step = ['append' | 'draft' | 'tree' | 'keep' | 'drop' | 'ask', number, number[], boolean]

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.tuple(
    fc.constantFrom(
      'append' as const,
      'append' as const,
      'draft' as const,
      'tree' as const,
      'keep' as const,
      'drop' as const,
      'ask' as const,
      'ask' as const,
    ),
    fc.oneof(fc.constantFrom(1, 2), fc.integer({ min: 0, max: 10 })),
    fc.array(fc.nat({ max: 20 }), { minLength: 10, maxLength: 10 }),
    fc.boolean(),
  ),
  { maxLength: 25 },
)

const host = (values: readonly number[]): HostTensor => ({
  data: Float32Array.from(values),
  shape: [1, 1, values.length, 1],
})
const zeros = (count: number): HostTensor => host(span(0, count).map(() => 0))

/** Keys are zeros, so that a query gets the mean of the values it sees: powers of two, of which no two sets have the same. */
class World {
  readonly cache: RotatingKvCache
  readonly window: number
  readonly sinks: number
  #count = 0
  #tokens: number[] = []
  #draft: KvTransaction | undefined
  #parents: number[] = []
  #branched = false

  constructor(cache: RotatingKvCache) {
    this.cache = cache
    this.window = cache.maxSeqLen
    this.sinks = cache.sinks
  }

  get #committed(): number {
    return this.#tokens.length - this.#parents.length
  }

  step([name, n, random, looks]: Step): void {
    if (name === 'append' && this.#draft === undefined) {
      const values = this.#take(n)
      this.#agrees(this.#look(this.cache.append(zeros(n), host(values)), looks), n, {})
    } else if (name === 'draft' || name === 'tree') {
      this.#append(n, name === 'tree' ? random : undefined, looks)
    } else if (name === 'keep' || name === 'drop') {
      this.#end(name === 'keep' ? n : 0)
    } else if (name === 'ask' && !this.#branched && this.#tokens.length > 0) {
      this.#ask((n % Math.min(this.#tokens.length, 5)) + 1, looks)
    }
  }

  /** A result that someone has looked at is another object underneath. */
  #look(kv: Kv, looks: boolean): Kv {
    if (looks) same('rank', kv.k.shape.length, kv.v.shape.length)
    return kv
  }

  #take(n: number): number[] {
    const values = span(0, n).map(() => 2 ** (this.#count++ % 20))
    this.#tokens.push(...values)
    return values
  }

  #append(n: number, random: readonly number[] | undefined, looks: boolean): void {
    this.#draft ??= this.cache.begin()
    const first = this.#parents.length
    const parents = span(0, n).map(place =>
      random === undefined ? first + place - 1 : ((random[place] as number) % (first + place + 1)) - 1,
    )
    const values = this.#take(n)
    const shown = this.#look(this.#draft.append(zeros(n), host(values), random === undefined ? {} : { parents }), looks)
    this.#parents.push(...parents)
    this.#branched ||= random !== undefined && n > 0
    if (!this.#branched) return this.#agrees(shown, n, {})
    this.#agrees(shown, n, { tree: this.#parents, treeOffsets: [0, this.#parents.length] })
    const mask = this.#draft.treeMask()
    const rows = mask.shape[0] as number
    this.#agrees(shown, n, { mask: mask.narrow(0, rows - n, n), causal: looks })
  }

  #end(kept: number): void {
    const count = Math.min(kept, this.#parents.length)
    this.#draft?.commit(count)
    this.#tokens.length = this.#committed + count
    this.#draft = undefined
    this.#parents = []
    this.#branched = false
  }

  #ask(queries: number, looks: boolean): void {
    const kv = this.#look(this.cache.currentData() as Kv, looks)
    const first = this.#tokens.length - queries
    const [gone, from] = [this.#tokens.length - this.window, first + 1 - this.window]
    const seesGone = span(first, first + queries).some(
      position => position >= this.sinks && position + 1 - this.window < gone,
    )
    if (gone > this.sinks && from < gone && seesGone)
      return refused('INVALID_ARGUMENT', () => attend(zeros(queries), kv))
    this.#agrees(kv, queries, {})
  }

  #ancestors(node: number): number[] {
    return node < 0 ? [] : [node, ...this.#ancestors(this.#parents[node] as number)]
  }

  /** The tokens that the last ones see, by number. */
  #seen(token: number): number[] {
    const committed = this.#branched ? this.#committed : this.#tokens.length
    const line = token < committed ? [] : this.#ancestors(token - committed)
    const before = span(0, token < committed ? token + 1 : committed).map(at => [at, at])
    const nodes = line.map(node => [committed + node, committed + this.#ancestors(node).length - 1])
    const position = token < committed ? token : committed + line.length - 1
    return [...before, ...nodes]
      .filter(([, at]) => position - (at as number) < this.window || (at as number) < this.sinks)
      .map(([of]) => of as number)
  }

  #agrees(kv: Kv, queries: number, given: AttendOptions): void {
    const found = Array.from(attend(zeros(queries), kv, given).out.toFloat32Array())
    const wanted = span(this.#tokens.length - queries, this.#tokens.length).map(token => {
      const seen = this.#seen(token)
      return seen.reduce((sum, at) => sum + (this.#tokens[at] as number), 0) / seen.length
    })
    same(
      'means',
      found.map((value, query) => Math.abs(value - (wanted[query] as number)) <= 1e-5 * (wanted[query] as number)),
      wanted.map(() => true),
    )
  }
}

onDevices('attention over a window sees what a list of all tokens says', (t, device) => {
  check(t, fc.tuple(options, steps), ([made, sequence]) => {
    using cache = new RotatingKvCache({ ...made, device })
    const world = new World(cache)
    for (const step of sequence) world.step(step)
  })
})
