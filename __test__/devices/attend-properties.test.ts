// Attention on random shapes and rules, against its definition in 64-bit floats.
import fc from 'fast-check'

import {
  attend,
  mergeAttention,
  RotatingCache,
  Tensor,
  type AttendOptions,
  type DType,
  type HostTensor,
  type TokenSource,
} from '../../index.js'
import { onDevices } from '../support/devices.js'
import { narrow, widen } from '../support/half.js'
import { naiveRow, type Naive } from '../support/naive-attention.js'
import { check } from '../support/properties.js'
import { span } from '../support/tokens.js'

const cases = fc.record({
  seed: fc.integer({ min: 1, max: 2 ** 31 - 1 }),
  dtypes: fc.tuple(...[0, 1, 2].map(() => fc.constantFrom<DType>('f32', 'f32', 'f16', 'bf16'))),
  layout: fc.constantFrom('bhsd' as const, 'bshd' as const),
  ragged: fc.boolean(),
  batch: fc.integer({ min: 1, max: 2 }),
  kvHeads: fc.integer({ min: 1, max: 2 }),
  group: fc.integer({ min: 1, max: 3 }),
  queries: fc.integer({ min: 0, max: 5 }),
  past: fc.oneof(fc.integer({ min: 0, max: 6 }), fc.constant(150)),
  dim: fc.constantFrom(1, 3, 8, 17),
  valueDim: fc.constantFrom(1, 5, 16),
  causal: fc.boolean(),
  window: fc.option(fc.integer({ min: 1, max: 9 }), { nil: undefined }),
  sinks: fc.integer({ min: 0, max: 3 }),
  scale: fc.option(fc.double({ min: 0.1, max: 2, noNaN: true }), { nil: undefined }),
  softcap: fc.option(fc.double({ min: 0.5, max: 5, noNaN: true }), { nil: undefined }),
  sinkLogits: fc.boolean(),
  alibiSlopes: fc.boolean(),
  mask: fc.boolean(),
  starts: fc.boolean(),
  positions: fc.boolean(),
  threads: fc.option(fc.integer({ min: 1, max: 3 }), { nil: undefined }),
})

type Case = typeof cases extends fc.Arbitrary<infer T> ? T : never

/** Numbers between -2 and 2 that follow from a seed. */
function random(seed: number, count: number): number[] {
  let state = seed
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return (state / 2 ** 32) * 4 - 2
  })
}

/** Rows of one case: the argument, and each row as the numbers that its elements are. */
interface Rows {
  readonly host: HostTensor
  readonly row: (batch: number, head: number, token: number) => readonly number[]
}

function rowsOf(of: Case, salt: number, heads: number, tokens: number, dim: number): Rows {
  const dtype = of.dtypes[salt] as DType
  const data = narrow(dtype, random(of.seed + salt, of.batch * heads * tokens * dim))
  const numbers = widen(dtype, data)
  const tokenMajor = of.ragged || of.layout === 'bshd'
  const at = (batch: number, head: number, token: number): number =>
    tokenMajor ? (batch * tokens + token) * heads + head : (batch * heads + head) * tokens + token
  const shape = of.ragged
    ? [of.batch * tokens, heads, dim]
    : tokenMajor
      ? [of.batch, tokens, heads, dim]
      : [of.batch, heads, tokens, dim]
  const host = { data, shape, dtype, ...(of.ragged ? {} : { layout: of.layout }) }
  return { host, row: (...place) => numbers.slice(at(...place) * dim, (at(...place) + 1) * dim) }
}

/** The options of a case, and what they mean. */
function rulesOf(of: Case): { options: AttendOptions; naive: (batch: number) => Omit<Naive, 'q' | 'k' | 'v'> } {
  const { batch, queries, past, causal, window, sinks, softcap } = of
  const [keys, queryHeads] = [past + queries, of.kvHeads * of.group]
  const starts =
    of.starts && sinks === 0 ? random(of.seed + 9, batch).map(value => Math.floor(Math.abs(value) * 3)) : undefined
  const positions = of.positions ? span(0, queries).map(query => Math.max(0, past + query - 1)) : undefined
  const sinkLogits = of.sinkLogits ? random(of.seed + 7, queryHeads) : undefined
  const alibiSlopes = of.alibiSlopes
    ? random(of.seed + 11, queryHeads).map(slope => (2 * slope) / (keys + 1))
    : undefined
  const mask = of.mask ? random(of.seed + 8, queries * keys).map(value => (value > 1.5 ? -Infinity : value)) : undefined
  const offsets = (each: number): number[] => span(0, batch + 1).map(sequence => sequence * each)
  const given = { window, scale: of.scale, softcap, sinkLogits, alibiSlopes, starts, positions, threads: of.threads }
  const options = {
    causal,
    sinks,
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
    ...(mask === undefined ? {} : { mask: { data: Float32Array.from(mask), shape: [queries, keys] } }),
    ...(of.ragged ? { qOffsets: offsets(queries) } : {}),
  } satisfies AttendOptions
  const position = (query: number): number => positions?.[query] ?? past + query
  const naive = (row: number): Omit<Naive, 'q' | 'k' | 'v'> => ({
    queries,
    queryHeads,
    kvHeads: of.kvHeads,
    keys,
    valueDim: of.valueDim,
    scale: of.scale ?? 1 / Math.sqrt(of.dim),
    softcap,
    sinkLogits: sinkLogits?.map(Math.fround),
    alibiSlopes: alibiSlopes?.map(Math.fround),
    distance: (query, key) => position(query) - key,
    mask: mask && ((_, query, key) => Math.fround(mask[query * keys + key] as number)),
    shows: (query, key) =>
      (!causal || key <= position(query)) &&
      (window === undefined || position(query) - key < window || key < sinks) &&
      Math.min(key, position(query)) >= (starts?.[row] ?? -Infinity),
  })
  return { options, naive }
}

