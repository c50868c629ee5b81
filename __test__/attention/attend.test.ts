import test from 'ava'

import {
  attend,
  KvCache,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
  type AttendOptions,
  type ErrorCode,
  type HostTensor,
} from '../../index.js'
import { narrow } from '../support/half.js'
import { naiveRow } from '../support/naive-attention.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

/** Rows of one head and two elements, `[1, 1, n, 2]`. */
const rows = (...data: number[]): HostTensor => ({ data: Float32Array.from(data), shape: [1, 1, data.length / 2, 2] })

/** Zeros, `[1, 1, n, 1]`. */
const zeros = (tokens: number): HostTensor => ({ data: new Float32Array(tokens), shape: [1, 1, tokens, 1] })

/** Rows of one element, `[1, 1, n, 1]`. */
const single = (...data: number[]): HostTensor => ({ data: Float32Array.from(data), shape: [1, 1, data.length, 1] })

/** Rows as `[n, 1, 2]`. */
const flat = (...data: number[]): HostTensor => ({ data: Float32Array.from(data), shape: [data.length / 2, 1, 2] })

/** Tokens whose key and value follow from their number. */
const token = (number: number): number[] => [Math.sin(number), Math.cos(3 * number)]
const keys = (from: number, to: number): HostTensor => rows(...span(from, to).flatMap(token))
const values = (from: number, to: number): HostTensor => rows(...span(from, to).flatMap(number => token(number + 0.5)))

/** The output of queries at `positions`, which see the tokens that `shows` says, by number. */
function naive(
  queries: readonly number[],
  seen: readonly number[],
  shows: (query: number, place: number) => boolean,
): number[] {
  const of = {
    queries: queries.length,
    queryHeads: 1,
    kvHeads: 1,
    keys: seen.length,
    valueDim: 2,
    q: (_: number, query: number) => token(queries[query] as number),
    k: (_: number, key: number) => token(seen[key] as number),
    v: (_: number, key: number) => token((seen[key] as number) + 0.5),
    shows,
    scale: 1 / Math.sqrt(2),
  }
  return queries.flatMap((_, query) => naiveRow(of, 0, query).out)
}

const rounded = (numbers: Iterable<number>): number[] => Array.from(numbers, number => Math.round(number * 1e5) / 1e5)

function kvCache(tokens: number): KvCache {
  const cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 2, maxSeqLen: 64, headDim: 2 })
  cache.update(keys(0, tokens), values(0, tokens))
  return cache
}

test('queries are the last tokens, and see what came before them', t => {
  using cache = kvCache(5)
  const { out, lse } = attend(keys(3, 5), cache.getKv())
  t.deepEqual([out.shape, out.dtype, lse], [[1, 1, 2, 2], 'f32', undefined])
  t.deepEqual(rounded(out.toArray()), rounded(naive([3, 4], span(0, 5), (query, key) => key <= query + 3)))
  const all = attend(keys(3, 5), cache.getKv(), { causal: false }).out
  t.deepEqual(rounded(all.toArray()), rounded(naive([3, 4], span(0, 5), () => true)))
})

test('a window with sinks is read in its two runs, each key at its own position', t => {
  const [k, v, pair] = [
    new RotatingCache({ dim: 2, maxSeqLen: 3, sinks: 2, slack: 1 }),
    new RotatingCache({ dim: 2, maxSeqLen: 3, sinks: 2, slack: 1 }),
    new RotatingKvCache({ maxSeqLen: 3, sinks: 2, slack: 1 }),
  ]
  for (const number of span(0, 11)) {
    k.append(keys(number, number + 1))
    v.append(values(number, number + 1))
    pair.append(keys(number, number + 1), values(number, number + 1))
  }
  const apart = { k: k.currentData() as Tensor, v: v.currentData() as Tensor }
  t.deepEqual(apart.k.keyPositions, [0, 8])
  const seen = [0, 1, 8, 9, 10]
  for (const kv of [apart, pair.currentData() as typeof apart]) {
    t.deepEqual(rounded(attend(keys(10, 11), kv).out.toArray()), rounded(naive([10], seen, () => true)))
    // A window of two positions, and one sink: tokens 0, 9 and 10.
    const narrower = attend(keys(10, 11), kv, { window: 2, sinks: 1 }).out
    t.deepEqual(rounded(narrower.toArray()), rounded(naive([10], seen, (_, place) => [0, 3, 4].includes(place))))
    // Seen from position 9, which one key is behind; by the window of the cache it would see the one at 7 too, which is gone.
    const before = attend(keys(10, 11), kv, { positions: [9], window: 2, sinks: 2 }).out
    t.deepEqual(rounded(before.toArray()), rounded(naive([10], seen, (_, place) => place < 4)))
    throwsCode(t, 'INVALID_ARGUMENT', () => attend(keys(10, 11), kv, { positions: [9] }))
  }
})

