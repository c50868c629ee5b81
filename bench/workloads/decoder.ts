// A decoder of random weights as an ONNX file: packed QKV, GroupQueryAttention with rotary inside, gated feed-forward. Its numbers mean
// nothing; its sizes are those of a small model.
//
// The file is written by hand: an ONNX model is a few nested protobuf messages, and what writes them is shorter than what would fetch a tool.
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

export const DECODER: DecoderSizes = { layers: 12, width: 768, heads: 12, kvHeads: 4, headDim: 64, hidden: 2048, vocabulary: 32_000, positions: 16_384 }

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

/** Nodes and weights of a graph, in order. */
class Graph {
  readonly nodes: Bytes[] = []
  readonly weights: Bytes[] = []
  readonly #file: number
  #end = 0
  #state = 0x2545f491

  constructor(file: number) {
    this.#file = file
  }

  node(operator: string, inputs: readonly string[], outputs: readonly string[], attributes: Readonly<Record<string, Attribute>> = {}, domain = ''): string {
    const [name] = outputs as [string]
    const lists = [...inputs.map(input => text(1, input)), ...outputs.map(output => text(2, output))]
    this.nodes.push(message(1, ...lists, text(3, name), text(4, operator), ...Object.entries(attributes).map(([key, value]) => attribute(key, value)), text(7, domain)))
    return name
  }

  /** A small tensor, in the file itself. */
  constant(name: string, type: number, dims: readonly number[], data: Float32Array | BigInt64Array): string {
    this.weights.push(message(5, ...dims.map(dim => whole(1, dim)), whole(2, type), text(8, name), message(9, new Uint8Array(data.buffer))))
    return name
  }

