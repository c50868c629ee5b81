import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

import type { ExecutionContext } from 'ava'

/**
 * Graphs of the fixtures with something added. Messages of protobuf merge: nodes and outputs that stand behind a model's bytes are part of it.
 */

/** A node to add: its operator, its inputs, and its one output. */
export interface AddedNode {
  readonly operator: string
  readonly inputs: readonly string[]
  readonly output: string
}

const FLOAT = 1

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))]
}

function field(number: number, bytes: Uint8Array | string): Buffer {
  const content = typeof bytes === 'string' ? Buffer.from(bytes) : bytes
  return Buffer.concat([Uint8Array.from([...varint(number * 8 + 2), ...varint(content.length)]), content])
}

/** A field of a message: its bytes, including its number and length, and its content if it has a length. */
interface Field {
  readonly number: number
  readonly whole: Buffer
  readonly content: Buffer | undefined
}

/** The fields of a message. */
function* fieldsOf(message: Buffer): Generator<Field> {
  let at = 0
  const next = (): number => {
    let value = 0
    for (let factor = 1; ; factor *= 128) {
      const byte = message[at++] as number
      value += (byte & 127) * factor
      if (byte < 128) return value
    }
  }
  while (at < message.length) {
    const start = at
    const tag = next()
    const length = [() => (next(), 0), () => 8, next, undefined, undefined, () => 4][tag % 8]?.() ?? 0
    at += length
    yield {
      number: Math.floor(tag / 8),
      whole: message.subarray(start, at),
      content: tag % 8 === 2 ? message.subarray(at - length, at) : undefined,
    }
  }
}

/** Replaces the content of some fields of a message with the results of `change`. */
function changing(
  message: Buffer,
  numbers: readonly number[],
  change: (content: Buffer, number: number) => Uint8Array,
): Buffer {
  return Buffer.concat(
    Array.from(fieldsOf(message), ({ number, whole, content }) =>
      content !== undefined && numbers.includes(number) ? change(content, number) : whole,
    ),
  )
}

const BFLOAT16 = 16
/** The attribute type of an integer. */
const INT = 2
const cast = (from: string, to: string, type: number): Buffer => {
  const attribute = Buffer.concat([field(1, 'to'), Uint8Array.from([...varint(3 * 8), type, ...varint(20 * 8), INT])])
  return field(
    1,
    Buffer.concat([field(1, from), field(2, to), field(3, `cast/${to}`), field(4, 'Cast'), field(5, attribute)]),
  )
}

/** A graph whose GroupQueryAttention reads and writes bf16, like its pasts and presents; everything else stays in floats. */
export function inBf16(model: Buffer): Buffer {
  const made = new Set<string>()
  const attention = (node: Buffer): Uint8Array => {
    const texts = (number: number): string[] =>
      Array.from(fieldsOf(node))
        .filter(one => one.number === number)
        .map(one => String(one.content))
    if (texts(4)[0] !== 'GroupQueryAttention') return field(1, node)
    const [added, seen] = [[] as Buffer[], { 1: 0, 2: 0 }]
    const changed = changing(node, [1, 2], (content, number) => {
      const place = seen[number as 1 | 2]++
      const name = String(content)
      if (name === '' || (number === 1 ? place > 2 && place < 7 : place > 0)) return field(number, content)
      if (number === 1 && name.startsWith('past')) return field(number, content)
      if (!made.has(name))
        added.push(number === 1 ? cast(name, `${name}/bf16`, BFLOAT16) : cast(`${name}/bf16`, name, FLOAT))
      made.add(name)
      return field(number, `${name}/bf16`)
    })
    return Buffer.concat([field(1, changed), ...added])
  }
  const port = (info: Buffer): Buffer => {
    const isCarried = Array.from(fieldsOf(info)).some(
      ({ number, content }) => number === 1 && /^(past|present)/.test(String(content)),
    )
    if (!isCarried) return info
    return changing(info, [2], type =>
      field(
        2,
        changing(type, [1], tensor => {
          const rest = Array.from(fieldsOf(tensor))
            .filter(({ number }) => number !== 1)
            .map(({ whole }) => whole)
          return field(1, Buffer.concat([Uint8Array.from([8, BFLOAT16]), ...rest]))
        }),
      ),
    )
  }
  return changing(model, [7], graph =>
    field(
      7,
      changing(graph, [1, 11, 12], (content, number) =>
        number === 1 ? attention(content) : field(number, port(content)),
      ),
    ),
  )
}

const FLOAT16 = 10

