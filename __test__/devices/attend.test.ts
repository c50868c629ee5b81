// Attention on each device over what caches hold, in sizes that models have, against its definition in 64-bit floats.
import type { ExecutionContext } from 'ava'

import {
  attend,
  attendAsync,
  type AttendKv,
  type AttendOptions,
  type DType,
  type HostTensor,
  KvCache,
  mergeAttention,
  PagedKvCache,
  RollbackCache,
  RotatingKvCache,
  Tensor,
} from '../../index.js'
import { onDevices } from '../support/devices.js'
import { narrow, widen } from '../support/half.js'
import { naiveRow, type Naive } from '../support/naive-attention.js'
import { waves } from '../support/pages.js'
import { FLOATS, span } from '../support/tokens.js'

/** The allowed error: units in the last place of scores and sums; for half floats one rounding of weights, and one to the queries' dtype. */
const TOLERANCES = { f32: 2e-5, f16: 2e-3, bf16: 1.6e-2, u8: 0 }

/** Rows of tokens: as an argument, and each row as the numbers that its elements are. */
interface Rows {
  readonly host: (start: number, end: number) => HostTensor
  readonly row: (head: number, token: number) => readonly number[]
}

function rowsOf(dtype: DType, seed: number, heads: number, tokens: number, dim: number, factor = 1): Rows {
  const data = narrow(
    dtype,
    (waves(seed, [heads * tokens * dim]).data as Float32Array).map(value => factor * value),
  )
  const numbers = widen(dtype, data)
  return {
    host: (start, end) => ({ data, shape: [1, heads, tokens, dim], dtype, range: [start, end] }),
    row: (head, token) => numbers.slice((head * tokens + token) * dim, (head * tokens + token + 1) * dim),
  }
}

/** Sizes of a call: heads of K and V, queries for each of them, tokens in all, of which the last are queries. */
interface Sizes {
  readonly kvHeads: number
  readonly group: number
  readonly tokens: number
  readonly queries: number
  readonly dim: number
}

const DECODE: Sizes = { kvHeads: 2, group: 4, tokens: 700, queries: 1, dim: 128 }
const CHUNK: Sizes = { kvHeads: 2, group: 2, tokens: 150, queries: 70, dim: 64 }

class Call {
  readonly dtype: DType
  readonly sizes: Sizes
  readonly q: Rows
  readonly k: Rows
  readonly v: Rows

  constructor(dtype: DType, sizes: Sizes) {
    const { kvHeads, group, tokens, dim } = sizes
    this.dtype = dtype
    this.sizes = sizes
    // Scores that differ, so that one key too many shows.
    this.q = rowsOf(dtype, 3, kvHeads * group, tokens, dim, 4)
    this.k = rowsOf(dtype, 5, kvHeads, tokens, dim)
    this.v = rowsOf(dtype, 7, kvHeads, tokens, dim)
  }

  /** Tokens of K and V. */
  kv(start: number, end: number): [k: HostTensor, v: HostTensor] {
    return [this.k.host(start, end), this.v.host(start, end)]
  }

  /** Checks attention of the last tokens over `kv`, which holds the tokens `held`, against what `shows` by their numbers. */
  check(
    t: ExecutionContext,
    kv: AttendKv,
    options: AttendOptions,
    shows: Naive['shows'],
    held: readonly number[] = span(0, this.sizes.tokens),
    more: Partial<Naive> = {},
  ): void {
    const { kvHeads, group, tokens, queries, dim } = this.sizes
    const { out, lse } = attend(this.q.host(tokens - queries, tokens), kv, { ...options, returnLse: true })
    const found = out.toFloat32Array()
    let most = 0
    for (const head of span(0, kvHeads * group)) {
      for (const query of span(0, queries)) {
        const at = tokens - queries + query
        const naive = naiveRow(
          {
            queries,
            queryHeads: kvHeads * group,
            kvHeads,
            keys: held.length,
            valueDim: dim,
            scale: 1 / Math.sqrt(dim),
            q: of => this.q.row(of, at),
            k: (of, key) => this.k.row(of, held[key] as number),
            v: (of, key) => this.v.row(of, held[key] as number),
            shows: (_, key) => shows(at, held[key] as number),
            distance: (_, key) => at - (held[key] as number),
            ...more,
          },
          head,
          query,
        )
        for (const [place, value] of naive.out.entries())
          most = Math.max(most, Math.abs((found[(head * queries + query) * dim + place] as number) - value))
        most = Math.max(most, Math.abs((lse[query * kvHeads * group + head] as number) - naive.lse) / 10)
      }
    }
    t.true(most <= TOLERANCES[this.dtype], `${this.dtype}: off by ${most}`)
    t.deepEqual([out.dtype, out.shape], [this.dtype, [1, kvHeads * group, queries, dim]])
  }
}

