/** Writes ONNX models as bytes: the few fields of protobuf messages that a graph needs. */

/** Element types of tensors, by their numbers in ONNX. */
export const ELEMENT = { float: 1, int64: 7, half: 10, int8: 3 } as const

/** An input or output of a graph. Without dimensions, its rank is not declared. */
export interface PortOf {
  readonly name: string
  readonly element?: number
  readonly dims?: readonly (number | string)[]
}

/** A constant of a graph. */
export interface ConstantOf {
  readonly name: string
  readonly dims: readonly number[]
  readonly data: Float32Array | BigInt64Array
}

/** A value of an attribute: integers, a list of them, or the body of a loop. */
type AttributeOf = number | readonly number[] | GraphOf

/** A node of a graph. */
export interface NodeOf {
  readonly operator: string
  readonly inputs: readonly string[]
  readonly outputs: readonly string[]
  readonly attributes?: Readonly<Record<string, AttributeOf>>
}

/** A graph. */
export interface GraphOf {
  readonly nodes: readonly NodeOf[]
  readonly inputs: readonly PortOf[]
  readonly outputs: readonly PortOf[]
  readonly constants?: readonly ConstantOf[]
}

/** A node with one output. */
export const nodeOf = (
  operator: string,
  inputs: readonly string[],
  output: string,
  attributes: NodeOf['attributes'] = {},
): NodeOf => ({ operator, inputs, outputs: [output], attributes })

/** A constant of floats. */
export const floatsOf = (name: string, dims: readonly number[], values: readonly number[]): ConstantOf => ({
  name,
  dims,
  data: Float32Array.from(values),
})

/** A constant of integers. */
export const integersOf = (name: string, dims: readonly number[], values: readonly number[]): ConstantOf => ({
  name,
  dims,
  data: BigInt64Array.from(values, BigInt),
})

const INT = 2
const GRAPH = 5
const INTS = 7

function varint(value: number): number[] {
  if (value < 0)
    return [
      ...Array.from(
        { length: 9 },
        (_, at) => 128 + Number((BigInt.asUintN(64, BigInt(value)) >> BigInt(7 * at)) & 127n),
      ),
      1,
    ]
  return value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))]
}

function whole(number: number, value: number): Uint8Array {
  return Uint8Array.from([...varint(number * 8), ...varint(value)])
}

function field(number: number, bytes: Uint8Array | string): Buffer {
  const content = typeof bytes === 'string' ? Buffer.from(bytes) : bytes
  return Buffer.concat([Uint8Array.from([...varint(number * 8 + 2), ...varint(content.length)]), content])
}

function attribute([name, value]: readonly [string, AttributeOf]): Buffer {
  const content =
    typeof value === 'number'
      ? [whole(3, value), whole(20, INT)]
      : Array.isArray(value)
        ? [...(value as readonly number[]).map(one => whole(8, one)), whole(20, INTS)]
        : [field(6, graph(value as GraphOf)), whole(20, GRAPH)]
  return field(5, Buffer.concat([field(1, name), ...content]))
}

function node({ operator, inputs, outputs, attributes = {} }: NodeOf): Buffer {
  return field(
    1,
    Buffer.concat([
      ...inputs.map(name => field(1, name)),
      ...outputs.map(name => field(2, name)),
      field(3, `node/${outputs[0]}`),
      field(4, operator),
      ...Object.entries(attributes).map(attribute),
    ]),
  )
}

function port(number: number, { name, element = ELEMENT.float, dims }: PortOf): Buffer {
  const shape = dims?.map(dim => field(1, typeof dim === 'number' ? whole(1, dim) : field(2, dim)))
  const tensor = Buffer.concat([whole(1, element), ...(shape === undefined ? [] : [field(2, Buffer.concat(shape))])])
  return field(number, Buffer.concat([field(1, name), field(2, field(1, tensor))]))
}

function constant({ name, dims, data }: ConstantOf): Buffer {
  const element = data instanceof Float32Array ? ELEMENT.float : ELEMENT.int64
  return field(
    5,
    Buffer.concat([
      ...dims.map(dim => whole(1, dim)),
      whole(2, element),
      field(8, name),
      field(9, new Uint8Array(data.buffer)),
    ]),
  )
}

function graph({ nodes, inputs, outputs, constants = [] }: GraphOf): Buffer {
  return Buffer.concat([
    ...nodes.map(node),
    field(2, 'graph'),
    ...constants.map(constant),
    ...inputs.map(one => port(11, one)),
    ...outputs.map(one => port(12, one)),
  ])
}

/** The bytes of a model of opset 17. */
export function modelBytes(of: GraphOf): Buffer {
  return Buffer.concat([whole(1, 8), field(7, graph(of)), field(8, whole(2, 17))])
}