test('a draft tree by its parents is the same as by its mask', t => {
  using cache = new RollbackCache()
  cache.append(keys(0, 4), values(0, 4))
  cache.commit()
  const parents = [-1, 0, 0, 1]
  const kv = cache.append(keys(4, 8), values(4, 8), { parents })
  const shows = [[4], [4, 5], [4, 6], [4, 5, 7]]
  const wanted = rounded(
    naive([4, 5, 6, 7], span(0, 8), (query, key) => key < 4 || (shows[query] as number[]).includes(key)),
  )
  t.deepEqual(rounded(attend(keys(4, 8), kv, { tree: parents }).out.toArray()), wanted)
  t.deepEqual(rounded(attend(keys(4, 8), kv, { tree: Int32Array.from(parents) }).out.toArray()), wanted)
  t.deepEqual(rounded(attend(keys(4, 8), kv, { mask: cache.treeMask(parents), causal: false }).out.toArray()), wanted)
  // A window counts positions, which go by depth: node 3 stands at 6, and sees 5 (node 1) and itself.
  const positions = cache.treePositions(parents)
  t.deepEqual(Array.from(positions), [4, 5, 5, 6])
  const near = attend(keys(4, 8), kv, { tree: parents, window: 2 }).out.toArray()
  t.deepEqual(rounded(near.subarray(6)), rounded(naive([7], span(0, 8), (_, key) => key === 5 || key === 7)))
})

test('an array for the output is filled and handed back', t => {
  using cache = kvCache(3)
  const [q, kv] = [keys(2, 3), cache.getKv()]
  const wanted = attend(q, kv, { returnLse: true })
  const out = new Float32Array(2)
  const found = attend(q, kv, { returnLse: true }, out)
  t.is(found.out, out)
  t.deepEqual([out, found.lse], [wanted.out.toArray(), wanted.lse])
  t.is(attend(q, kv, undefined, out).out, out)
  for (const dtype of ['f16', 'bf16'] as const) {
    const half = { data: narrow(dtype, token(2)), shape: [1, 1, 1, 2], dtype }
    const bits = new Uint16Array(2)
    t.is(attend(half, kv, {}, bits).out, bits)
    t.deepEqual(attend(half, kv).out.toArray(), bits)
    throwsCode(t, 'INVALID_ARGUMENT', () => attend(half, kv, {}, out))
  }
})

test('an array for the output that does not fit is refused, and stays as it was', t => {
  using cache = kvCache(3)
  const [q, kv] = [keys(2, 3), cache.getKv()]
  const { data } = kv.v
  const own = Float32Array.from([1, 2])
  const shared = { data: own, shape: [1, 1, 1, 2] }
  throwsCode(t, 'SHAPE_MISMATCH', () => attend(q, kv, {}, new Float32Array(3)), {
    argument: 'out',
    value: [3] as never,
    expected: '2 elements, for [1, 1, 1, 2]',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv, {}, new Uint16Array(2)), {
    argument: 'out',
    value: 'a Uint16Array',
    expected: 'a Float32Array, for f32',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv, {}, (data as Float32Array).subarray(0, 2)))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(shared, kv, {}, own))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv, { sinkLogits: own.subarray(0, 1) }, own))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv, { alibiSlopes: own.subarray(0, 1) }, own))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv, { mask: { data: own.subarray(1), shape: [1] } }, own))
  t.deepEqual(
    [Array.from(own), Array.from(data)],
    [
      [1, 2],
      span(0, 3)
        .flatMap(number => token(number + 0.5))
        .map(Math.fround),
    ],
  )
})