  /** A large tensor, in the file beside it. */
  stored(name: string, dims: readonly number[], data: Float32Array): string {
    const entry = (key: string, value: string): Bytes => message(13, text(1, key), text(2, value))
    const place = [entry('location', 'decoder.onnx.data'), entry('offset', `${this.#end}`), entry('length', `${data.byteLength}`)]
    this.weights.push(message(5, ...dims.map(dim => whole(1, dim)), whole(2, FLOAT), text(8, name), ...place, whole(14, 1)))
    writeSync(this.#file, new Uint8Array(data.buffer))
    this.#end += data.byteLength
    return name
  }

  /** Random weights of a standard deviation that keeps what goes through them at its size. */
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
}

function port(field: number, name: string, type: number, dims: readonly (number | string)[]): Bytes {
  const shape = dims.map(dim => message(1, typeof dim === 'number' ? whole(1, dim) : text(2, dim)))
  return message(field, text(1, name), message(2, message(1, whole(1, type), message(2, ...shape))))
}

const MICROSOFT = 'com.microsoft'

/** The path of the decoder in a folder, where it is written unless it is there. Half a gigabyte for {@link DECODER}. */
export function writeDecoder(folder: string, sizes: DecoderSizes = DECODER): string {
  const path = join(folder, 'decoder.onnx')
  const [described, done] = [JSON.stringify(sizes), join(folder, 'decoder.json')]
  if (existsSync(done) && readFileSync(done, 'utf8') === described) return path
  mkdirSync(folder, { recursive: true })
  const file = openSync(join(folder, 'decoder.onnx.data'), 'w')
  const graph = new Graph(file)
  const { layers, width, heads, kvHeads, headDim, hidden, vocabulary, positions } = sizes
  const inputs = [port(11, 'input_ids', INT64, ['batch_size', 'tokens']), port(11, 'attention_mask', INT64, ['batch_size', 'total'])]
  const outputs = [port(12, 'logits', FLOAT, ['batch_size', 'tokens', vocabulary])]
  graph.constant('one', INT64, [1], BigInt64Array.of(1n))
  graph.constant('second', INT64, [], BigInt64Array.of(1n))
  graph.node('ReduceSum', ['attention_mask', 'one'], ['mask/sum'], { keepdims: 0 })
  graph.node('Sub', ['mask/sum', 'one'], ['mask/last'])
  graph.node('Cast', ['mask/last'], ['seqlens_k'], { to: INT32 })
  graph.node('Shape', ['attention_mask'], ['mask/shape'])
  graph.node('Gather', ['mask/shape', 'second'], ['mask/total'], { axis: 0 })
  graph.node('Cast', ['mask/total'], ['total'], { to: INT32 })
  const table = (of: (angle: number) => number): Float32Array =>
    Float32Array.from({ length: (positions * headDim) / 2 }, (_, index) => of(Math.floor(index / (headDim / 2)) / 10_000 ** (((index % (headDim / 2)) * 2) / headDim)))
  graph.stored('cos_cache', [positions, headDim / 2], table(Math.cos))
  graph.stored('sin_cache', [positions, headDim / 2], table(Math.sin))
  const ones = (name: string): string => graph.constant(name, FLOAT, [width], new Float32Array(width).fill(1))
  const epsilon = { epsilon: { float: 1e-6 } }
  let stream = graph.node('Gather', [graph.weight('embed', vocabulary, width, 1), 'input_ids'], ['x0'])
  let normed = graph.node('SimplifiedLayerNormalization', [stream, ones('norm')], ['y0'], { ...epsilon, axis: 2, stash_type: 1 })
  for (let layer = 0; layer < layers; layer++) {
    const at = (name: string): string => `${layer}/${name}`
    const times = (input: string, name: string, rows: number, columns: number): string => graph.node('MatMul', [input, graph.weight(at(`w_${name}`), rows, columns)], [at(name)])
    const [pastK, pastV, presentK, presentV] = ['past_key_values', 'present'].flatMap(side => ['key', 'value'].map(part => `${side}.${layer}.${part}`)) as [string, string, string, string]
    const qkv = times(normed, 'qkv', width, (heads + 2 * kvHeads) * headDim)
    const rules = { num_heads: heads, kv_num_heads: kvHeads, do_rotary: 1, rotary_interleaved: 0, scale: { float: headDim ** -0.5 } }
    graph.node('GroupQueryAttention', [qkv, '', '', pastK, pastV, 'seqlens_k', 'total', 'cos_cache', 'sin_cache'], [at('attended'), presentK, presentV], rules, MICROSOFT)
    const mixed = times(at('attended'), 'o', heads * headDim, width)
    const add = (input: string, index: number): void => {
      graph.node('SkipSimplifiedLayerNormalization', [stream, input, ones(at(`norm${index}`))], [at(`y${index}`), '', '', at(`x${index}`)], epsilon, MICROSOFT)
      ;[stream, normed] = [at(`x${index}`), at(`y${index}`)]
    }
    add(mixed, 1)
    const gate = times(normed, 'gate', width, hidden)
    const up = times(normed, 'up', width, hidden)
    const silu = graph.node('Mul', [gate, graph.node('Sigmoid', [gate], [at('sigmoid')])], [at('silu')])
    add(times(graph.node('Mul', [silu, up], [at('gated')]), 'down', hidden, width), 2)
    for (const [past, present] of [[pastK, presentK], [pastV, presentV]] as const) {
      inputs.push(port(11, past, FLOAT, ['batch_size', kvHeads, 'past', headDim]))
      outputs.push(port(12, present, FLOAT, ['batch_size', kvHeads, 'total', headDim]))
    }
  }
  graph.node('MatMul', [normed, graph.weight('head', width, vocabulary)], ['logits'])
  closeSync(file)
  const body = message(7, ...graph.nodes, text(2, 'decoder'), ...graph.weights, ...inputs, ...outputs)
  const uses = (domain: string, version: number): Bytes => message(8, text(1, domain), whole(2, version))
  writeFileSync(path, Buffer.concat([Uint8Array.from(whole(1, 10)), body, Uint8Array.from(uses('', 21)), Uint8Array.from(uses(MICROSOFT, 1))]))
  writeFileSync(done, described)
  return path
}
