// Random operations on RollbackCache, against lists of committed and tentative tokens.
import fc from 'fast-check'

import { RollbackCache, type RollbackMark } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { check, Kept, Numbering, refused, same, shapesOn, source, type Shape } from '../support/properties.js'

type Kind = 'append' | 'tree' | 'commit' | 'snapshot' | 'rollback' | 'path' | 'wrong path'
type Step = [Kind, number, number[], boolean]

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.tuple(
    fc.constantFrom<Kind>('append', 'append', 'tree', 'tree', 'commit', 'snapshot', 'rollback', 'path', 'wrong path'),
    fc.integer({ min: 0, max: 6 }),
    fc.array(fc.nat({ max: 30 }), { minLength: 6, maxLength: 6 }),
    fc.boolean(),
  ),
  { maxLength: 40 },
)

const ROOT = -1
const LOST = -2

class Run {
  readonly cache: RollbackCache
  readonly kept: Kept
  committed: number[] = []
  tentative: { token: number; parent: number }[] = []
  #appended = false
  readonly #marks: { mark: RollbackMark; tokens: number[] }[] = []
  readonly #numbering = new Numbering()
  readonly #shape: Shape

  constructor(shape: Shape) {
    this.#shape = shape
    this.cache = new RollbackCache({ device: shape.device })
    this.kept = new Kept(shape)
  }

  get tokens(): number[] {
    return [...this.committed, ...this.tentative.map(({ token }) => token)]
  }

  step([kind, n, random, keep]: Step): void {
    if (kind === 'append' || kind === 'tree')
      return this.#append(Math.max(n, 1), kind === 'tree' ? random : undefined, keep)
    if (kind === 'commit') return this.#commit(n, keep)
    if (kind === 'snapshot') return void this.#marks.push({ mark: this.cache.snapshot(), tokens: [...this.committed] })
    if (kind === 'rollback') return this.#rollback(n)
    return this.#path(kind === 'path' ? this.#someRoute(n, random) : random.slice(0, n % 4))
  }

  #append(n: number, random: number[] | undefined, keep: boolean): void {
    const before = this.tentative.length
    const added = this.#numbering.take(n)
    const parents = added.map((_, place) =>
      random === undefined ? before + place - 1 : ((random[place] ?? 0) % (before + place + 1)) - 1,
    )
    const [k, v] = [source(this.#shape, added, 0), source(this.#shape, added, 1)]
    if (random !== undefined) {
      refused('INVALID_ARGUMENT', () => this.cache.append(k, v, { parents: [...parents, 0] }))
      refused('INVALID_ARGUMENT', () => this.cache.append(k, v, { parents: [...parents.slice(0, -1), before + n - 1] }))
    }
    const shown = this.cache.append(
      k,
      v,
      random === undefined ? {} : { parents: keep ? parents : Int32Array.from(parents) },
    )
    this.tentative.push(...added.map((token, place) => ({ token, parent: parents[place] as number })))
    this.#appended = true
    this.kept.add([shown.k, shown.v], this.tokens, keep)
  }

  #commit(n: number, all: boolean): void {
    const nodes = all ? this.tentative.length : n
    const len = this.committed.length + nodes
    if (nodes > this.tentative.length) return refused('INVALID_ARGUMENT', () => this.cache.commit(len))
    if (this.committed.length > 0) refused('INVALID_ARGUMENT', () => this.cache.commit(this.committed.length - 1))
    if (all) this.cache.commit()
    else this.cache.commit(len)
    this.committed.push(...this.tentative.splice(0, nodes).map(({ token }) => token))
    for (const node of this.tentative) node.parent = Math.max(node.parent - nodes, LOST)
  }

  #rollback(n: number): void {
    const chosen = this.#marks[n % Math.max(this.#marks.length, 1)]
    if (chosen === undefined) return
    const { mark, tokens } = chosen
    const whole = tokens.every((token, place) => this.committed[place] === token)
    if (!whole) return refused('SNAPSHOT_INVALID', () => this.cache.rollback(mark))
    this.cache.rollback(mark)
    this.committed = [...tokens]
    this.tentative = []
  }

  /** Up to `n` nodes, each the child of the one before. */
  #someRoute(n: number, random: number[]): number[] {
    const route: number[] = []
    for (const choice of random.slice(0, n)) {
      const children = this.tentative.flatMap(({ parent }, node) => (parent === (route.at(-1) ?? ROOT) ? [node] : []))
      const next = children[choice % Math.max(children.length, 1)]
      if (next === undefined) break
      route.push(next)
    }
    return route
  }

  #path(route: number[]): void {
    const leads = route.every((node, place) => this.tentative[node]?.parent === (route[place - 1] ?? ROOT))
    if (!leads) return refused('INVALID_PATH', () => this.cache.acceptPath(route))
    this.cache.acceptPath(route.length % 2 === 0 ? route : Uint32Array.from(route))
    this.committed.push(...route.map(node => this.tentative[node]?.token as number))
    this.tentative = []
  }

  check(): void {
    same('lengths', [this.cache.totalLen, this.cache.committedLen], [this.tokens.length, this.committed.length])
    const current = this.cache.current()
    same('nothing', current === null, !this.#appended)
    if (current !== null) this.kept.add([current.k, current.v], this.tokens, this.tokens.length % 2 === 0)
    this.kept.check()
    this.#checkTree()
  }

  /** The mask and the positions of a draft with the parents that there are. */
  #checkTree(): void {
    const parents = this.tentative.map(({ parent }) => parent)
    if (parents.includes(LOST)) return
    const committed = this.committed.length
    const seen = parents.map((parent, node): number[] => {
      const route = [node]
      for (let at = parent; at !== ROOT; at = parents[at] as number) route.push(at)
      return route
    })
    same(
      'positions',
      Array.from(this.cache.treePositions(parents)),
      seen.map(route => committed + route.length - 1),
    )
    const mask = Array.from(this.cache.treeMask(parents).toArray(), value => value === 0)
    const columns = [...this.committed.keys(), ...parents.map((_, node) => committed + node)]
    same(
      'mask',
      mask,
      seen.flatMap(route => columns.map(column => column < committed || route.includes(column - committed))),
    )
  }
}

onDevices('RollbackCache shows what lists of committed and tentative tokens say', (t, device) => {
  check(t, fc.tuple(shapesOn(device), steps), ([shape, sequence]) => {
    const run = new Run(shape)
    for (const step of sequence) {
      run.step(step)
      run.check()
    }
    run.cache.dispose()
  })
})
