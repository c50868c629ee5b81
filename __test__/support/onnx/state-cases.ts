// Nodes of layers that keep a state, in many forms, each with its formulas in plain code. Inputs of a token follow from its id; all are multiples of 1/64, which
// half floats have as well.
import type { AttributeOf } from './model-bytes.js'

/** An input with a row for each token, or a weight. */
export type CaseInput = { readonly width: number; readonly kind: 'any' | 'negative' | 'positive' } | readonly number[]

/** A node, and its formulas. */
export interface StateCase {
  readonly title: string
  readonly operator: string
  readonly attributes: Readonly<Record<string, AttributeOf>>
  /** In the order of the node; `undefined` for one that is left out. */
  readonly inputs: readonly (CaseInput | undefined)[]
  /** The dimensions of the state. */
  readonly shape: readonly number[]
  /** The elements of a row of the output. */
  readonly out: number
  /** True if rows of channels come first. */
  readonly isTurned?: boolean
  /** The output of a token; changes the state, whose dimensions are those of `shape`. */
  step(rows: readonly (readonly number[])[], state: number[]): number[]
}

/** A token whose inputs are not numbers. */
export const NOTHING = 31
export const IDS = 32

/** The number of an input at a place of a row, from -1 to 1. */
export function numberAt(input: number, kind: 'any' | 'negative' | 'positive', id: number, at: number): number {
  if (id === NOTHING) return Number.NaN
  const random = ((Math.imul(id + 3, 2_654_435) + Math.imul(at + 1, 40_503) + Math.imul(input + 1, 97)) >>> 5) % 129
  const value = (random - 64) / 64
  return kind === 'any' ? value : kind === 'negative' ? -Math.abs(value) : Math.abs(value) / 2
}

/** Weights, the same on every machine. */
function weights(seed: number, count: number): number[] {
  return Array.from({ length: count }, (_, at) => numberAt(seed, 'any', seed, at))
}

const rows = (width: number, kind: 'any' | 'negative' | 'positive' = 'any'): CaseInput => ({ width, kind })
const silu = (value: number): number => value / (1 + Math.exp(-value))
const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0)

/** The elements of a head in a row. */
const part = (row: readonly number[], at: number, dim: number): number[] => row.slice(at * dim, (at + 1) * dim)

interface Convolution {
  readonly kernel?: number
  readonly columns?: number
  readonly isActivated?: boolean
  readonly hasBias?: boolean
}

/** A convolution with some order of dimensions. */
function convolution(
  channelsFirst: 0 | 1,
  stateChannelsFirst: 0 | 1,
  { kernel = 4, columns = kernel - 1, isActivated = false, hasBias = true }: Convolution = {},
): StateCase {
  const channels = 6
  const [weight, bias] = [weights(5, channels * kernel), hasBias ? weights(6, channels) : undefined]
  const place = (channel: number, column: number): number =>
    stateChannelsFirst === 1 ? channel * columns + column : column * channels + channel
  return {
    title: `convolution ${channelsFirst} ${stateChannelsFirst}, ${kernel} of ${columns}${isActivated ? ', SiLU' : ''}${hasBias ? '' : ', no bias'}`,
    operator: 'ShortConv',
    attributes: {
      channels,
      kernel,
      columns,
      channels_first: channelsFirst,
      state_channels_first: stateChannelsFirst,
      silu: isActivated ? 1 : 0,
    },
    inputs: [rows(channels), weight, bias],
    shape: stateChannelsFirst === 1 ? [channels, columns] : [columns, channels],
    out: channels,
    isTurned: channelsFirst === 1,
    step([x = []], state) {
      return x.map((value, channel) => {
        const before = Array.from({ length: columns }, (_, column) => state[place(channel, column)] as number)
        const all = [...before, value]
        for (const column of before.keys()) state[place(channel, column)] = all[column + 1] as number
        const own = weight.slice(channel * kernel, (channel + 1) * kernel)
        const total = sum(own.map((factor, at) => factor * (all[columns + 1 - kernel + at] as number)))
        const out = total + (bias?.[channel] ?? 0)
        return isActivated ? silu(out) : out
      })
    },
  }
}

interface Attention {
  readonly heads: readonly [q: number, k: number, v: number]
  readonly decay?: 'heads' | 'keys'
  readonly beta?: 'heads' | 'one'
  readonly scale?: number
  readonly norm?: number
}

