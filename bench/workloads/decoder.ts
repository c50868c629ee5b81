// Writes a decoder with random weights as an ONNX file: packed QKV, GroupQueryAttention with rotary inside, gated feed-forward. Its outputs are
// meaningless; its sizes are those of a small model.
//
// This module writes the file itself: an ONNX model is a few nested protobuf messages, and writing them takes less code than installing a tool.
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'

export interface DecoderSizes {
  readonly layers: number
  readonly width: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly hidden: number
  readonly vocabulary: number
  readonly positions: number
}

export const DECODER: DecoderSizes = {
  layers: 12,
  width: 768,
  heads: 12,
  kvHeads: 4,
  headDim: 64,
  hidden: 2048,
  vocabulary: 32_000,
  positions: 16_384,
}

const [FLOAT, INT32, INT64] = [1, 6, 7]

type Bytes = readonly number[] | Uint8Array

function varint(value: number): number[] {
  const bytes: number[] = []
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return [...bytes, rest]
    bytes.push((rest % 128) + 128)
  }
}

const whole = (field: number, value: number): Bytes => [...varint(field * 8), ...varint(value)]

function message(field: number, ...parts: readonly Bytes[]): Uint8Array {
  const length = parts.reduce((sum, part) => sum + part.length, 0)
  const head = [...varint(field * 8 + 2), ...varint(length)]
  const bytes = new Uint8Array(head.length + length)
  bytes.set(head)
  let at = head.length
  for (const part of parts) {
    bytes.set(part, at)
    at += part.length
  }
  return bytes
}

const text = (field: number, value: string): Bytes => message(field, new TextEncoder().encode(value))

type Attribute = number | { readonly float: number }

function attribute(name: string, value: Attribute): Bytes {
  if (typeof value === 'number') return message(5, text(1, name), whole(3, value), whole(20, 2))
  return message(5, text(1, name), [2 * 8 + 5, ...new Uint8Array(Float32Array.of(value.float).buffer)], whole(20, 1))
}

/** Nodes, weights, inputs and outputs of a graph, each in order. */
class Graph {
  readonly #nodes: Bytes[] = []
  readonly #weights: Bytes[] = []
  readonly #inputs: Bytes[] = []
  readonly #outputs: Bytes[] = []
  readonly #file: number
  #end = 0
  #state = 0x2545f491

  constructor(file: number) {
    this.#file = file
  }