function kvCache(device: string, call: Call): KvCache {
  const { kvHeads, dim, tokens } = call.sizes
  const cache = new KvCache({
    device,
    batchSize: 1,
    numKvHeads: kvHeads,
    headDim: dim,
    dtype: call.dtype,
    initialCapacity: 8,
    maxSeqLen: 2048,
  })
  cache.update(...call.kv(0, tokens))
  return cache
}

const causal = (query: number, key: number): boolean => key <= query

for (const [name, sizes] of Object.entries({ 'one token': DECODE, 'a chunk': CHUNK })) {
  onDevices(`${name} over a growing cache, with windows, sinks, soft caps and sink logits`, (t, device) => {
    for (const dtype of FLOATS) {
      const call = new Call(dtype, sizes)
      using cache = kvCache(device, call)
      const kv = cache.getKv()
      call.check(t, kv, {}, causal)
      call.check(t, kv, { causal: false, scale: 0.3 }, () => true, undefined, { scale: 0.3 })
      call.check(t, kv, { window: 33, sinks: 2 }, (query, key) => causal(query, key) && (query - key < 33 || key < 2))
      const sinkLogits = span(0, sizes.kvHeads * sizes.group).map(head => Math.fround(head / 4 - 1))
      call.check(t, kv, { softcap: 2, sinkLogits }, causal, undefined, { softcap: 2, sinkLogits })
      const alibiSlopes = sinkLogits.map(logit => Math.fround(logit / 64))
      const near = (query: number, key: number): boolean => causal(query, key) && query - key < 400
      call.check(t, kv, { alibiSlopes, window: 400 }, near, undefined, { alibiSlopes })
      const { queries, tokens } = sizes
      const data = Float32Array.from({ length: queries * tokens }, (_, at) => (at % 7 === 3 ? -Infinity : Math.sin(at)))
      const mask = (_: number, query: number, key: number): number => data[query * tokens + key] as number
      call.check(t, kv, { mask: { data, shape: [queries, tokens] } }, causal, undefined, { mask })
    }
  })

  onDevices(`${name} over a window in two runs`, (t, device) => {
    for (const dtype of FLOATS) {
      const call = new Call(dtype, sizes)
      const { tokens, queries } = sizes
      using cache = new RotatingKvCache({ device, maxSeqLen: 100, sinks: 3, slack: 9 })
      for (let from = 0; from < tokens - queries; from += 40)
        cache.append(...call.kv(from, Math.min(from + 40, tokens - queries)))
      const before = tokens - queries
      const kept = before <= 103 ? span(0, before) : [...span(0, 3), ...span(before - 100, before)]
      const shown = cache.append(...call.kv(before, tokens))
      const held = queries === 1 ? [...span(0, 3), ...span(tokens - 100, tokens)] : [...kept, ...span(before, tokens)]
      const seen = (query: number, key: number): boolean => causal(query, key) && (query - key < 100 || key < 3)
      call.check(t, shown, {}, seen, held)
      const alibiSlopes = span(0, sizes.kvHeads * sizes.group).map(head => (head + 1) / 512)
      call.check(t, shown, { alibiSlopes }, seen, held, { alibiSlopes })
      call.check(
        t,
        shown,
        { window: 50, sinks: 2 },
        (query, key) => causal(query, key) && (query - key < 50 || key < 2),
        held,
      )
    }
  })
}

