import {
  attend,
  type HostTensor,
  type KvSource,
  type ModelDescription,
  PagedKvCache,
  type Sequence,
  type Step,
} from '../../index.js'
import { span } from './tokens.js'

const SIZES = { numKvHeads: 2, headDim: 2 }

/** The number of query heads. */
const HEADS = 4

/** A window with a sink, a full layer, a layer that shares layer 1's keys and values, and a window again. */
export const HYBRID: ModelDescription = {
  layers: [
    { kind: 'sliding', window: 4, sinks: 1, ...SIZES },
    { kind: 'full', ...SIZES },
    { kind: 'shared', with: 1, ...SIZES },
    { kind: 'sliding', window: 4, sinks: 1, ...SIZES },
  ],
  attention: { numQueryHeads: HEADS, scale: 0.5, softcap: 20 },
}

/** The layers of {@link HYBRID} with keys and values of their own. */
export const OWN: readonly number[] = [0, 1, 3]

/** Numbers that differ from token to token, `[heads, n, 2]`, or with tokens first. */
function waves(tokens: readonly number[], heads: number, seed: number, layout: 'heads' | 'tokens'): Float32Array {
  const pairs =
    layout === 'heads'
      ? span(0, heads).flatMap(head => tokens.map(token => [token, head]))
      : tokens.flatMap(token => span(0, heads).map(head => [token, head]))
  return Float32Array.from(
    pairs.flatMap(([token = 0, head = 0]) =>
      [0, 1].map(at => Math.sin(1 + 0.7 * token + 2.1 * head + 0.5 * at + seed)),
    ),
  )
}

/** K and V of tokens in a layer, `[2, n, 2]`. */
export function kvOf(layer: number, tokens: readonly number[]): KvSource {
  const of = (seed: number): HostTensor => ({
    data: waves(tokens, 2, 1.3 * layer + seed, 'heads'),
    shape: [2, tokens.length, 2],
  })
  return { k: of(0), v: of(10) }
}

/** K and V of tokens in every layer with its own. */
export const layersOf = (tokens: readonly number[]): KvSource[] => OWN.map(layer => kvOf(layer, tokens))

/** Returns a cache of {@link HYBRID}. */
export const paged = (more: object = {}): PagedKvCache =>
  new PagedKvCache({ model: HYBRID, blockSize: 4, capacity: 32, ...more })

/** Small blocks, and blocks of a single token. */
export const KINDS: readonly (readonly [kind: string, make: typeof paged])[] = [
  ['blocks of 4', paged],
  ['blocks of 1', (more = {}) => paged({ blockSize: 1, capacity: 128, ...more })],
]

/** Appends tokens with ids to a sequence of such a cache. */
export const feed = (sequence: Sequence, tokens: readonly number[]): void =>
  sequence.append({ layers: layersOf(tokens), tokens })

/** Queries of tokens in a layer, `[n, 4, 2]`. */
export function queriesOf(layer: number, tokens: readonly number[]): HostTensor {
  return { data: waves(tokens, HEADS, 5 + layer, 'tokens'), shape: [tokens.length, HEADS, 2] }
}

/** `[heads, n, 2]` as `[n, heads, 2]`. */
function tokensFirst({ data, shape }: HostTensor): HostTensor {
  const [heads, n] = shape as readonly [number, number, number]
  const moved = new Float32Array(heads * n * 2)
  for (let at = 0; at < moved.length; at++) {
    const [head, token] = [Math.floor(at / 2 / n), Math.floor(at / 2) % n]
    moved[(token * heads + head) * 2 + (at % 2)] = (data as Float32Array)[at] as number
  }
  return { data: moved, shape: [n, heads, 2] }
}

/** The attention of the last tokens in a layer over all tokens, computed on contiguous tensors. */
export function seen(layer: number, tokens: readonly number[], last: number): Float32Array {
  const { k, v } = kvOf(layer === 2 ? 1 : layer, tokens)
  const slides = layer === 0 || layer === 3 ? { window: 4, sinks: 1 } : {}
  const kv = { k: tokensFirst(k as HostTensor), v: tokensFirst(v as HostTensor), kvOffsets: [0, tokens.length] }
  return attend(queriesOf(layer, tokens.slice(-last)), kv, {
    scale: 0.5,
    softcap: 20,
    qOffsets: [0, last],
    ...slides,
  }).out.toFloat32Array()
}

/** Writes the tokens of a step layer by layer, and returns the largest difference between their attention and the expected one. */
export function runStep(step: Step, histories: readonly (readonly number[])[]): number {
  const lasts = histories.map((_, place) => (step.offsets[place + 1] as number) - (step.offsets[place] as number))
  const tokens = histories.flatMap((history, place) => history.slice(history.length - (lasts[place] as number)))
  let most = 0
  for (const [layer] of HYBRID.layers.entries()) {
    if (OWN.includes(layer)) {
      const { k, v } = kvOf(layer, tokens)
      step.write(layer, k, v)
    }
    const found = step.attend(layer, queriesOf(layer, tokens)).out.toFloat32Array()
    const wanted = histories.flatMap((history, place) => Array.from(seen(layer, history, lasts[place] as number)))
    most = Math.max(most, ...wanted.map((value, at) => Math.abs(value - (found[at] as number))))
    if (found.length !== wanted.length) return Infinity
  }
  return most
}

/** Runs a step of one sequence for the last tokens of a history, and returns the error of its attention. */
export function stepOf(cache: PagedKvCache, sequence: Sequence, history: readonly number[], last: number): number {
  using step = cache.beginStep({ sequences: [sequence], offsets: [0, last] })
  const off = runStep(step, [history])
  step.commit(history.slice(-last))
  return off
}
