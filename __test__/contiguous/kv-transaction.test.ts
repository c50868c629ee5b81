// Transactions: one meaning, on every kind of cache.
import test, { type ExecutionContext } from 'ava'

import { attendAsync, KvCache, RollbackCache, RotatingKvCache, type KvTransaction } from '../../index.js'
import { shows, type Shape } from '../support/properties.js'
import type { Seen } from '../support/showing.js'
import { throwsCode } from '../support/throws.js'
import { numbers, span, tokens } from '../support/tokens.js'
import { appended, KINDS, pair, retained, type Kind, type Subject, type Window } from '../support/transactions.js'

const shape: Shape = { device: 'cpu', dtype: 'f32', batch: 1, heads: 2, dim: 3 }
const windows: readonly Window[] = [
  { maxSeqLen: 4, sinks: 0, slack: 3 },
  { maxSeqLen: 5, sinks: 2, slack: 0 },
]

/** One kind of cache that was given the tokens 1 up to `length`. */
class Given {
  readonly kind: Kind
  readonly window: Window
  readonly cache: Subject
  readonly tokens: number[]

  constructor(kind: Kind, window: Window, length: number) {
    this.kind = kind
    this.window = window
    this.cache = kind.make(shape, window)
    this.tokens = span(1, length + 1)
    for (const token of this.tokens) this.feed([token])
  }

  feed(added: readonly number[]): Seen {
    return this.kind.feed(this.cache, ...pair(shape, added))
  }

  /** Checks what the cache shows, bit for bit. */
  shows(t: ExecutionContext, ids: readonly number[]): void {
    const shown = this.kind.read(this.cache)
    const kept = retained(this.kind, this.window, ids)
    if (kept.length === 0) t.is(shown, null)
    else showsPair(t, shown, kept)
  }
}

function showsPair(t: ExecutionContext, shown: Seen | null, ids: readonly number[]): void {
  t.notThrows(() => {
    if (shown === null) throw new Error('it shows nothing')
    shows(shown.k, shape, ids, 0)
    shows(shown.v, shape, ids, 1)
  })
}

const draft = (on: KvTransaction, ids: readonly number[], parents?: readonly number[]): Seen =>
  on.append(...pair(shape, ids), parents === undefined ? {} : { parents })

/** A test for every kind, in caches of every length that differs. */
function every(title: string, body: (t: ExecutionContext, given: Given) => void): void {
  for (const kind of KINDS) {
    test(`${kind.name}: ${title}`, t => {
      for (const window of windows) for (const length of [0, 3, 9, 60]) body(t, new Given(kind, window, length))
    })
  }
}

every('the first tokens of a draft are kept, and the rest leaves no trace', (t, given) => {
  const { kind, window, cache } = given
  for (const kept of [3, 0, undefined]) {
    using open = cache.begin()
    showsPair(t, draft(open, [101, 102, 103]), appended(kind, window, given.tokens, [101, 102, 103]))
    showsPair(t, draft(open, [104]), appended(kind, window, [...given.tokens, 101, 102, 103], [104]))
    given.shows(t, [...given.tokens, 101, 102, 103, 104])
    t.is(open.length, 4)
    open.commit(kept)
    given.tokens.push(...[101, 102, 103, 104].slice(0, kept ?? 4))
    given.shows(t, given.tokens)
  }
  showsPair(t, given.feed([200, 201]), appended(kind, window, given.tokens, [200, 201]))
})

every('rolled back, disposed of or left by `using`, it has never been', (t, given) => {
  for (const end of ['rollback', 'dispose', 'using']) {
    for (const ids of [[101], span(101, 110), span(101, 301)]) {
      using open = given.cache.begin()
      draft(open, ids)
      if (end === 'rollback') open.rollback()
      if (end === 'dispose') open.dispose()
    }
    given.shows(t, given.tokens)
  }
  given.feed([102])
  given.shows(t, [...given.tokens, 102])
})

every("what a child commits is its parent's, which may still drop it", (t, given) => {
  const parent = given.cache.begin()
  draft(parent, [101, 102])
  const child = parent.begin({ maxTokens: 4 })
  draft(child, [103, 104, 105])
  t.deepEqual([parent.length, child.length], [2, 3])
  for (const call of [
    () => draft(parent, [1]),
    () => parent.commit(),
    () => parent.commitPath([]),
    () => parent.rollback(),
    () => parent.begin(),
    () => parent.treeMask(),
    () => parent.treePositions(),
  ]) {
    throwsCode(t, 'TRANSACTION_OPEN', call, { object: 'transaction' })
  }
  child.commit(2)
  t.is(parent.length, 4)
  using path = parent.begin()
  draft(path, [106, 107, 108], [-1, -1, 1])
  path.commitPath(new Uint32Array([1, 2]))
  const before = [...given.tokens, 101, 102, 103, 104, 107, 108]
  given.shows(t, before)
  parent.begin().begin()
  parent.dispose()
  given.shows(t, given.tokens)
  throwsCode(t, 'TRANSACTION_CLOSED', () => path.length)
})

