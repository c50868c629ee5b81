// Random transactions on every kind of cache, against lists of every token.
import fc from 'fast-check'

import { KvCache, RollbackCache, RotatingKvCache, type KvTransaction } from '../../index.js'
import { onDevices } from '../support/devices.js'
import {
  check,
  Kept,
  Numbering,
  ownsItsBuffer,
  refused,
  route,
  same,
  shapesOn,
  type Shape,
} from '../support/properties.js'
import { appended, KINDS, pair, retained, type Kind, type Subject, type Window } from '../support/transactions.js'

type Name = 'feed' | 'begin' | 'draft' | 'tree' | 'commit' | 'path' | 'wrong path' | 'drop' | 'change'
type Step = [Name, number, number[], boolean]

const windows: fc.Arbitrary<Window> = fc.record({
  maxSeqLen: fc.integer({ min: 1, max: 7 }),
  sinks: fc.integer({ min: 0, max: 3 }),
  slack: fc.integer({ min: 0, max: 6 }),
})

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.tuple(
    fc.constantFrom<Name>(
      'feed',
      'feed',
      'begin',
      'begin',
      'draft',
      'draft',
      'tree',
      'tree',
      'commit',
      'path',
      'path',
      'wrong path',
      'drop',
      'change',
    ),
    fc.oneof(
      { weight: 5, arbitrary: fc.integer({ min: 0, max: 5 }) },
      { weight: 1, arbitrary: fc.integer({ min: 6, max: 20 }) },
    ),
    fc.array(fc.nat({ max: 30 }), { minLength: 6, maxLength: 6 }),
    fc.boolean(),
  ),
  { maxLength: 50 },
)

interface Draft {
  readonly open: KvTransaction
  readonly nodes: { token: number; parent: number }[]
  branched: boolean
}

class Run {
  readonly kind: Kind
  readonly shape: Shape
  readonly window: Window
  readonly cache: Subject
  readonly kept: Kept
  readonly #numbering = new Numbering()
  readonly #tokens: number[] = []
  readonly #drafts: Draft[] = []

  constructor(kind: Kind, shape: Shape, window: Window) {
    this.kind = kind
    this.shape = shape
    this.window = window
    this.cache = kind.make(shape, window)
    this.kept = new Kept(shape)
  }

  get everything(): number[] {
    return [...this.#tokens, ...this.#drafts.flatMap(({ nodes }) => nodes.map(({ token }) => token))]
  }

  step([name, n, random, keep]: Step): void {
    const draft = this.#drafts.at(-1)
    if (name === 'begin') {
      const open = (draft?.open ?? this.cache).begin(keep ? { maxTokens: n } : {})
      this.#drafts.push({ open, nodes: [], branched: false })
    } else if (draft === undefined) {
      this.#feed(n, keep)
    } else if (name === 'draft' || name === 'tree') {
      this.#append(draft, name === 'tree' ? random.slice(0, n) : undefined, n, keep)
    } else if (name === 'commit') {
      this.#commit(draft, n, keep)
    } else if (name === 'path' || name === 'wrong path') {
      this.#path(draft, name === 'path' ? route(draft, random.slice(0, n)) : random.slice(0, n % 4))
    } else if (name === 'drop') {
      const place = n % this.#drafts.length
      this.#drafts[place]?.open.dispose()
      this.#drafts.length = place
    } else {
      const changes = Object.values(this.kind.changes(this.cache, ...pair(this.shape, [1])))
      refused('TRANSACTION_OPEN', changes[n % changes.length] as () => unknown)
    }
  }

  #feed(n: number, keep: boolean): void {
    const added = this.#numbering.take(n)
    const { k, v } = this.kind.feed(this.cache, ...pair(this.shape, added))
    this.kept.add([k, v], appended(this.kind, this.window, this.#tokens, added), keep)
    this.#tokens.push(...added)
  }

  #append(draft: Draft, random: readonly number[] | undefined, n: number, keep: boolean): void {
    const before = this.everything
    const first = draft.nodes.length
    const added = this.#numbering.take(random?.length ?? n)
    const parents = added.map((_, place) =>
      random === undefined ? first + place - 1 : ((random[place] ?? 0) % (first + place + 1)) - 1,
    )
    const tokens = pair(this.shape, added)
    if (random !== undefined)
      refused('INVALID_ARGUMENT', () => draft.open.append(...tokens, { parents: [...parents, first + added.length] }))
    const { k, v } = draft.open.append(
      ...tokens,
      random === undefined ? {} : { parents: keep ? parents : Int32Array.from(parents) },
    )
    const whole = random !== undefined || this.#drafts.some(({ branched }) => branched)
    draft.nodes.push(...added.map((token, place) => ({ token, parent: parents[place] as number })))
    draft.branched ||= random !== undefined && added.length > 0
    const shown = whole
      ? [...retained(this.kind, this.window, this.#tokens), ...this.everything.slice(this.#tokens.length)]
      : appended(this.kind, this.window, before, added)
    this.kept.add([k, v], shown, keep)
  }

  #commit(draft: Draft, n: number, all: boolean): void {
    if (n > draft.nodes.length) refused('INVALID_ARGUMENT', () => draft.open.commit(n))
    if (all) draft.open.commit()
    else draft.open.commit(Math.min(n, draft.nodes.length))
    this.#ended(draft, draft.nodes.slice(0, all ? undefined : n), draft.branched)
  }

  #path(draft: Draft, path: readonly number[]): void {
    const leads = path.every((node, place) => draft.nodes[node]?.parent === (path[place - 1] ?? -1))
    if (!leads) return refused('INVALID_PATH', () => draft.open.commitPath(path))
    draft.open.commitPath(path.length % 2 === 0 ? path : Uint32Array.from(path))
    this.#ended(
      draft,
      path.map((node, place) => ({ token: draft.nodes[node]?.token as number, parent: place - 1 })),
      false,
    )
  }

