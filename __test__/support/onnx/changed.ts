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
