// PagedKvCache in rows of a model's size, on each device: what its pages show is what went in, bit for bit.
import { type HostTensor, PagedKvCache, type UniformCacheOptions, type Sequence } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { expected, same, type Shape } from '../support/properties.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { wideOn } from '../support/wide.js'

const LAYERS = 2

const make = ({ device, heads, dim, dtype }: Shape, options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({
    device,
    capacity: 64,
    blockSize: 16,
    numLayers: LAYERS,
    numKvHeads: heads,
    headDim: dim,
    dtype,
    ...options,
  })

/** K and V of tokens, in all layers or in one: those of a layer are those of a row of a batch. */
function given(
  { dtype, heads, dim }: Shape,
  tokens: readonly number[],
  layer?: number,
): [k: HostTensor, v: HostTensor] {
  const all: Shape = { device: 'cpu', dtype, heads, dim, batch: LAYERS }
  const per = heads * tokens.length * dim
  const of = (part: number): HostTensor => {
    const data = expected(all, tokens, part)
    if (layer === undefined) return { data, shape: [LAYERS, heads, tokens.length, dim], dtype }
    return { data: data.slice(layer * per, (layer + 1) * per), shape: [heads, tokens.length, dim], dtype }
  }
  return [of(0), of(1)]
}

const isSame = (one: ArrayBufferView, other: ArrayBufferView): boolean =>
  Buffer.compare(
    new Uint8Array(one.buffer, one.byteOffset, one.byteLength),
    new Uint8Array(other.buffer, other.byteOffset, other.byteLength),
  ) === 0

/** Throws unless a sequence has these tokens in all layers, bit for bit. */
function holds(cache: PagedKvCache, seq: Sequence | number, shape: Shape, tokens: readonly number[]): void {
  for (const layer of span(0, LAYERS)) {
    const { k, v } = cache.gather(seq, layer)
    for (const [part, wanted] of given(shape, tokens, layer).entries()) {
      if (!isSame((part === 0 ? k : v).toArray(), wanted.data as Float32Array))
        throw new Error(`layer ${layer}, part ${part} shows other tokens`)
    }
  }
  cache.checkInvariants()
}

onDevices('prompts in bulk, then steps of a batch in one call', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    const lengths = [1, 15, 16, 33, 70]
    const sequences = lengths.map(() => cache.createSequence())
    for (const [at, length] of lengths.entries()) {
      for (const layer of span(0, LAYERS))
        cache.writeTokens(
          sequences[at] as number,
          layer,
          0,
          ...given(shape, span(1000 * at, 1000 * at + length), layer),
        )
    }
    for (const step of span(0, 20)) {
      const tokens = lengths.map((length, at) => 1000 * at + length + step)
      cache.append(sequences, ...given(shape, tokens))
    }
    const offsets = [0, 3, 3, 20, 21, 22]
    cache.append(sequences, ...given(shape, span(9000, 9022)), offsets)
    for (const [at, length] of lengths.entries()) {
      holds(cache, sequences[at] as number, shape, [
        ...span(1000 * at, 1000 * at + length + 20),
        ...span(9000 + (offsets[at] as number), 9000 + (offsets[at + 1] as number)),
      ])
    }
    t.is(cache.device, device)
  }
})

onDevices(
  'single tokens are written and read anywhere, and slots that were never written are refused or zeros',
  (t, device) => {
    for (const shape of wideOn(device)) {
      using cache = make(shape, { capacity: 4 })
      const used = cache.createSequence()
      cache.append([used], ...given(shape, span(0, 64)), [0, 64])
      cache.dropSequence(used)
      const seq = cache.createSequence()
      const [key, value] = given(shape, [7], 1).map(({ data }) => data as Float32Array) as [Float32Array, Float32Array]
      cache.writeKv(seq, 1, 21, key, value)
      const found = cache.readKv(seq, 1, 21)
      t.true(isSame(found.key, key) && isSame(found.value, value))
      throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 1, 20))
      throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 0, 21))
      const { k } = cache.gather(seq, 1)
      const zeros = new Uint8Array(16 * shape.dim * (shape.dtype === 'f32' ? 4 : 2))
      for (const head of span(0, shape.heads))
        t.true(isSame(k.narrow(0, head, 1).narrow(1, 0, 16).toArray(), zeros), 'of the sequence before nothing is left')
    }
  },
)

onDevices('forks, snapshots and truncation share blocks, and writers get their own', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    const one = cache.openSequence()
    one.append(pair(shape, span(0, 50)))
    const other = one.fork()
    using snapshot = one.snapshot()
    const before = cache.freeCount
    one.append(pair(shape, span(100, 110)))
    other.append(pair(shape, span(200, 203)))
    t.is(before - cache.freeCount, 2, "a copy of the last block for each but the snapshot's")
    other.truncate(20)
    other.append(pair(shape, span(300, 330)))
    holds(cache, one, shape, [...span(0, 50), ...span(100, 110)])
    holds(cache, other, shape, [...span(0, 20), ...span(300, 330)])
    one.restore(snapshot)
    holds(cache, one, shape, span(0, 50))
  }
})

const pair = (shape: Shape, tokens: readonly number[]): { k: HostTensor; v: HostTensor } => {
  const [k, v] = given(shape, tokens)
  return { k, v }
}

onDevices('a prompt finds what is cached, and eviction takes the rest', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape, { capacity: 8 })
    const ids = span(0, 100)
    const first = cache.openSequence()
    first.append({ ...pair(shape, ids), tokens: ids })
    first.drop()
    const match = cache.match(ids)
    t.is(match.length, 96)
    const again = cache.openSequence({ prefix: match })
    holds(cache, again, shape, span(0, 96))
    again.append({ ...pair(shape, span(500, 520)), tokens: span(500, 520) })
    holds(cache, again, shape, [...span(0, 96), ...span(500, 520)])
    again.drop()
    const large = cache.openSequence()
    large.append(pair(shape, span(0, 128)))
    holds(cache, large, shape, span(0, 128))
    same('what is found after eviction', cache.match(ids).length, 0)
    throwsCode(t, 'OUT_OF_BLOCKS', () => large.append(pair(shape, [1])))
  }
})

onDevices("a draft's accepted path is moved to its front", (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    const seq = cache.openSequence()
    seq.append(pair(shape, span(0, 29)))
    const draft = seq.begin()
    const { k, v } = pair(shape, span(100, 108))
    draft.append({ k, v, parents: [-1, -1, 0, 0, 1, 1, 4, 6] })
    draft.commitPath([1, 4, 6, 7])
    holds(cache, seq, shape, [...span(0, 29), 101, 104, 106, 107])
    t.is(seq.length, 33)
  }
})
