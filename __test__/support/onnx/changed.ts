import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

import type { ExecutionContext } from 'ava'

/**
 * Graphs of the fixtures with something added. Messages of protobuf merge: nodes and outputs that stand behind a model's bytes are part of it.
 */

/** A node that is added: its operator, what goes in, and the one output. */
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

/** A field of a message: its bytes, those of the number and of the length before it too, and its content where it has a length. */
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
    yield { number: Math.floor(tag / 8), whole: message.subarray(start, at), content: tag % 8 === 2 ? message.subarray(at - length, at) : undefined }
  }
}

/** A message with some of its fields changed: what `change` answers stands in their place. */
function changing(message: Buffer, numbers: readonly number[], change: (content: Buffer, number: number) => Uint8Array): Buffer {
  return Buffer.concat(Array.from(fieldsOf(message), ({ number, whole, content }) => (content !== undefined && numbers.includes(number) ? change(content, number) : whole)))
}

const BFLOAT16 = 16
/** A whole number, as an attribute's type. */
const INT = 2
const cast = (from: string, to: string, type: number): Buffer => {
  const attribute = Buffer.concat([field(1, 'to'), Uint8Array.from([...varint(3 * 8), type, ...varint(20 * 8), INT])])
  return field(1, Buffer.concat([field(1, from), field(2, to), field(3, `cast/${to}`), field(4, 'Cast'), field(5, attribute)]))
}

/** A graph whose GroupQueryAttention takes and gives bf16, as pasts and presents are; everything else stays in floats. */
export function inBf16(model: Buffer): Buffer {
  const made = new Set<string>()
  const attention = (node: Buffer): Uint8Array => {
    const texts = (number: number): string[] => Array.from(fieldsOf(node)).filter(one => one.number === number).map(one => String(one.content))
    if (texts(4)[0] !== 'GroupQueryAttention') return field(1, node)
    const [added, seen] = [[] as Buffer[], { 1: 0, 2: 0 }]
    const changed = changing(node, [1, 2], (content, number) => {
      const place = seen[number as 1 | 2]++
      const name = String(content)
      if (name === '' || (number === 1 ? place > 2 && place < 7 : place > 0)) return field(number, content)
      if (number === 1 && name.startsWith('past')) return field(number, content)
      if (!made.has(name)) added.push(number === 1 ? cast(name, `${name}/bf16`, BFLOAT16) : cast(`${name}/bf16`, name, FLOAT))
      made.add(name)
      return field(number, `${name}/bf16`)
    })
    return Buffer.concat([field(1, changed), ...added])
  }
  const port = (info: Buffer): Buffer => {
    const isCarried = Array.from(fieldsOf(info)).some(({ number, content }) => number === 1 && /^(past|present)/.test(String(content)))
    if (!isCarried) return info
    return changing(info, [2], type => field(2, changing(type, [1], tensor => {
      const rest = Array.from(fieldsOf(tensor)).filter(({ number }) => number !== 1).map(({ whole }) => whole)
      return field(1, Buffer.concat([Uint8Array.from([8, BFLOAT16]), ...rest]))
    })))
  }
  return changing(model, [7], graph => field(7, changing(graph, [1, 11, 12], (content, number) => (number === 1 ? attention(content) : field(number, port(content))))))
}

/** The bytes of a model, and behind them nodes whose last output is an output of the graph. */
export function withNodes(model: Uint8Array, nodes: readonly AddedNode[]): Buffer {
  const made = nodes.map(({ operator, inputs, output }) =>
    field(1, Buffer.concat([...inputs.map(name => field(1, name)), field(2, output), field(3, `added/${output}`), field(4, operator)])))
  const type = field(2, field(1, Uint8Array.from([8, FLOAT])))
  const outputs = nodes.slice(-1).map(({ output }) => field(12, Buffer.concat([field(1, output), type])))
  return Buffer.concat([model, field(7, Buffer.concat([...made, ...outputs]))])
}

/** A folder of its own for a test, with a copy of a model and what lies beside it. */
export function copied(t: ExecutionContext, model: string, change: (bytes: Buffer) => Uint8Array = bytes => bytes): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-onnx-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  cpSync(dirname(model), folder, { recursive: true })
  const file = join(folder, 'model.onnx')
  writeFileSync(file, change(readFileSync(file)))
  return file
}