onDevices('a draft tree over a cache with tentative tokens', (t, device) => {
  for (const dtype of FLOATS) {
    const call = new Call(dtype, { ...CHUNK, queries: 8 })
    const first = CHUNK.tokens - 8
    const parents = [-1, -1, 0, 0, 1, 1, 4, 6]
    using cache = new RollbackCache({ device })
    cache.append(...call.kv(0, first))
    cache.commit()
    const kv = cache.append(...call.kv(first, CHUNK.tokens), { parents })
    const ancestors = (node: number): number[] => (node < 0 ? [] : [node, ...ancestors(parents[node] as number)])
    const shows = (query: number, key: number): boolean => key < first || ancestors(query - first).includes(key - first)
    call.check(t, kv, { tree: parents }, shows)
    call.check(t, kv, { mask: cache.treeMask(parents), causal: false }, shows)
  }
})

onDevices('pages, by sequences and by block tables, are read as what lies in one piece', (t, device) => {
  for (const dtype of FLOATS) {
    const lengths = [1, 37, 0, 300]
    const queries = [1, 5, 0, 2]
    using cache = new PagedKvCache({
      device,
      capacity: 40,
      blockSize: 16,
      numLayers: 1,
      numKvHeads: 2,
      headDim: 64,
      dtype,
    })
    const host = (seed: number, shape: readonly number[]): HostTensor => ({
      data: narrow(dtype, waves(seed, shape).data as Float32Array),
      shape,
      dtype,
    })
    const sequences = lengths.map((length, at) => {
      const seq = cache.createSequence()
      if (length > 0) cache.writeTokens(seq, 0, 0, host(at + 1, [2, length, 64]), host(at + 11, [2, length, 64]))
      return seq
    })
    const offsets = queries.reduce<number[]>((before, count) => [...before, (before.at(-1) as number) + count], [0])
    const q = host(21, [8, 8, 64])
    const ragged = (part: 'k' | 'v'): Tensor => {
      const rows = sequences.flatMap((seq, at) => {
        const data = cache.gather(seq, 0)[part].toArray()
        const length = lengths[at] as number
        return span(0, length).flatMap(token =>
          span(0, 2).flatMap(head =>
            Array.from(data.subarray((head * length + token) * 64, (head * length + token + 1) * 64)),
          ),
        )
      })
      const total = lengths.reduce((sum, length) => sum + length, 0)
      return Tensor.from(dtype === 'f32' ? Float32Array.from(rows) : Uint16Array.from(rows), [total, 2, 64], {
        dtype,
        device,
      })
    }
    const kv = {
      k: ragged('k'),
      v: ragged('v'),
      kvOffsets: lengths.reduce<number[]>((before, count) => [...before, (before.at(-1) as number) + count], [0]),
    }
    const [table, width] = [new Int32Array(4 * 19).fill(-1), 19]
    let next = 0
    for (const [row, length] of lengths.entries())
      for (const place of span(0, Math.ceil(length / 16))) table[row * width + place] = next++
    for (const options of [{}, { window: 20, sinks: 1 }, { softcap: 3 }]) {
      const wanted = attend(q, kv, { qOffsets: offsets, ...options }).out.toFloat32Array()
      for (const pages of [
        { cache, layer: 0, sequences },
        { cache, layer: 0, blockTables: table, lengths: Int32Array.from(lengths) },
      ]) {
        const found = attend(q, pages, { qOffsets: offsets, ...options }).out.toFloat32Array()
        const most = Math.max(...wanted.map((value, at) => Math.abs(value - (found[at] as number))))
        t.true(most <= TOLERANCES[dtype], `${dtype}: off by ${most}`)
      }
    }
  }
})