every('a path is kept in order, and what is none changes nothing', (t, given) => {
  for (const [path, kept] of [
    [
      [0, 3, 5],
      [101, 104, 106],
    ],
    [
      [1, 4],
      [102, 105],
    ],
    [[], []],
  ] as const) {
    using open = given.cache.begin()
    draft(open, [101, 102], [-1, -1])
    const base = retained(given.kind, given.window, given.tokens)
    showsPair(t, draft(open, [103, 104, 105, 106], [0, 0, 1, 3]), [...base, ...span(101, 107)])
    for (const wrong of [[2], [0, 1], [0, 2, 5], [3, 0], [0, 0], [6]])
      throwsCode(t, 'INVALID_PATH', () => open.commitPath(wrong))
    throwsCode(t, 'INVALID_PATH', () => open.commitPath([0, 5]), {
      place: 1,
      node: 5,
      reason: 'it is not a child of the node before it',
    })
    t.is(open.length, 6)
    const at = given.tokens.length
    t.deepEqual(open.treePositions(), Int32Array.of(at, at, at + 1, at + 1, at + 1, at + 2))
    const mask = open.treeMask()
    t.deepEqual([mask.shape, mask.dtype], [[6, base.length + 6], 'f32'])
    t.deepEqual(Array.from(mask.toArray()).slice(-6), [0, -Infinity, -Infinity, 0, -Infinity, 0])
    open.commitPath(path)
    given.tokens.push(...kept)
    given.shows(t, given.tokens)
  }
})

every('all else that would change the cache is refused while it is open', (t, given) => {
  using open = given.cache.begin()
  draft(open, [101])
  for (const [name, change] of Object.entries(given.kind.changes(given.cache, ...pair(shape, [1])))) {
    const error = throwsCode(t, 'TRANSACTION_OPEN', change, { object: given.kind.object })
    t.regex(error.message, /commit it or roll it back/, name)
    given.shows(t, [...given.tokens, 101])
  }
  open.commit()
  for (const change of Object.values(given.kind.changes(given.cache, ...pair(shape, [1])))) {
    t.notThrows(() => {
      const begun = change()
      if (typeof begun === 'object' && begun !== null && 'rollback' in begun) (begun as KvTransaction).rollback()
    })
  }
})

every('every call after its end is refused, but for disposing', (t, given) => {
  const ends: ((open: KvTransaction) => void)[] = [
    open => open.commit(),
    open => open.commitPath([0]),
    open => open.rollback(),
    open => open.dispose(),
  ]
  for (const end of ends) {
    const open = given.cache.begin()
    draft(open, [101])
    end(open)
    const calls = [
      () => draft(open, [1]),
      () => open.commit(),
      () => open.commitPath([]),
      () => open.rollback(),
      () => open.begin(),
      () => open.length,
      () => open.treeMask(),
      () => open.treePositions(),
    ]
    for (const call of calls) throwsCode(t, 'TRANSACTION_CLOSED', call)
    open.dispose()
    open[Symbol.dispose]()
  }
})

every('a call that is refused leaves it open, and as it was', (t, given) => {
  using open = given.cache.begin()
  draft(open, [101, 102])
  throwsCode(t, 'INVALID_ARGUMENT', () => open.commit(3), {
    argument: 'n',
    value: 3,
    expected: 'at most 2, the number of drafted tokens',
  })
  for (const n of [-1, 0.5, NaN, '1', null, 2n]) throwsCode(t, 'INVALID_ARGUMENT', () => open.commit(n as never))
  for (const parents of [[-1], [-1, 3], [-2, 0], [-1, 0.5], 'x', null, new Float32Array(2)]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => open.append(...pair(shape, [1, 2]), { parents: parents as never }))
  }
  for (const nodes of [[-1], [0.5], undefined, 'x', new Float32Array([0])])
    throwsCode(t, 'INVALID_ARGUMENT', () => open.commitPath(nodes as never))
  for (const options of [null, 3, 'x'])
    throwsCode(t, 'INVALID_ARGUMENT', () => open.append(...pair(shape, [1]), options as never))
  for (const maxTokens of [-1, 0.5, 2 ** 31, null])
    throwsCode(t, 'INVALID_ARGUMENT', () => open.begin({ maxTokens: maxTokens as never }))
  throwsCode(t, 'SHAPE_MISMATCH', () => open.append(pair(shape, [1])[0], pair(shape, [1, 2])[1]))
  throwsCode(t, 'DTYPE_MISMATCH', () => open.append(...pair({ ...shape, dtype: 'f16' }, [1])))
  throwsCode(t, 'INVALID_ARGUMENT', () => open.append(undefined as never, undefined as never))
  t.is(open.length, 2)
  given.shows(t, [...given.tokens, 101, 102])
})

