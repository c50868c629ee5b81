// ONNX models of one node, written as bytes: all that a comparison with one operator needs.
//
// Only those fields of the format are here that a model of one node has. Numbers are the field numbers of onnx.proto.

/** An input or output: a tensor of a fixed shape. */
export interface Port {
  readonly name: string
  readonly type: 'float32' | 'int32'
  readonly shape: readonly number[]
}

export interface OneNode {
  readonly operator: string
  /** Empty for the operators of ONNX itself. */
  readonly domain: string
  readonly attributes: Readonly<Record<string, number>>
  readonly inputs: readonly Port[]
  readonly outputs: readonly Port[]
}

const ELEMENT_TYPES = { float32: 1, int32: 6 } as const

/** The version of the format, and of the operator sets. */
const [IR_VERSION, OPSET, OPSET_MICROSOFT] = [10, 23, 1]

type Bytes = readonly number[]

function varint(value: number): number[] {
  const bytes: number[] = []
  let rest = value
  while (rest >= 128) {
    bytes.push((rest % 128) + 128)
    rest = Math.floor(rest / 128)
  }
  return [...bytes, rest]
}

const whole = (field: number, value: number): Bytes => [...varint(field * 8), ...varint(value)]

const nested = (field: number, bytes: Bytes): Bytes => [...varint(field * 8 + 2), ...varint(bytes.length), ...bytes]

const text = (field: number, value: string): Bytes => nested(field, [...new TextEncoder().encode(value)])

function port({ name, type, shape }: Port): Bytes {
  const dims = shape.flatMap(size => nested(1, whole(1, size)))
  const tensor = [...whole(1, ELEMENT_TYPES[type]), ...nested(2, dims)]
  return [...text(1, name), ...nested(2, nested(1, tensor))]
}

/** An attribute that is a whole number. */
const attribute = ([name, value]: [string, number]): Bytes => nested(5, [...text(1, name), ...whole(3, value), ...whole(20, 2)])

const opset = (domain: string, version: number): Bytes => nested(8, [...text(1, domain), ...whole(2, version)])

/** The bytes of a model whose graph is this node. */
export function modelOf({ operator, domain, attributes, inputs, outputs }: OneNode): Uint8Array {
  const node = [
    ...inputs.flatMap(({ name }) => text(1, name)),
    ...outputs.flatMap(({ name }) => text(2, name)),
    ...text(4, operator),
    ...Object.entries(attributes).flatMap(attribute),
    ...text(7, domain),
  ]
  const graph = [
    ...nested(1, node),
    ...text(2, operator),
    ...inputs.flatMap(input => nested(11, port(input))),
    ...outputs.flatMap(output => nested(12, port(output))),
  ]
  return Uint8Array.from([...whole(1, IR_VERSION), ...nested(7, graph), ...opset('', OPSET), ...opset('com.microsoft', OPSET_MICROSOFT)])
}