onDevices('sequences that begin with the same prompt see what each would see alone', (t, device) => {
  for (const dtype of FLOATS) {
    for (const format of dtype === 'f32' ? [undefined] : ([undefined, 'q8', 'q4'] as const)) {
      // The prompt ends inside of a block, some forks leave it early, and one sequence shares nothing.
      const cuts = [700, 700, 700, 650, 333]
      using cache = new PagedKvCache({
        device,
        capacity: 200,
        blockSize: 16,
        numLayers: 1,
        numKvHeads: 2,
        headDim: 64,
        dtype,
        ...(format && { keyFormat: format, valueFormat: format }),
      })
      const host = (seed: number, shape: readonly number[]): HostTensor => ({
        data: narrow(dtype, waves(seed, shape).data as Float32Array),
        shape,
        dtype,
      })
      const prompt = cache.createSequence()
      cache.writeTokens(prompt, 0, 0, host(1, [2, 700, 64]), host(2, [2, 700, 64]))
      const sequences = cuts.map((cut, at) => {
        const sequence = cache.sequence(prompt).fork()
        sequence.truncate(cut)
        const fork = sequence.id
        cache.writeTokens(fork, 0, cut, host(at + 3, [2, 9 * at + 1, 64]), host(at + 13, [2, 9 * at + 1, 64]))
        return fork
      })
      const alone = cache.createSequence()
      cache.writeTokens(alone, 0, 0, host(31, [2, 300, 64]), host(32, [2, 300, 64]))
      sequences.splice(2, 0, alone)
      for (const heads of [2, 8]) {
        const data = narrow(dtype, waves(33, [sequences.length, heads, 64]).data as Float32Array)
        const q: HostTensor = { data, shape: [sequences.length, heads, 64], dtype }
        const row = (at: number): HostTensor => ({
          data: data.subarray(at * heads * 64, (at + 1) * heads * 64),
          shape: [1, heads, 64],
          dtype,
        })
        for (const options of [
          { returnLse: true },
          { window: 5000, softcap: 3, returnLse: true },
          { window: 60, sinks: 2, returnLse: true },
        ] as const) {
          const found = attend(q, { cache, layer: 0, sequences }, options)
          const each = sequences.map((sequence, at) =>
            attend(row(at), { cache, layer: 0, sequences: [sequence] }, options),
          )
          const wanted = each.flatMap(({ out }) => Array.from(out.toFloat32Array()))
          const off = Math.max(
            ...Array.from(found.out.toFloat32Array(), (value, at) => Math.abs(value - (wanted[at] as number))),
          )
          t.true(off <= 2 * TOLERANCES[dtype], `${dtype}, ${format}, ${heads} heads: off by ${off}`)
          const sums = each.flatMap(({ lse }) => Array.from(lse))
          t.true(found.lse.every((value, at) => Math.abs(value - (sums[at] as number)) <= 1e-3))
        }
      }
    }
  }
})

onDevices('parts merge, arrays are filled, and the background says the same', async (t, device) => {
  const call = new Call('f32', { ...DECODE, tokens: 90 })
  using cache = kvCache(device, call)
  const { k, v } = cache.getKv()
  const q = call.q.host(89, 90)
  const options = { causal: false, returnLse: true } as const
  const whole = attend(q, { k, v }, options)
  const merged = mergeAttention(
    [
      [0, 30],
      [30, 31],
      [31, 90],
    ].map(([start = 0, end = 0]) =>
      attend(q, { k: k.narrow(2, start, end - start), v: v.narrow(2, start, end - start) }, options),
    ),
  )
  const [found, wanted] = [merged.out.toFloat32Array(), whole.out.toFloat32Array()]
  t.true(wanted.every((value, at) => Math.abs(value - (found[at] as number)) <= TOLERANCES.f32))
  const out = new Float32Array(8 * 128)
  t.is(attend(q, { k, v }, options, out).out, out)
  t.deepEqual(out, wanted)
  const later = await attendAsync(q, { k, v }, options)
  t.deepEqual([later.out.toFloat32Array(), later.lse], [wanted, whole.lse])
})
