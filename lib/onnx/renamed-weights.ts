// Renames the files of weights in the bytes of an ONNX model. Onnxruntime refuses a file of weights whose link leads out of the model's folder, which all links of the
// Hub's cache folder do: models/snapshots/<commit>/model.onnx.data -> models/blobs/<sum>. With the names that the links lead to, the weights stay in their files.
//
//     ModelProto.graph -> GraphProto.initializer, .node -> NodeProto.attribute -> .t, .g, .tensors, .graphs -> TensorProto.external_data -> { key, value }
//
// Everything else is copied as it is, so fields that this file does not know stay. O(bytes of the model without its weights).

type Message = 'model' | 'graph' | 'node' | 'attribute' | 'tensor' | 'entry'

/** The fields of a message that may contain names of files. */
const FIELDS: Readonly<Record<Message, ReadonlyMap<number, Message>>> = {
  model: new Map([[7, 'graph']]),
  graph: new Map([
    [1, 'node'],
    [5, 'tensor'],
  ]),
  node: new Map([[5, 'attribute']]),
  attribute: new Map([
    [5, 'tensor'],
    [6, 'graph'],
    [10, 'tensor'],
    [11, 'graph'],
  ]),
  tensor: new Map([[13, 'entry']]),
  entry: new Map(),
}

/** The wire types of protobuf. */
const [VARINT, LONG, BYTES, SHORT] = [0, 1, 2, 5]

/** @internal A copy of a model with other names of files; the model itself if it has none of them. */
export function renamedWeights(model: Uint8Array, names: ReadonlyMap<string, string> | undefined): Uint8Array {
  if (names === undefined || names.size === 0) return model
  const pieces = renamed(model, 'model', names)
  return pieces === undefined ? model : Buffer.concat(pieces)
}

/** The pieces of a changed message; `undefined` if nothing changes. */
function renamed(bytes: Uint8Array, message: Message, names: ReadonlyMap<string, string>): Uint8Array[] | undefined {
  if (message === 'entry') return renamedEntry(bytes, names)
  const pieces: Uint8Array[] = []
  let copied = 0
  for (const { number, start, from, to } of fieldsOf(bytes)) {
    const inner = FIELDS[message].get(number)
    if (inner === undefined || from === undefined) continue
    const changed = renamed(bytes.subarray(from, to), inner, names)
    if (changed === undefined) continue
    pieces.push(bytes.subarray(copied, start), ...field(number, changed))
    copied = to
  }
  return copied === 0 ? undefined : [...pieces, bytes.subarray(copied)]
}

/** An entry of `external_data`: a location is renamed. */
function renamedEntry(bytes: Uint8Array, names: ReadonlyMap<string, string>): Uint8Array[] | undefined {
  const texts = new Map<number, string>()
  for (const { number, from, to } of fieldsOf(bytes))
    if (from !== undefined) texts.set(number, Buffer.from(bytes.subarray(from, to)).toString('utf8'))
  const name = texts.get(1) === 'location' ? names.get(texts.get(2) ?? '') : undefined
  return name === undefined ? undefined : [...field(1, [Buffer.from('location')]), ...field(2, [Buffer.from(name)])]
}

/** A field of bytes. */
function field(number: number, pieces: readonly Uint8Array[]): Uint8Array[] {
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0)
  return [Uint8Array.from([...varint(number * 8 + BYTES), ...varint(length)]), ...pieces]
}

function varint(value: number): number[] {
  const digits: number[] = []
  for (; value >= 128; value = Math.floor(value / 128)) digits.push((value % 128) + 128)
  return [...digits, value]
}

interface Field {
  readonly number: number
  /** The place of its key, and the place behind it. */
  readonly start: number
  readonly to: number
  /** The place of its bytes; `undefined` for numbers. */
  readonly from: number | undefined
}

/** The fields of a message. The bytes are those that the addon wrote, so they are well-formed. */
function* fieldsOf(bytes: Uint8Array): Generator<Field> {
  let at = 0
  const number = (): number => {
    let [value, scale] = [0, 1]
    for (;;) {
      const digit = bytes[at++] ?? 0
      value += (digit % 128) * scale
      if (digit < 128) return value
      scale *= 128
    }
  }
  while (at < bytes.length) {
    const start = at
    const key = number()
    const wire = key % 8
    let from: number | undefined
    if (wire === VARINT) number()
    else if (wire === LONG) at += 8
    else if (wire === SHORT) at += 4
    else {
      const length = number()
      from = at
      at += length
    }
    yield { number: Math.floor(key / 8), start, from, to: at }
  }
}