test('a row that sees nothing gives zeros, and a sum of nothing', t => {
  const nothing = { data: new Float32Array(3).fill(-Infinity), shape: [3] }
  const masked = attend(
    keys(0, 1),
    { k: keys(0, 3), v: rows(NaN, 1, Infinity, 2, 3, 4) },
    { mask: nothing, returnLse: true },
  )
  t.deepEqual([Array.from(masked.out.toArray()), Array.from(masked.lse)], [[0, 0], [-Infinity]])
  const hidden = { k: rows(NaN, 1, Infinity, 2, 3, 4), v: rows(NaN, 1, Infinity, 2, 3, 4) }
  const padded = attend(keys(0, 3), hidden, { starts: [2], returnLse: true })
  t.deepEqual(Array.from(padded.out.toArray().subarray(0, 4)), [0, 0, 0, 0])
  t.deepEqual(Array.from(padded.out.toArray().subarray(4)), [3, 4])
  t.deepEqual([padded.lse[0], padded.lse[1], Number.isFinite(padded.lse[2])], [-Infinity, -Infinity, true])
  const none = attend(keys(0, 1), { k: keys(0, 0), v: values(0, 0) }, { returnLse: true })
  t.deepEqual([Array.from(none.out.toArray()), Array.from(none.lse)], [[0, 0], [-Infinity]])
  const noQuery = attend(keys(0, 0), { k: keys(0, 2), v: values(0, 2) }, { returnLse: true })
  t.deepEqual([noQuery.out.shape, noQuery.lse.length], [[1, 1, 0, 2], 0])
})

test('stale views are refused, and those of a cache or a Tensor that was disposed of', t => {
  const cache = kvCache(3)
  const old = cache.getKv()
  cache.truncate(0)
  cache.update(keys(5, 6), values(5, 6))
  throwsCode(t, 'STALE_VIEW', () => attend(keys(0, 1), old))
  const kv = cache.getKv()
  const looked = cache.getKv()
  t.is(looked.k.shape[2], 1)
  cache.dispose()
  for (const gone of [kv, looked]) throwsCode(t, 'DISPOSED', () => attend(keys(0, 1), gone))
  const q = Tensor.from(new Float32Array(2), [1, 1, 1, 2])
  q.dispose()
  throwsCode(t, 'DISPOSED', () => attend(q, { k: keys(0, 1), v: values(0, 1) }), { object: 'Tensor' })
})

test('what attention answers is a Tensor like any other', t => {
  using cache = kvCache(3)
  const kv = cache.getKv()
  const { out } = attend(keys(1, 3), kv)
  const before = out.toArray()
  t.deepEqual([out.length, out.shape, out.device, out.isStale], [4, [1, 1, 2, 2], 'cpu', false])
  t.deepEqual(out.readInto(new Float32Array(4)), before)
  // As queries, before and after someone has looked at it.
  const again = attend(out, kv).out
  t.deepEqual(out.narrow(2, 1, 1).toArray(), before.slice(2))
  t.deepEqual([out.strides, out.data, out.toArray(), out.toFloat32Array()], [[4, 4, 2, 1], before, before, before])
  t.true(attend(out, kv).out.equals(again))
  before.fill(0)
  t.notDeepEqual(out.toArray(), before)
  out.dispose()
  throwsCode(t, 'DISPOSED', () => out.toArray())
  again.dispose()
  for (const read of [() => again.shape, () => again.toArray(), () => again.data, () => attend(again, kv)])
    throwsCode(t, 'DISPOSED', read)
})

test('a large output is the same as a small one', t => {
  const [queries, dim] = [300, 64]
  const data = Float32Array.from({ length: queries * dim }, (_, place) => Math.sin(place))
  const q = { data, shape: [1, 1, queries, dim] }
  const options = { returnLse: true } as const
  const { out, lse } = attend(q, { k: q, v: q }, options)
  const into = attend(q, { k: q, v: q }, options, new Float32Array(queries * dim))
  t.deepEqual([out.toArray(), lse], [into.out, into.lse])
  // A single query is computed in shares of the keys, which are rounded once more.
  const last = attend({ ...q, range: [299, 300] }, { k: q, v: q }).out.toArray() as Float32Array
  t.true(last.every((number, place) => Math.abs(number - (into.out.at(place - dim) as number)) < 1e-6))
  // More sums than a small array holds.
  const thin = attend(zeros(20_000), { k: zeros(2), v: zeros(2) }, { causal: false, ...options })
  t.deepEqual([...new Set(thin.lse)], [Math.fround(Math.log(2))])
})