/** Linear attention by some rule. */
function attention(title: string, { heads: [q, k, v], decay, beta, scale, norm }: Attention): StateCase {
  const [kDim, vDim] = [8, 4]
  const factor = scale ?? 1 / Math.sqrt(kDim)
  const normed = (row: readonly number[]): number[] => {
    if (norm === undefined) return [...row]
    const length = Math.sqrt(norm + sum(row.map(value => value * value)))
    return row.map(value => value / length)
  }
  return {
    title,
    operator: 'LinearAttention',
    attributes: {
      q_heads: q,
      k_heads: k,
      v_heads: v,
      k_dim: kDim,
      v_dim: vDim,
      scale: { float: factor },
      ...(norm === undefined ? {} : { l2_norm: { float: norm } }),
    },
    inputs: [
      rows(q * kDim),
      rows(k * kDim),
      rows(v * vDim),
      decay === undefined ? undefined : rows(decay === 'heads' ? v : v * kDim, 'negative'),
      ...(beta === undefined ? [] : [rows(beta === 'heads' ? v : 1, 'positive')]),
    ],
    shape: [v, kDim, vDim],
    out: Math.max(q, v) * vDim,
    step([query = [], key = [], value = [], decays = [], betas = []], state) {
      const out: number[] = []
      for (let at = 0; at < v; at++) {
        const own = normed(part(key, Math.floor((at * k) / v), kDim))
        const values = part(value, at, vDim)
        const place = (row: number, column: number): number => (at * kDim + row) * vDim + column
        for (let row = 0; row < kDim; row++) {
          const exponent = decay === undefined ? 0 : decay === 'heads' ? decays[at] : decays[at * kDim + row]
          for (let column = 0; column < vDim; column++)
            state[place(row, column)] = (state[place(row, column)] as number) * Math.exp(exponent as number)
        }
        const held = values.map((_, column) =>
          sum(own.map((number, row) => number * (state[place(row, column)] as number))),
        )
        for (const [column, number] of values.entries()) {
          const rate = beta === undefined ? undefined : betas[beta === 'one' ? 0 : at]
          const added = rate === undefined ? number : rate * (number - (held[column] as number))
          for (const [row, factorOf] of own.entries())
            state[place(row, column)] = (state[place(row, column)] as number) + factorOf * added
        }
        const count = Math.max(q / v, 1)
        for (let index = 0; index < count; index++) {
          const which = q >= v ? at * count + index : Math.floor((at * q) / v)
          const asked = normed(part(query, which, kDim))
          for (let column = 0; column < vDim; column++)
            out.push(factor * sum(asked.map((number, row) => number * (state[place(row, column)] as number))))
        }
      }
      return out
    },
  }
}

interface Space {
  readonly softplus?: 0 | 1
  readonly limits?: readonly [low: number, high: number]
  readonly skip?: 'heads' | 'elements'
  readonly hasBias?: boolean
}

/** A state space model. */
function space(title: string, { softplus = 0, limits, skip, hasBias = false }: Space): StateCase {
  const [heads, dim, groups, size] = [4, 6, 2, 8]
  const a = weights(7, heads).map(value => -Math.abs(value) - 1 / 64)
  const d = skip === undefined ? undefined : weights(8, skip === 'heads' ? heads : heads * dim)
  const bias = hasBias ? weights(9, heads) : undefined
  return {
    title,
    operator: 'StateSpace',
    attributes: {
      heads,
      head_dim: dim,
      groups,
      state_size: size,
      softplus,
      ...(limits === undefined ? {} : { limits: { floats: limits } }),
    },
    inputs: [
      rows(heads * dim),
      rows(groups * size),
      rows(groups * size),
      rows(heads, 'positive'),
      a,
      d,
      ...(bias === undefined ? [] : [bias]),
    ],
    shape: [heads, dim, size],
    out: heads * dim,
    step([x = [], b = [], c = [], times = []], state) {
      return x.map((value, at) => {
        const head = Math.floor(at / dim)
        const first = Math.floor((head * groups) / heads) * size
        const biased = (times[head] as number) + (bias?.[head] ?? 0)
        const open = softplus === 1 ? Math.log1p(Math.exp(biased)) : biased
        const time = limits === undefined ? open : Math.min(Math.max(open, limits[0]), limits[1])
        let out = (d?.[skip === 'heads' ? head : at] ?? 0) * value
        for (let place = 0; place < size; place++) {
          const decayed = (state[at * size + place] as number) * Math.exp(time * (a[head] as number))
          state[at * size + place] = decayed + time * value * (b[first + place] as number)
          out += (state[at * size + place] as number) * (c[first + place] as number)
        }
        return out
      })
    },
  }
}

export const CASES: readonly StateCase[] = [
  convolution(0, 1),
  convolution(1, 1, { isActivated: true }),
  convolution(1, 0, { kernel: 3, columns: 5, hasBias: false }),
  convolution(0, 0, { kernel: 2, isActivated: true, hasBias: false }),
  attention('linear attention', { heads: [2, 2, 2], scale: 0.5 }),
  attention('gated attention, a decay for each key', { heads: [2, 1, 2], decay: 'keys' }),
  attention('a gated delta net', { heads: [2, 2, 4], decay: 'heads', beta: 'heads', norm: 1e-6 }),
  attention('the delta rule with one rate, and more queries', { heads: [4, 1, 2], beta: 'one', norm: 1e-3 }),
  space('a state space model', { softplus: 1, skip: 'heads', hasBias: true }),
  space('a state space model with limits', { limits: [0.05, 0.3], skip: 'elements' }),
  space('a state space model without a skip', {}),
]