/** A decoder that takes embeddings in half floats, or the model that gives them: cast at the border, everything else stays in floats. */
export function withHalfEmbeds(model: Buffer): Buffer {
  const embeds = Buffer.from('inputs_embeds')
  const wide = (name: Buffer): Buffer => (name.equals(embeds) ? Buffer.from('inputs_embeds/wide') : name)
  const retyped = (info: Buffer): Buffer =>
    changing(info, [2], type =>
      field(
        2,
        changing(type, [1], tensor => {
          const rest = Array.from(fieldsOf(tensor)).filter(({ number }) => number !== 1)
          return field(1, Buffer.concat([Uint8Array.from([8, FLOAT16]), ...rest.map(({ whole }) => whole)]))
        }),
      ),
    )
  return changing(model, [7], graph => {
    const ports = Array.from(fieldsOf(graph)).filter(({ number }) => number === 11 || number === 12)
    const port = ports.find(({ content }) => content?.includes(embeds))
    const isTaken = port?.number === 11
    const changed = changing(graph, [1, 11, 12], (content, number) =>
      number === 1
        ? field(
            1,
            changing(content, [1, 2], (name, side) => field(side, wide(name))),
          )
        : field(number, content.includes(embeds) ? retyped(content) : content),
    )
    const added = isTaken
      ? cast('inputs_embeds', 'inputs_embeds/wide', FLOAT)
      : cast('inputs_embeds/wide', 'inputs_embeds', FLOAT16)
    return field(7, isTaken ? Buffer.concat([added, changed]) : Buffer.concat([changed, added]))
  })
}

/** The texts of a message in a field. */
function textOf(message: Buffer, number: number): string[] {
  const own = Array.from(fieldsOf(message)).filter(one => one.number === number)
  return own.map(({ content }) => String(content))
}

const isOwn = (name: string): boolean => /^(past_key_values|present)\.1\./.test(name)
const first = (name: string): string => name.replace(/^present\.1\./, 'present.0.')

/** A graph whose layer 1 attends over the keys and values of layer 0, past and new ones together, and has none of its own. */
export function sharing(model: Buffer): Buffer {
  const node = (content: Buffer): Uint8Array =>
    textOf(content, 2).some(isOwn)
      ? Buffer.alloc(0)
      : field(
          1,
          changing(content, [1], name => field(1, first(String(name)))),
        )
  return changing(model, [7], graph =>
    field(
      7,
      changing(graph, [1, 11, 12], (content, number) => {
        if (number === 1) return node(content)
        return isOwn(textOf(content, 1)[0] as string) ? Buffer.alloc(0) : field(number, content)
      }),
    ),
  )
}

/** The logits of a graph whose head was pruned: those of the last token, with or without its dimension, or two rows of it, which no caller needs. */
export type PrunedForm = 'last' | 'flat' | 'twice'

const INT64 = 7
const ints = (name: string, dims: readonly number[], values: readonly number[]): Buffer => {
  const raw = Buffer.from(BigInt64Array.from(values, BigInt).buffer)
  return field(
    5,
    Buffer.concat([
      ...dims.map(dim => Uint8Array.from([8, dim])),
      Uint8Array.from([16, INT64]),
      field(8, name),
      field(9, raw),
    ]),
  )
}
const node = (
  operator: string,
  inputs: readonly string[],
  output: string,
  attribute?: readonly [name: string, value: number],
): Buffer => {
  const attributes =
    attribute === undefined
      ? []
      : [field(5, Buffer.concat([field(1, attribute[0]), Uint8Array.from([24, attribute[1], ...varint(20 * 8), INT])]))]
  return field(
    1,
    Buffer.concat([
      ...inputs.map(name => field(1, name)),
      field(2, output),
      field(3, `pruned/${output}`),
      field(4, operator),
      ...attributes,
    ]),
  )
}
const nameOf = (message: Buffer, number: number): string =>
  String(Array.from(fieldsOf(message)).find(one => one.number === number)?.content)

