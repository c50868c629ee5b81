/** Writes ONNX models as bytes: the few fields of protobuf messages that a graph needs. */

/** Element types of tensors, by their numbers in ONNX. */
export const ELEMENT = { float: 1, int8: 3, int32: 6, int64: 7, half: 10 } as const

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

/** A value of an attribute: an integer or a list of them, a float or a list of them, text, or the body of a loop. */
export type AttributeOf =
  | number
  | string
  | readonly number[]
  | { readonly float: number }
  | { readonly floats: readonly number[] }
  | GraphOf

/** A node of a graph. */
export interface NodeOf {
  readonly operator: string
  /** The domain of the operator; by default that of ONNX. */
  readonly domain?: string
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

const FLOAT = 1
const INT = 2
const STRING = 3
const GRAPH = 5
const FLOATS = 6
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

function float(number: number, value: number): Uint8Array {
  return Buffer.concat([Uint8Array.from([number * 8 + 5]), new Uint8Array(Float32Array.of(value).buffer)])
}

function attribute([name, value]: readonly [string, AttributeOf]): Buffer {
  return field(5, Buffer.concat([field(1, name), ...valueOf(value)]))
}

function valueOf(value: AttributeOf): Uint8Array[] {
  if (typeof value === 'number') return [whole(3, value), whole(20, INT)]
  if (typeof value === 'string') return [field(4, value), whole(20, STRING)]
  if ('nodes' in value) return [field(6, graph(value)), whole(20, GRAPH)]
  if ('float' in value) return [float(2, value.float), whole(20, FLOAT)]
  if ('floats' in value) return [...value.floats.map(one => float(7, one)), whole(20, FLOATS)]
  return [...value.map(one => whole(8, one)), whole(20, INTS)]
}

function node({ operator, domain, inputs, outputs, attributes = {} }: NodeOf): Buffer {
  return field(
    1,
    Buffer.concat([
      ...inputs.map(name => field(1, name)),
      ...outputs.map(name => field(2, name)),
      field(3, `node/${outputs[0]}`),
      field(4, operator),
      ...Object.entries(attributes).map(attribute),
      ...(domain === undefined ? [] : [field(7, domain)]),
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

/** The bytes of a model of opset 17, and of version 1 of other domains. */
export function modelBytes(of: GraphOf): Buffer {
  const domains = new Set(of.nodes.flatMap(({ domain }) => domain ?? []))
  const imports = Array.from(domains, domain => field(8, Buffer.concat([field(1, domain), whole(2, 1)])))
  return Buffer.concat([whole(1, 8), field(7, graph(of)), field(8, whole(2, 17)), ...imports])
}