every('a cache that is disposed of takes its transactions with it', (t, given) => {
  const open = given.cache.begin()
  draft(open, [101])
  given.cache.dispose()
  for (const call of [
    () => draft(open, [1]),
    () => open.commit(),
    () => open.rollback(),
    () => open.begin(),
    () => open.length,
  ]) {
    throwsCode(t, 'DISPOSED', call)
  }
  open.dispose()
  throwsCode(t, 'DISPOSED', () => given.cache.begin())
})

test('a call on something else is refused', t => {
  using open = new RollbackCache().begin()
  const prototype = Object.getPrototypeOf(open) as KvTransaction
  for (const name of Object.getOwnPropertyNames(prototype).filter(known => known !== 'constructor')) {
    const { get, value } = Object.getOwnPropertyDescriptor(prototype, name) as PropertyDescriptor
    for (const self of [undefined, null, {}, Object.create(prototype), new Proxy(open, {}), new RollbackCache()]) {
      throwsCode(t, 'INVALID_ARGUMENT', () => Reflect.apply((get ?? value) as () => unknown, self, [[], []]))
    }
  }
})

test('room that a growing cache may not hold is refused, as an append of so many is', t => {
  for (const stableAddresses of [false, true]) {
    using cache = new KvCache({
      batchSize: 1,
      numKvHeads: 1,
      initialCapacity: 2,
      maxSeqLen: 6,
      headDim: 1,
      stableAddresses,
    })
    cache.update(tokens(0, 3), tokens(0, 3))
    const { capacity } = cache
    throwsCode(t, 'CACHE_OVERFLOW', () => cache.begin({ maxTokens: 4 }), { seqLen: 3, newTokens: 4, maxSeqLen: 6 })
    t.is(cache.capacity, capacity)
    using open = cache.begin({ maxTokens: 3 })
    t.is(cache.capacity, 6)
    throwsCode(t, 'CACHE_OVERFLOW', () => open.append(tokens(3, 7), tokens(3, 7)), {
      seqLen: 3,
      newTokens: 4,
      maxSeqLen: 6,
    })
    open.append(tokens(3, 6), tokens(3, 6))
    throwsCode(t, 'CACHE_OVERFLOW', () => open.append(tokens(6, 7), tokens(6, 7)))
    open.commit(2)
    t.deepEqual(numbers(cache.getKv().k), span(0, 5))
  }
})

test('tokens kept behind tentative ones are tentative like them', t => {
  using cache = new RollbackCache()
  cache.append(tokens(0, 2), tokens(0, 2))
  cache.commit()
  cache.append(tokens(2, 4), tokens(2, 4), { parents: [-1, -1] })
  using open = cache.begin()
  open.append(tokens(10, 12), tokens(10, 12))
  t.deepEqual(open.treePositions(), Int32Array.of(3, 4))
  t.deepEqual(
    Array.from(open.treeMask().toArray(), value => value === 0),
    [true, true, false, true, true, false, true, true, false, true, true, true],
  )
  open.commit(1)
  t.deepEqual([cache.totalLen, cache.committedLen], [5, 2])
  cache.acceptPath([1, 2])
  t.deepEqual(numbers(cache.current()?.k ?? null), [0, 1, 3, 10])
})

test('a snapshot that is taken meanwhile has what is drafted, whatever becomes of it', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4, sinks: 1 })
  for (let token = 0; token < 9; token++) cache.append(tokens(token, token + 1), tokens(token, token + 1))
  using open = cache.begin()
  open.append(tokens(100, 102), tokens(100, 102))
  using snapshot = cache.snapshot()
  t.is(snapshot.currentSeqLen, 11)
  open.rollback()
  cache.append(tokens(50, 53), tokens(50, 53))
  cache.restore(snapshot)
  t.deepEqual(numbers(cache.currentData()?.k ?? null), [0, 7, 8, 100, 101])
})

test('what the last append showed is as before once a draft was rolled back, and else what it kept', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4 })
  cache.append(tokens(0, 6), tokens(0, 6))
  const last = (): number[] | null => numbers(cache.lastAppendResult()?.k ?? null)
  using dropped = cache.begin()
  dropped.append(tokens(6, 9), tokens(6, 9))
  t.deepEqual(last(), span(2, 9))
  dropped.rollback()
  t.deepEqual(last(), span(0, 6))
  using kept = cache.begin()
  kept.append(tokens(6, 9), tokens(6, 9))
  kept.commit(2)
  t.deepEqual(last(), span(2, 8))
})

test('work in the background is not disturbed, and a draft can be dropped under it', async t => {
  using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 8, maxSeqLen: 8, headDim: 1 })
  using open = cache.begin()
  const work = attendAsync(tokens(0, 1), open.append(tokens(1, 4), tokens(1, 4)), { causal: false })
  for (const call of [
    () => open.append(tokens(4, 5), tokens(4, 5)),
    () => open.commit(),
    () => open.rollback(),
    () => open.begin(),
  ])
    throwsCode(t, 'BUSY', call)
  open.dispose()
  t.is(cache.seqLen, 0)
  t.deepEqual((await work).out.shape, [1, 1, 1, 1])
})