/** A graph whose head computes only the last token, as `prune_lm_head` makes it: a Gather of row -1, and an Unsqueeze, before the product with the weights. */
export function prunedHead(model: Buffer, form: PrunedForm = 'last'): Buffer {
  const [none, rows] = form === 'twice' ? [[2], [-1, -1]] : [[], [-1]]
  const head = (message: Buffer): Uint8Array => {
    if (nameOf(message, 2) !== 'logits') return field(1, message)
    const hidden = nameOf(message, 1)
    let seen = 0
    const pruned = changing(message, [1], content => field(1, seen++ === 0 ? 'pruned/hidden' : content))
    const nodes =
      form === 'last'
        ? [
            node('Gather', [hidden, 'pruned/row'], 'pruned/flat', ['axis', 1]),
            node('Unsqueeze', ['pruned/flat', 'pruned/axis'], 'pruned/hidden'),
          ]
        : [node('Gather', [hidden, 'pruned/row'], 'pruned/hidden', ['axis', 1])]
    return Buffer.concat([...nodes, field(1, pruned)])
  }
  const size = (dims: readonly Buffer[]): Buffer[] => [
    dims[0] as Buffer,
    ...(form === 'flat' ? [] : [field(1, Uint8Array.from([8, form === 'last' ? 1 : 2]))]),
    dims[2] as Buffer,
  ]
  const shape = (tensor: Buffer): Uint8Array =>
    changing(tensor, [2], content => field(2, Buffer.concat(size(Array.from(fieldsOf(content), ({ whole }) => whole)))))
  const output = (info: Buffer): Uint8Array =>
    nameOf(info, 1) === 'logits'
      ? changing(info, [2], type =>
          field(
            2,
            changing(type, [1], tensor => field(1, shape(tensor))),
          ),
        )
      : info
  const graph = (message: Buffer): Uint8Array => {
    const changed = changing(message, [1, 12, 13], (content, number) => {
      if (number === 1) return head(content)
      if (number === 13) return nameOf(content, 1) === 'logits' ? new Uint8Array(0) : field(13, content)
      return field(12, output(content))
    })
    return Buffer.concat([changed, ints('pruned/row', none, rows), ints('pruned/axis', [1], [1])])
  }
  return changing(model, [7], content => field(7, graph(content)))
}

/** Forms of a head: with its weight transposed, by a node or by the product itself, and with a bias. */
export const HEADS = ['Transpose', 'Gemm', 'Gemm with a transposed weight', 'Gemm with a bias'] as const
export type HeadForm = (typeof HEADS)[number]

const floats = (name: string, dims: readonly number[], values: Float32Array): Buffer =>
  field(
    5,
    Buffer.concat([
      ...dims.map(dim => Uint8Array.from([8, ...varint(dim)])),
      Uint8Array.from([16, FLOAT]),
      field(8, name),
      field(9, Buffer.from(values.buffer)),
    ]),
  )

/** A graph whose head, a product with a weight of floats, has another form. A bias is added: the index of each logit, divided by 100. */
export function otherHead(model: Buffer, form: HeadForm): Buffer {
  const graph = (message: Buffer): Uint8Array => {
    const all = Array.from(fieldsOf(message))
    const contentsOf = (number: number): Buffer[] =>
      all.filter(one => one.number === number).map(({ content }) => content as Buffer)
    const head = contentsOf(1).find(one => nameOf(one, 2) === 'logits') as Buffer
    const [hidden = '', name = ''] = textOf(head, 1)
    const weight = contentsOf(5).find(one => nameOf(one, 8) === name) as Buffer
    const raw = Array.from(fieldsOf(weight)).find(({ number }) => number === 9)?.content as Buffer
    const values = new Float32Array(Uint8Array.from(raw).buffer)
    const columns = 320
    const inner = values.length / columns
    const turned = values.map((_, at) => values[(at % inner) * columns + Math.floor(at / inner)] as number)
    const isTurned = form === 'Transpose' || form === 'Gemm with a transposed weight'
    const weights = [
      isTurned ? floats('head/weight', [columns, inner], turned) : floats('head/weight', [inner, columns], values),
      floats(
        'head/bias',
        [columns],
        Float32Array.from({ length: columns }, (_, at) => at / 100),
      ),
      ints('head/rows', [2], [-1, inner]),
      ints('head/two', [2], [0, 1]),
      ints('head/columns', [1], [columns]),
    ]
    const gemm = ['head/flat', 'head/weight', ...(form === 'Gemm with a bias' ? ['head/bias'] : [])]
    const nodes =
      form === 'Transpose'
        ? [node('Transpose', ['head/weight'], 'head/turned'), node('MatMul', [hidden, 'head/turned'], 'logits')]
        : [
            node('Reshape', [hidden, 'head/rows'], 'head/flat'),
            node('Gemm', gemm, 'head/product', ['transB', isTurned ? 1 : 0]),
            node('Shape', [hidden], 'head/dims'),
            node('Gather', ['head/dims', 'head/two'], 'head/outer'),
            node('Concat', ['head/outer', 'head/columns'], 'head/shape', ['axis', 0]),
            node('Reshape', ['head/product', 'head/shape'], 'logits'),
          ]
    const kept = all.filter(({ content }) => content !== head && content !== weight).map(({ whole }) => whole)
    return Buffer.concat([...kept, ...nodes, ...weights])
  }
  return changing(model, [7], content => field(7, graph(content)))
}

