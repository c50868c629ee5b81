// Writes the decoder of decoder.ts with the same weights as GGUF, the format that llama.cpp reads.
//
// In GGUF, matrices are transposed, and rows of queries and keys are in the order in which llama.cpp applies rotary embeddings. The vocabulary has
// no words: tokens are passed as ids in both directions.
import { closeSync, existsSync, openSync, readFileSync, readSync, writeFileSync, writeSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { DECODER, writeDecoder } from './decoder.js'

const ALIGNMENT = 32
const [U32, I32, F32, BOOL, STRING, ARRAY] = [4, 5, 6, 7, 8, 9]

const little = (bytes: number, write: (view: DataView) => void): Uint8Array => {
  const made = new Uint8Array(bytes)
  write(new DataView(made.buffer))
  return made
}
const u32 = (value: number): Uint8Array => little(4, view => view.setUint32(0, value, true))
const u64 = (value: number): Uint8Array => little(8, view => view.setBigUint64(0, BigInt(value), true))
const f32 = (value: number): Uint8Array => little(4, view => view.setFloat32(0, value, true))
const text = (value: string): Uint8Array => {
  const bytes = new TextEncoder().encode(value)
  return Buffer.concat([u64(bytes.length), bytes])
}
const entry = (key: string, type: number, value: Uint8Array): Uint8Array => Buffer.concat([text(key), u32(type), value])
const list = (key: string, type: number, values: readonly Uint8Array[]): Uint8Array =>
  entry(key, ARRAY, Buffer.concat([u32(type), u64(values.length), ...values]))

const sizeOf = (dims: readonly number[]): number => 4 * dims.reduce((all, dim) => all * dim, 1)

/** Transposes `[rows, columns]` to `[columns, rows]`. */
function turned(data: Float32Array, rows: number, columns: number, first = 0, count: number = columns): Float32Array {
  const made = new Float32Array(rows * count)
  for (let column = 0; column < count; column++)
    for (let row = 0; row < rows; row++) made[column * rows + row] = data[row * columns + first + column] as number
  return made
}

/** Interleaves the rows of each head: one of its first half, one of its second half. */
function paired(data: Float32Array, heads: number): Float32Array {
  const { headDim } = DECODER
  const width = data.length / heads / headDim
  const made = new Float32Array(data.length)
  for (let row = 0; row < heads * headDim; row++) {
    const [head, at] = [Math.floor(row / headDim), row % headDim]
    const from = head * headDim + (at % 2) * (headDim / 2) + Math.floor(at / 2)
    made.set(data.subarray(from * width, (from + 1) * width), row * width)
  }
  return made
}

interface StoredTensor {
  readonly name: string
  readonly dims: readonly number[]
  /** Returns the elements. It is called once, in the order of the tensors. */
  readonly read: () => Float32Array
}

const tensor = (name: string, dims: readonly number[], read: () => Float32Array): StoredTensor => ({
  name: `${name}.weight`,
  dims,
  read,
})

/** The tensors in the order in which their weights are drawn; `next(count)` draws the next weights. */
function tensorsOf(next: (count: number) => Float32Array): StoredTensor[] {
  const { layers, width, heads, kvHeads, headDim, hidden, vocabulary } = DECODER
  const [own, shared] = [heads * headDim, kvHeads * headDim]
  const columns = own + 2 * shared
  const ones = (name: string): StoredTensor => tensor(name, [width], () => new Float32Array(width).fill(1))
  const product = (name: string, rows: number, count: number): StoredTensor =>
    tensor(name, [rows, count], () => turned(next(rows * count), rows, count))
  const ofLayer = (layer: number): StoredTensor[] => {
    const name = (part: string): string => `blk.${layer}.${part}`
    let qkv: Float32Array = new Float32Array(0)
    return [
      ones(name('attn_norm')),
      tensor(name('attn_q'), [width, own], () =>
        paired(turned((qkv = next(width * columns)), width, columns, 0, own), heads),
      ),
      tensor(name('attn_k'), [width, shared], () => paired(turned(qkv, width, columns, own, shared), kvHeads)),
      tensor(name('attn_v'), [width, shared], () => turned(qkv, width, columns, own + shared, shared)),
      product(name('attn_output'), own, width),
      ones(name('ffn_norm')),
      product(name('ffn_gate'), width, hidden),
      product(name('ffn_up'), width, hidden),
      product(name('ffn_down'), hidden, width),
    ]
  }
  return [
    tensor('token_embd', [width, vocabulary], () => next(vocabulary * width)),
    ...Array.from({ length: layers }, (_, layer) => ofLayer(layer)).flat(),
    ones('output_norm'),
    product('output', width, vocabulary),
  ]
}

const word = (id: number): string =>
  id < 3
    ? (['<unk>', '<s>', '</s>'][id] as string)
    : id < 259
      ? `<0x${(id - 3).toString(16).toUpperCase().padStart(2, '0')}>`
      : `t${id}`

/** The file's metadata: the decoder's sizes, and a vocabulary without words. */
function entries(): Uint8Array[] {
  const { layers, width, heads, kvHeads, headDim, hidden, vocabulary, positions } = DECODER
  const rules = {
    context_length: positions,
    embedding_length: width,
    block_count: layers,
    feed_forward_length: hidden,
    'attention.head_count': heads,
    'attention.head_count_kv': kvHeads,
    'rope.dimension_count': headDim,
    vocab_size: vocabulary,
  }
  const ids = Array.from({ length: vocabulary }, (_, id) => id)
  return [
    entry('general.architecture', STRING, text('llama')),
    ...Object.entries(rules).map(([key, value]) => entry(`llama.${key}`, U32, u32(value))),
    entry('llama.attention.layer_norm_rms_epsilon', F32, f32(1e-6)),
    entry('llama.rope.freq_base', F32, f32(10_000)),
    entry('tokenizer.ggml.model', STRING, text('llama')),
    list(
      'tokenizer.ggml.tokens',
      STRING,
      ids.map(id => text(word(id))),
    ),
    list(
      'tokenizer.ggml.scores',
      F32,
      ids.map(id => f32(-id)),
    ),
    list(
      'tokenizer.ggml.token_type',
      I32,
      ids.map(id => u32(id === 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1)),
    ),
    ...['bos', 'eos', 'unknown'].map((name, place) =>
      entry(`tokenizer.ggml.${name}_token_id`, U32, u32([1, 2, 0][place] as number)),
    ),
    ...['bos', 'eos'].map(name => entry(`tokenizer.ggml.add_${name}_token`, BOOL, Uint8Array.of(0))),
  ]
}

/** Returns the path of the decoder in a folder, and writes the file if it doesn't exist. */
export function writeGguf(folder: string): string {
  const path = join(folder, 'decoder.gguf')
  const done = `${path}.json`
  if (existsSync(done) && readFileSync(done, 'utf8') === JSON.stringify(DECODER)) return path
  const weights = openSync(join(dirname(writeDecoder(folder)), 'decoder.onnx.data'), 'r')
  // Sines and cosines are drawn first.
  let at = DECODER.positions * DECODER.headDim * 4
  const tensors = tensorsOf(count => {
    const data = new Float32Array(count)
    readSync(weights, new Uint8Array(data.buffer), 0, data.byteLength, at)
    at += data.byteLength
    return data
  })
  let offset = 0
  const infos = tensors.map(({ name, dims }) => {
    const info = Buffer.concat([text(name), u32(dims.length), ...dims.map(u64), u32(0), u64(offset)])
    offset += Math.ceil(sizeOf(dims) / ALIGNMENT) * ALIGNMENT
    return info
  })
  const told = entries()
  const head = Buffer.concat([
    new TextEncoder().encode('GGUF'),
    u32(3),
    u64(tensors.length),
    u64(told.length),
    ...told,
    ...infos,
  ])
  const file = openSync(path, 'w')
  const pad = (length: number): void =>
    void writeSync(file, new Uint8Array((ALIGNMENT - (length % ALIGNMENT)) % ALIGNMENT))
  writeSync(file, head)
  pad(head.length)
  for (const { dims, read } of tensors) {
    writeSync(file, new Uint8Array(read().buffer))
    pad(sizeOf(dims))
  }
  closeSync(file)
  closeSync(weights)
  writeFileSync(done, JSON.stringify(DECODER))
  return path
}