/** One wrong option each, its code, and the argument to blame. */
const WRONG: readonly (readonly [options: AttendOptions, code: ErrorCode, argument: string])[] = [
  [{ scale: Infinity }, 'INVALID_ARGUMENT', 'scale'],
  [{ scale: 1e39 }, 'INVALID_ARGUMENT', 'scale'],
  [{ window: 0 }, 'INVALID_ARGUMENT', 'window'],
  [{ sinks: -1 }, 'INVALID_ARGUMENT', 'sinks'],
  [{ sinks: 1, starts: [0] }, 'INVALID_ARGUMENT', 'sinks'],
  [{ sinkLogits: [1, 2] }, 'SHAPE_MISMATCH', 'sinkLogits'],
  [{ sinkLogits: [NaN] }, 'INVALID_ARGUMENT', 'sinkLogits[0]'],
  [{ sinkLogits: Float32Array.of(NaN) }, 'INVALID_ARGUMENT', 'sinkLogits[0]'],
  [{ sinkLogits: [0, Infinity] }, 'INVALID_ARGUMENT', 'sinkLogits[1]'],
  [{ sinkLogits: Float32Array.of(0, Infinity) }, 'INVALID_ARGUMENT', 'sinkLogits[1]'],
  [{ alibiSlopes: [1, 2] }, 'SHAPE_MISMATCH', 'alibiSlopes'],
  [{ alibiSlopes: [0, NaN] }, 'INVALID_ARGUMENT', 'alibiSlopes[1]'],
  [{ alibiSlopes: Float32Array.of(-Infinity) }, 'INVALID_ARGUMENT', 'alibiSlopes[0]'],
  [{ alibiSlopes: [1e300] }, 'INVALID_ARGUMENT', 'alibiSlopes[0]'],
  [{ softcap: 0 }, 'INVALID_ARGUMENT', 'softcap'],
  [{ softcap: 1e-50 }, 'INVALID_ARGUMENT', 'softcap'],
  [{ mask: rows(1, 2) }, 'SHAPE_MISMATCH', 'mask'],
  [{ mask: { data: new Uint8Array(3), shape: [3] } }, 'DTYPE_MISMATCH', 'mask'],
  [{ mask: { data: new Float32Array(3), shape: [1, 1, 1, 3], range: [0, 1] } }, 'INVALID_ARGUMENT', 'mask.range'],
  [{ tree: [-1, 0] }, 'SHAPE_MISMATCH', 'tree'],
  [{ tree: [0] }, 'INVALID_ARGUMENT', 'parents'],
  [{ starts: [0, 0] }, 'SHAPE_MISMATCH', 'starts'],
  [{ starts: [-1] }, 'INVALID_ARGUMENT', 'starts'],
  [{ positions: [1, 2] }, 'SHAPE_MISMATCH', 'positions'],
  [{ positions: Int32Array.of(-1) }, 'INVALID_ARGUMENT', 'positions'],
  [{ positions: [0.5] }, 'INVALID_ARGUMENT', 'positions[0]'],
  [{ qOffsets: [0, 1] }, 'INVALID_ARGUMENT', 'qOffsets'],
  [{ threads: 0 }, 'INVALID_ARGUMENT', 'threads'],
]

test('a wrong option is refused by name, and nothing is written', t => {
  using cache = kvCache(3)
  const out = Float32Array.from([7, 8])
  for (const [options, code, argument] of WRONG) {
    const error = throwsCode(t, code, () => attend(keys(2, 3), cache.getKv(), options, out))
    const details = error.details as unknown as { argument: string; expected: string }
    t.is(details.argument, argument, error.message)
    t.true(error.message.startsWith(argument) && error.message.endsWith(details.expected), error.message)
  }
  t.deepEqual([Array.from(out), cache.seqLen], [[7, 8], 3])
})