/** Products with weights of 4 bits: as they are, with a zero point for each block, with a bias, and with GELU as the activation of gates. */
export const BLOCK_FORMS = ['symmetric', 'zero points', 'bias', 'gelu'] as const
type BlockForm = (typeof BLOCK_FORMS)[number]

/** A graph whose products with weights of 4 bits have another form. */
export function withBlocks(model: Buffer, form: BlockForm): Buffer {
  const forms: Readonly<Record<BlockForm, (content: Buffer) => Uint8Array>> = {
    symmetric: content => field(1, content),
    'zero points': content => withInputs(content, 'zeros', []),
    bias: content => withInputs(content, 'bias', ['', '']),
    gelu: withGelu,
  }
  const graph = (content: Buffer): Uint8Array => changing(content, [1], forms[form])
  return changing(model, [7], content => field(7, graph(content)))
}

/** A product with zero points or a bias behind these inputs, and the weight; any other node as it is. */
function withInputs(content: Buffer, added: 'bias' | 'zeros', before: readonly string[]): Uint8Array {
  if (nameOf(content, 4) !== 'MatMulNBits') return field(1, content)
  const columns = attributeOf(content, 'N')
  const count = added === 'bias' ? columns : columns * Math.ceil(attributeOf(content, 'K') / 64)
  const values = Float32Array.from({ length: count }, (_, at) => ((at * 37) % 100) / 100)
  const name = `${nameOf(content, 2)}/${added}`
  const weight = added === 'bias' ? floats(name, [count], values) : zeroPoints(name, values)
  return Buffer.concat([field(1, Buffer.concat([content, ...[...before, name].map(input => field(1, input))])), weight])
}

/** `Gelu` by tanh in place of a product with a sigmoid; any other node as it is. */
function withGelu(content: Buffer): Uint8Array {
  const [operator, inputs] = [nameOf(content, 4), textOf(content, 1)]
  if (operator === 'Mul' && inputs[1]?.endsWith('/Sigmoid/output_0')) return new Uint8Array(0)
  if (operator !== 'Sigmoid') return field(1, content)
  const STRING = 3
  const approximate = Buffer.concat([
    field(1, 'approximate'),
    field(4, 'tanh'),
    Uint8Array.from([...varint(20 * 8), STRING]),
  ])
  const changed = changing(content, [2, 4], (own, number) =>
    field(number, number === 4 ? 'Gelu' : String(own).replace('/Sigmoid/', '/Mul/')),
  )
  return field(1, Buffer.concat([changed, field(5, approximate)]))
}

/** An integer of a node. */
function attributeOf(message: Buffer, name: string): number {
  const all = Array.from(fieldsOf(message)).filter(({ number }) => number === 5)
  const found = all.map(({ content }) => content as Buffer).find(content => nameOf(content, 1) === name) as Buffer
  const { whole } = Array.from(fieldsOf(found)).find(({ number }) => number === 3) as Field
  return whole.subarray(1).reduce((value, byte, at) => value + (byte & 127) * 128 ** at, 0)
}

const UINT8 = 2
/** Bytes from numbers below 1: two zero points each. */
const zeroPoints = (name: string, values: Float32Array): Buffer =>
  field(
    5,
    Buffer.concat([
      Uint8Array.from([8, ...varint(values.length), 16, UINT8]),
      field(8, name),
      field(
        9,
        Uint8Array.from(values, value => value * 256),
      ),
    ]),
  )

/** Appends nodes to the bytes of a model. The last output becomes an output of the graph. */
export function withNodes(model: Uint8Array, nodes: readonly AddedNode[]): Buffer {
  const made = nodes.map(({ operator, inputs, output }) =>
    field(
      1,
      Buffer.concat([
        ...inputs.map(name => field(1, name)),
        field(2, output),
        field(3, `added/${output}`),
        field(4, operator),
      ]),
    ),
  )
  const type = field(2, field(1, Uint8Array.from([8, FLOAT])))
  const outputs = nodes.slice(-1).map(({ output }) => field(12, Buffer.concat([field(1, output), type])))
  return Buffer.concat([model, field(7, Buffer.concat([...made, ...outputs]))])
}

/** Makes a folder for a test, with a copy of a model and of the files beside it. */
export function copied(
  t: ExecutionContext,
  model: string,
  change: (bytes: Buffer) => Uint8Array = bytes => bytes,
): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-onnx-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  cpSync(dirname(model), folder, { recursive: true })
  const file = join(folder, 'model.onnx')
  writeFileSync(file, change(readFileSync(file)))
  return file
}
