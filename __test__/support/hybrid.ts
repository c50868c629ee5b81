// A small hybrid model: a layer with attention, a layer with a state, and one with both. A state is the running hash of all tokens of its sequence, so that a
// wrong one is seen.
import { type ModelCacheOptions, PagedKvCache, type Sequence } from '../../index.js'

const full = { kind: 'full', numKvHeads: 1, headDim: 2 } as const
const conv = { name: 'conv', shape: [3, 5], dtype: 'f16' } as const
const ssm = { name: 'ssm', shape: [7, 3], dtype: 'f32' } as const

export const HYBRID: ModelCacheOptions['model'] = {
  layers: [full, { kind: 'state', tensors: [conv, ssm] }, { ...full, tensors: [conv] }],
}
/** A model without attention. */
export const MAMBA: ModelCacheOptions['model'] = { layers: [{ kind: 'state', tensors: [ssm] }] }

export const BLOCK = 4

/** A cache of the hybrid model, whose `capacity` is that of blocks and of slots. */
export function hybridCache(options: Partial<ModelCacheOptions> = {}): PagedKvCache {
  return new PagedKvCache({
    capacity: 60,
    blockSize: BLOCK,
    model: HYBRID,
    prefixKey: new Uint8Array(32).fill(7),
    ...options,
  })
}

/** The states after these tokens. */
function follow(before: Uint8Array, tokens: readonly number[]): Uint8Array {
  let hash = new DataView(before.buffer, before.byteOffset).getUint32(0)
  for (const token of tokens) {
    hash = Math.imul(hash ^ (token + 1), 0x9e3779b1) >>> 0
    hash = (hash ^ (hash >>> 15)) >>> 0
  }
  return before.map((_, at) => (hash >>> (24 - (at % 4) * 8)) & 0xff)
}

/** The states of a sequence of these tokens, computed at once. */
export function statesOf(cache: PagedKvCache, tokens: readonly number[]): Uint8Array {
  const none = new Uint8Array(cache.groups.at(-1)?.bytes ?? 0)
  return tokens.length === 0 ? none : follow(none, tokens)
}

const rows = (tokens: readonly number[]) => ({
  data: Float32Array.from(tokens.flatMap(token => [token, token])),
  shape: [1, tokens.length, 2],
})

/** Computes tokens of a sequence in one step. */
export function step(cache: PagedKvCache, sequence: Sequence, tokens: readonly number[]): void {
  using open = cache.beginStep({ sequences: [sequence], offsets: [0, tokens.length] })
  for (const { kind, layers } of cache.groups)
    if (kind !== 'state') for (const layer of layers) open.write(layer, rows(tokens), rows(tokens))
  open.writeStates(0, follow(open.readStates(0), tokens))
  open.commit(tokens)
}

/** Computes the rest of a prompt behind its cached prefix, in steps that end at these lengths and at its end. */
export function compute(cache: PagedKvCache, tokens: readonly number[], ends: readonly number[] = []): Sequence {
  const sequence = cache.openSequence({ prefix: cache.match(tokens) })
  for (const end of [...ends, tokens.length].toSorted((a, b) => a - b)) {
    const { length } = sequence
    if (end > length && end <= tokens.length) step(cache, sequence, tokens.slice(length, end))
  }
  return sequence
}