  #ended(draft: Draft, kept: Draft['nodes'], branched: boolean): void {
    this.#drafts.pop()
    const parent = this.#drafts.at(-1)
    refused('TRANSACTION_CLOSED', () => draft.open.length)
    if (parent === undefined) {
      this.#tokens.push(...kept.map(({ token }) => token))
      return
    }
    const first = parent.nodes.length
    parent.nodes.push(...kept.map(node => ({ token: node.token, parent: node.parent + first })))
    parent.branched ||= branched && kept.length > 0
  }

  end(): void {
    this.kept.end()
    this.#drafts[0]?.open.dispose()
    // What it shows next is of the memory that it has now.
    this.#feed(1, false)
    // A window keeps what it returned last.
    if (this.cache instanceof RotatingKvCache) this.cache.reset()
    if (this.cache instanceof RotatingKvCache || this.cache instanceof KvCache || this.cache instanceof RollbackCache)
      ownsItsBuffer(this.cache.stats())
    this.cache.dispose()
  }

  check(): void {
    const shown = this.kind.read(this.cache)
    const wanted = retained(this.kind, this.window, this.everything)
    if (shown === null) same('tokens', wanted, [])
    else this.kept.add([shown.k, shown.v], wanted, wanted.length % 2 === 0)
    same(
      'lengths',
      this.#drafts.map(({ open }) => open.length),
      this.#drafts.map(({ nodes }) => nodes.length),
    )
    for (const { open } of this.#drafts.slice(0, -1)) refused('TRANSACTION_OPEN', () => open.commit())
    this.kept.check()
    const draft = this.#drafts.at(-1)
    if (draft !== undefined) this.#checkTree(draft)
  }

  /** Positions and mask of the innermost draft. */
  #checkTree({ open, nodes }: Draft): void {
    let count = 0
    const parents = this.#drafts.flatMap(draft => {
      const first = count
      count += draft.nodes.length
      return draft.nodes.map(({ parent }) => parent + first)
    })
    const ancestors = (node: number): number[] => (node < 0 ? [] : [node, ...ancestors(parents[node] as number)])
    const position = (node: number): number => this.#tokens.length + ancestors(node).length - 1
    const own = Array.from({ length: nodes.length }, (_, place) => parents.length - nodes.length + place)
    same('positions', Array.from(open.treePositions()), own.map(position))
    const { sinks, maxSeqLen } = this.window
    const sees = (from: number, other: number): boolean =>
      !this.kind.slides || other < sinks || other + maxSeqLen > from
    const before = retained(this.kind, this.window, [...this.#tokens.keys()])
    const rows = own.map(node => [
      ...before.map(other => sees(position(node), other)),
      ...parents.map((_, other) => ancestors(node).includes(other) && sees(position(node), position(other))),
    ])
    same(
      'mask',
      Array.from(open.treeMask().toArray(), value => value === 0),
      rows.flat(),
    )
  }
}

for (const kind of KINDS) {
  onDevices(`transactions of a ${kind.name} leave what lists say`, (t, device) => {
    check(t, fc.tuple(shapesOn(device), windows, steps), ([shape, window, sequence]) => {
      const run = new Run(kind, shape, window)
      for (const step of sequence) {
        run.step(step)
        run.check()
      }
      run.end()
    })
  })
}