/**
 * Differences that are let pass: a few units in the last place of scores and sums, and one rounding to the queries' dtype. GPUs add in
 * another order, with an exponential that is off by a unit or two.
 */
const TOLERANCES = { f32: 4e-6, f16: 2e-3, bf16: 1.6e-2, u8: 0 }
const toleranceOf = (device: string, dtype: DType): number =>
  (device === 'cpu' ? 1 : dtype === 'f32' ? 5 : 1) * TOLERANCES[dtype]
const lseToleranceOf = (device: string): number => (device === 'cpu' ? 8e-6 : 2e-5)

/** Keys or values where the device sees them. The CPU reads them where they are. */
function heldOn(device: string, host: HostTensor): TokenSource {
  const { data, shape = [], dtype = 'f32' } = host
  if (device === 'cpu') return host
  if (shape.length === 3) return Tensor.from(data as Float32Array, shape, { dtype, device })
  return new RotatingCache({ dim: 2, maxSeqLen: 1024, device }).append(host)
}

onDevices('attention is what its definition says', (t, device) => {
  check(t, cases, of => {
    const [queryHeads, keys] = [of.kvHeads * of.group, of.past + of.queries]
    const q = rowsOf(of, 0, queryHeads, of.queries, of.dim)
    const k = rowsOf(of, 1, of.kvHeads, keys, of.dim)
    const v = rowsOf(of, 2, of.kvHeads, keys, of.valueDim)
    const { options, naive } = rulesOf(of)
    const kv = {
      k: heldOn(device, k.host),
      v: heldOn(device, v.host),
      ...(of.ragged ? { kvOffsets: span(0, of.batch + 1).map(sequence => sequence * keys) } : {}),
    }
    const { out, lse } = attend(q.host, kv, { ...options, returnLse: true })
    const found = out.toFloat32Array()
    const tolerance = toleranceOf(device, of.dtypes[0] as DType)
    for (const [batch, head, query] of places(of.batch, queryHeads, of.queries)) {
      const rows = {
        ...naive(batch),
        q: q.row.bind(null, batch),
        k: k.row.bind(null, batch),
        v: v.row.bind(null, batch),
      }
      const wanted = naiveRow(rows, head, query)
      const token = batch * of.queries + query
      const at = of.ragged ? token * queryHeads + head : (batch * queryHeads + head) * of.queries + query
      near(lse[token * queryHeads + head] as number, wanted.lse, lseToleranceOf(device), 'a log-sum-exp')
      for (const [place, value] of wanted.out.entries())
        near(found[at * of.valueDim + place] as number, value, tolerance, 'an output')
    }
    if (out.dtype !== of.dtypes[0]) throw new Error(`the output is ${out.dtype}`)
  })
})

onDevices('attention over parts of the keys merges to attention over all of them', (t, device) => {
  const split = fc.record({ of: cases, parts: fc.integer({ min: 1, max: 4 }) })
  check(t, split, ({ of: drawn, parts }) => {
    const of: Case = { ...drawn, dtypes: ['f32', 'f32', 'f32'], layout: 'bhsd', ragged: false }
    const [queryHeads, keys] = [of.kvHeads * of.group, of.past + of.queries]
    const q = rowsOf(of, 0, queryHeads, of.queries, of.dim).host
    const [k, v] = [
      Tensor.from(...dense(rowsOf(of, 1, of.kvHeads, keys, of.dim).host, device)),
      Tensor.from(...dense(rowsOf(of, 2, of.kvHeads, keys, of.valueDim).host, device)),
    ]
    const options = { causal: false, returnLse: true } as const
    const whole = attend(q, { k, v }, options)
    const ends = span(0, parts + 1).map(part => Math.floor((part * keys) / parts))
    const merged = mergeAttention(
      span(0, parts).map(part => {
        const [start, end] = [ends[part] as number, ends[part + 1] as number]
        return attend(q, { k: k.narrow(2, start, end - start), v: v.narrow(2, start, end - start) }, options)
      }),
    )
    const [found, wanted] = [merged.out.toArray(), whole.out.toArray()]
    for (const [place, value] of wanted.entries())
      near(found[place] as number, value, toleranceOf(device, 'f32'), 'an output')
    for (const [place, value] of whole.lse.entries())
      near(merged.lse[place] as number, value, lseToleranceOf(device), 'a log-sum-exp')
  })
})

/** The numbers and shape of a tensor of 32-bit floats on a device. */
const dense = (
  { data, shape = [] }: HostTensor,
  device: string,
): [Float32Array, readonly number[], { device: string }] => [data as Float32Array, shape, { device }]

function* places(batch: number, heads: number, queries: number): Generator<readonly [number, number, number]> {
  for (const row of span(0, batch))
    for (const head of span(0, heads)) for (const query of span(0, queries)) yield [row, head, query]
}

/** Throws unless two numbers are near; those over 1 relatively. */
function near(found: number, wanted: number, tolerance: number, what: string): void {
  if (found === wanted || Math.abs(found - wanted) <= tolerance * Math.max(1, Math.abs(wanted))) return
  throw new Error(`${what} is ${found}, expected ${wanted}`)
}