test('queries, keys and values that do not go together are refused', t => {
  const [q, k, v] = [keys(0, 1), keys(0, 2), values(0, 2)]
  const refused: [code: ErrorCode, call: () => unknown][] = [
    ['SHAPE_MISMATCH', () => attend(q, { k, v: values(0, 3) })],
    ['SHAPE_MISMATCH', () => attend({ data: new Float32Array(3), shape: [1, 1, 1, 3] }, { k, v })],
    ['SHAPE_MISMATCH', () => attend({ data: new Float32Array(4), shape: [2, 1, 1, 2] }, { k, v })],
    ['SHAPE_MISMATCH', () => attend(q, { k: { ...k, shape: [1, 2, 1, 2] }, v: { ...v, shape: [1, 2, 1, 2] } })],
    ['DTYPE_MISMATCH', () => attend({ data: new Uint8Array(2), shape: [1, 1, 1, 2] }, { k, v })],
    ['SHAPE_MISMATCH', () => attend(flat(1, 2), { k, v })],
    ['SHAPE_MISMATCH', () => attend(q, { k, v, kvOffsets: [0, 2] })],
    ['INVALID_ARGUMENT', () => attend(q, { ...k, k, range: [0, 3] } as never)],
    ['INVALID_ARGUMENT', () => attend(q, { k: { ...k, range: [1, 3] }, v })],
    ...[[0, 3], [1, 2], [0, 2, 1], [0], [0, -1, 2], [0, 1]].map((kvOffsets): [ErrorCode, () => unknown] => [
      'INVALID_ARGUMENT',
      () => attend(flat(1, 2), { k: flat(1, 2, 3, 4), v: flat(1, 2, 3, 4), kvOffsets }),
    ]),
    [
      'INVALID_ARGUMENT',
      () => attend(flat(1, 2, 3, 4), { k: flat(1, 2, 3, 4), v: flat(1, 2, 3, 4), kvOffsets: [0, 2] }),
    ],
    [
      'SHAPE_MISMATCH',
      () => attend(flat(1, 2), { k: flat(1, 2), v: flat(1, 2), kvOffsets: [0, 1] }, { qOffsets: [0, 1, 1] }),
    ],
    [
      'INVALID_ARGUMENT',
      () => attend(flat(1, 2), { k: flat(1, 2), v: flat(1, 2), kvOffsets: [0, 1] }, { qOffsets: [0, 2] }),
    ],
  ]
  for (const [code, call] of refused) throwsCode(t, code, call)
})

test('a getter that calls attention again changes nothing', t => {
  using cache = kvCache(3)
  const kv = cache.getKv()
  const wanted = attend(keys(2, 3), kv, { window: 2 }).out.toArray()
  const nested = {
    get window() {
      t.is(kv.k.data.length, 6)
      attend(rows(9, 9, 9, 9), { k: keys(0, 9), v: values(0, 9) }, { scale: 3, causal: false })
      return 2
    },
  }
  t.deepEqual(attend(keys(2, 3), kv, nested).out.toArray(), wanted)
  const gone = cache.getKv()
  const ending = {
    get window() {
      gone.v.dispose()
      return 2
    },
  }
  throwsCode(t, 'DISPOSED', () => attend(keys(2, 3), gone, ending), { object: 'Tensor' })
})

/** The output of one query, and its sum. */
function one(q: number, k: number[], v: number[], given: AttendOptions = {}): number[] {
  const { out, lse } = attend(single(q), { k: single(...k), v: single(...v) }, { scale: 1, ...given, returnLse: true })
  return [out.toArray()[0] as number, lse[0] as number]
}

test('numbers near the end of the floats weigh as they are, and beyond it there is one rule', t => {
  const large = Math.fround(3e38)
  t.deepEqual(one(1, [large], [5]), [5, large])
  t.deepEqual(one(1, [large, Math.fround(2.9e38), -large], [5, 6, 7]), [5, large])
  t.deepEqual(one(1, [0, 0], [large, large])[0], large, 'a mean is no larger than what it is of')
  t.deepEqual(
    one(1, [0, 0], [1, 3], { causal: false, mask: { data: Float32Array.of(-large, -large), shape: [2] } })[0],
    2,
  )
  t.deepEqual(one(1, [0], [Infinity]), [Infinity, 0])
  t.deepEqual(one(1, [0, 500], [Infinity, 1])[0], Infinity, 'however small its weight')
  t.deepEqual(one(1, [0, 0], [Infinity, -Infinity])[0], NaN)
  t.deepEqual(one(1, [-Infinity, 0], [Infinity, 1]), [1, 0])
  for (const key of [NaN, Infinity]) t.deepEqual(one(1, [key, 0], [1, 1]), [NaN, NaN])
  t.deepEqual(one(1, [0], [3], { sinkLogits: Float32Array.of(-Infinity) }), one(1, [0], [3]))
  t.deepEqual(one(1, [0], [3], { sinkLogits: [-Infinity] }), [3, 0])
})