  node(
    operator: string,
    inputs: readonly string[],
    outputs: readonly string[],
    attributes: Readonly<Record<string, Attribute>> = {},
    domain = '',
  ): string {
    const [name] = outputs as [string]
    const lists = [...inputs.map(input => text(1, input)), ...outputs.map(output => text(2, output))]
    this.#nodes.push(
      message(
        1,
        ...lists,
        text(3, name),
        text(4, operator),
        ...Object.entries(attributes).map(([key, value]) => attribute(key, value)),
        text(7, domain),
      ),
    )
    return name
  }

  /** A small tensor, in the file itself. */
  constant(name: string, type: number, dims: readonly number[], data: Float32Array | BigInt64Array): string {
    this.#weights.push(
      message(
        5,
        ...dims.map(dim => whole(1, dim)),
        whole(2, type),
        text(8, name),
        message(9, new Uint8Array(data.buffer)),
      ),
    )
    return name
  }

  /** A large tensor, in the external data file. */
  stored(name: string, dims: readonly number[], data: Float32Array): string {
    const entry = (key: string, value: string): Bytes => message(13, text(1, key), text(2, value))
    const place = [
      entry('location', 'decoder.onnx.data'),
      entry('offset', `${this.#end}`),
      entry('length', `${data.byteLength}`),
    ]
    this.#weights.push(
      message(5, ...dims.map(dim => whole(1, dim)), whole(2, FLOAT), text(8, name), ...place, whole(14, 1)),
    )
    writeSync(this.#file, new Uint8Array(data.buffer))
    this.#end += data.byteLength
    return name
  }

  /** Random weights, with a standard deviation that keeps the magnitude of activations constant. */
  weight(name: string, rows: number, columns: number, deviation: number = 1 / Math.sqrt(rows)): string {
    const data = new Float32Array(rows * columns)
    for (let index = 0; index < data.length; index++) {
      this.#state ^= this.#state << 13
      this.#state ^= this.#state >>> 17
      this.#state ^= this.#state << 5
      data[index] = ((this.#state >>> 0) / 2 ** 31 - 1) * Math.sqrt(3) * deviation
    }
    return this.stored(name, [rows, columns], data)
  }

  /** The weights of a norm. */
  ones(name: string, count: number): string {
    return this.constant(name, FLOAT, [count], new Float32Array(count).fill(1))
  }

  input(name: string, type: number, dims: readonly (number | string)[]): void {
    this.#inputs.push(port(11, name, type, dims))
  }

  output(name: string, type: number, dims: readonly (number | string)[]): void {
    this.#outputs.push(port(12, name, type, dims))
  }

  message(name: string): Uint8Array {
    return message(7, ...this.#nodes, text(2, name), ...this.#weights, ...this.#inputs, ...this.#outputs)
  }
}

function port(field: number, name: string, type: number, dims: readonly (number | string)[]): Bytes {
  const shape = dims.map(dim => message(1, typeof dim === 'number' ? whole(1, dim) : text(2, dim)))
  return message(field, text(1, name), message(2, message(1, whole(1, type), message(2, ...shape))))
}

const MICROSOFT = 'com.microsoft'

/** Adds the token counts that attention takes: each sequence's length - 1, and the length of the mask. */
function addLengths(graph: Graph): void {
  graph.constant('one', INT64, [1], BigInt64Array.of(1n))
  graph.constant('second', INT64, [], BigInt64Array.of(1n))
  graph.node('ReduceSum', ['attention_mask', 'one'], ['mask/sum'], { keepdims: 0 })
  graph.node('Sub', ['mask/sum', 'one'], ['mask/last'])
  graph.node('Cast', ['mask/last'], ['seqlens_k'], { to: INT32 })
  graph.node('Shape', ['attention_mask'], ['mask/shape'])
  graph.node('Gather', ['mask/shape', 'second'], ['mask/total'], { axis: 0 })
  graph.node('Cast', ['mask/total'], ['total'], { to: INT32 })
}

/** Adds the tables of the rotary embedding. */
function addRotary(graph: Graph, { positions, headDim }: DecoderSizes): void {
  const table = (of: (angle: number) => number): Float32Array =>
    Float32Array.from({ length: (positions * headDim) / 2 }, (_, index) =>
      of(Math.floor(index / (headDim / 2)) / 10_000 ** (((index % (headDim / 2)) * 2) / headDim)),
    )
  graph.stored('cos_cache', [positions, headDim / 2], table(Math.cos))
  graph.stored('sin_cache', [positions, headDim / 2], table(Math.sin))
}

/** The residual stream between two layers, and the same after the norm. */
interface Residual {
  readonly stream: string
  readonly normed: string
}

const EPSILON = { epsilon: { float: 1e-6 } }

/** Adds the embedding and the first norm. */
function addEmbedding(graph: Graph, { vocabulary, width }: DecoderSizes): Residual {
  const stream = graph.node('Gather', [graph.weight('embed', vocabulary, width, 1), 'input_ids'], ['x0'])
  const rules = { ...EPSILON, axis: 2, stash_type: 1 }
  return {
    stream,
    normed: graph.node('SimplifiedLayerNormalization', [stream, graph.ones('norm', width)], ['y0'], rules),
  }
}

/** Adds a layer, with its past and its present. */
function addLayer(graph: Graph, sizes: DecoderSizes, layer: number, before: Residual): Residual {
  const { width, heads, kvHeads, headDim, hidden } = sizes
  const at = (name: string): string => `${layer}/${name}`
  const times = (input: string, name: string, rows: number, columns: number): string =>
    graph.node('MatMul', [input, graph.weight(at(`w_${name}`), rows, columns)], [at(name)])
  const add = ({ stream }: Residual, input: string, index: number): Residual => {
    const made = { stream: at(`x${index}`), normed: at(`y${index}`) }
    graph.node(
      'SkipSimplifiedLayerNormalization',
      [stream, input, graph.ones(at(`norm${index}`), width)],
      [made.normed, '', '', made.stream],
      EPSILON,
      MICROSOFT,
    )
    return made
  }
  const [pastK, pastV, presentK, presentV] = ['past_key_values', 'present'].flatMap(side =>
    ['key', 'value'].map(part => `${side}.${layer}.${part}`),
  ) as [string, string, string, string]
  for (const past of [pastK, pastV]) graph.input(past, FLOAT, ['batch_size', kvHeads, 'past', headDim])
  for (const present of [presentK, presentV]) graph.output(present, FLOAT, ['batch_size', kvHeads, 'total', headDim])
  const qkv = times(before.normed, 'qkv', width, (heads + 2 * kvHeads) * headDim)
  const rules = {
    num_heads: heads,
    kv_num_heads: kvHeads,
    do_rotary: 1,
    rotary_interleaved: 0,
    scale: { float: headDim ** -0.5 },
  }
  graph.node(
    'GroupQueryAttention',
    [qkv, '', '', pastK, pastV, 'seqlens_k', 'total', 'cos_cache', 'sin_cache'],
    [at('attended'), presentK, presentV],
    rules,
    MICROSOFT,
  )
  const attended = add(before, times(at('attended'), 'o', heads * headDim, width), 1)
  const gate = times(attended.normed, 'gate', width, hidden)
  const up = times(attended.normed, 'up', width, hidden)
  const silu = graph.node('Mul', [gate, graph.node('Sigmoid', [gate], [at('sigmoid')])], [at('silu')])
  return add(attended, times(graph.node('Mul', [silu, up], [at('gated')]), 'down', hidden, width), 2)
}

/** Returns the path of the decoder in a folder, and writes the file if it doesn't exist. Half a gigabyte for {@link DECODER}. */
export function writeDecoder(folder: string, sizes: DecoderSizes = DECODER): string {
  const path = join(folder, 'decoder.onnx')
  const [described, done] = [JSON.stringify(sizes), join(folder, 'decoder.json')]
  if (existsSync(done) && readFileSync(done, 'utf8') === described) return path
  mkdirSync(folder, { recursive: true })
  const file = openSync(join(folder, 'decoder.onnx.data'), 'w')
  const graph = new Graph(file)
  const { layers, width, vocabulary } = sizes
  graph.input('input_ids', INT64, ['batch_size', 'tokens'])
  graph.input('attention_mask', INT64, ['batch_size', 'total'])
  graph.output('logits', FLOAT, ['batch_size', 'tokens', vocabulary])
  addLengths(graph)
  addRotary(graph, sizes)
  let residual = addEmbedding(graph, sizes)
  for (let layer = 0; layer < layers; layer++) residual = addLayer(graph, sizes, layer, residual)
  graph.node('MatMul', [residual.normed, graph.weight('head', width, vocabulary)], ['logits'])
  closeSync(file)
  const uses = (domain: string, version: number): Bytes => message(8, text(1, domain), whole(2, version))
  writeFileSync(
    path,
    Buffer.concat([
      Uint8Array.from(whole(1, 10)),
      graph.message('decoder'),
      Uint8Array.from(uses('', 21)),
      Uint8Array.from(uses(MICROSOFT, 1)),
    ]),
  )
  writeFileSync(done, described)
  return path
}
