// A graph of one node of a layer that keeps a state, over a cache: as a session that has kvtide's operators, and by the addon's own calls, as between two subgraphs.
import type { NativeOnnxSession, NativeStateNode } from '#binding'

import { PagedKvCache, type Sequence } from '../../../index.js'
import { binding } from '../../../lib/loading/binding.js'
import { onnxLibrary } from '../../../lib/onnx/runtime.js'
import { LentRun } from '../../../lib/sequences/lent-run.js'
import { StepRun } from '../../../lib/sequences/step-run.js'
import { floats as halves } from './graphs.js'
import { type AttributeOf, type ConstantOf, ELEMENT, floatsOf, modelBytes, nodeOf, type NodeOf } from './model-bytes.js'
import { IDS, numberAt, type StateCase } from './state-cases.js'

/** The element types of a node and of its state. */
export interface StateForm {
  readonly element: 'f32' | 'f16'
  readonly state: 'f32' | 'f16' | 'bf16'
  readonly threads?: number
}

/** New tokens of a sequence. */
export interface NewTokens {
  readonly sequence: Sequence
  readonly tokens: readonly number[]
}

/** The rows of an input, one for each id. */
function table(of: StateCase, input: number): number[] {
  const rows = of.inputs[input]
  if (rows === undefined || !('kind' in rows)) return []
  return Array.from({ length: IDS * rows.width }, (_, at) =>
    numberAt(input, rows.kind, Math.floor(at / rows.width), at % rows.width),
  )
}

/** The rows of all inputs for a token: weights have none. */
export function rowsOf(of: StateCase, id: number): number[][] {
  return of.inputs.map((rows, input) =>
    rows === undefined || !('kind' in rows)
      ? []
      : Array.from({ length: rows.width }, (_, at) => numberAt(input, rows.kind, id, at)),
  )
}

/** The bytes of a graph with the node, whose logits are its output. */
export function stateGraph(of: StateCase, element: 'f32' | 'f16', attributes: NodeOf['attributes'] = {}): Buffer {
  const nodes: NodeOf[] = []
  const constants: ConstantOf[] = []
  const cast = (name: string, to: number): string => {
    nodes.push(nodeOf('Cast', [name], `${name}.cast`, { to }))
    return `${name}.cast`
  }
  const turned = (name: string): string => {
    nodes.push(nodeOf('Transpose', [name], `${name}.turned`, { perm: [0, 2, 1] }))
    return `${name}.turned`
  }
  const inputs = of.inputs.map((rows, input) => {
    const name = `input.${input}`
    if (rows === undefined) return ''
    if ('kind' in rows) {
      constants.push(floatsOf(`${name}.table`, [IDS, rows.width], table(of, input)))
      nodes.push(nodeOf('Gather', [`${name}.table`, 'input_ids'], name, { axis: 0 }))
    } else constants.push(floatsOf(name, [rows.length], rows))
    const own = of.isTurned === true && input === 0 ? turned(name) : name
    return element === 'f16' ? cast(own, ELEMENT.half) : own
  })
  const made = { ...of.attributes, state: 0, ...attributes }
  nodes.push({ operator: of.operator, domain: 'kvtide', inputs, outputs: ['out'], attributes: made })
  const wide = element === 'f16' ? cast('out', ELEMENT.float) : 'out'
  nodes.push(nodeOf('Identity', [of.isTurned === true ? turned(wide) : wide], 'logits'))
  const ports = {
    inputs: [{ name: 'input_ids', element: ELEMENT.int64, dims: ['batch', 'tokens'] }],
    outputs: [{ name: 'logits', dims: ['batch', 'tokens', of.out] }],
  }
  return modelBytes({ nodes, constants, ...ports })
}

/** The attributes as the addon takes them. */
const listed = (attributes: Readonly<Record<string, AttributeOf>>): { name: string; values: number[] }[] =>
  Object.entries(attributes).map(([name, value]) => {
    if (typeof value === 'number') return { name, values: [value] }
    if (typeof value === 'string') throw new TypeError(`${name} is no number`)
    if ('float' in value) return { name, values: [Math.fround(value.float)] }
    if ('floats' in value) return { name, values: value.floats.map(Math.fround) }
    throw new TypeError(`${name} is no number`)
  })

/** A node over a cache that keeps its state. */
export abstract class StateOver {
  readonly of: StateCase
  readonly cache: PagedKvCache

  constructor(of: StateCase, dtype: StateForm['state'], extra: readonly string[] = []) {
    this.of = of
    const others = extra.map(name => ({ name, shape: [3], dtype: 'f32' as const }))
    this.cache = new PagedKvCache({
      model: { layers: [{ kind: 'state', tensors: [{ name: 'state', shape: of.shape, dtype }, ...others] }] },
      capacity: 60,
      blockSize: 4,
    })
  }

  /** Computes the rows of all tokens. */
  protected abstract compute(run: StepRun, ids: Uint32Array): Promise<Float32Array>

  /** Runs one step; returns the rows of each sequence. If it fails, it is undone. */
  async step(batch: readonly NewTokens[]): Promise<number[][][]> {
    const offsets = [0]
    for (const { tokens } of batch) offsets.push((offsets.at(-1) as number) + tokens.length)
    const ids = Uint32Array.from(batch.flatMap(({ tokens }) => tokens))
    using step = this.cache.beginStep({ sequences: batch.map(({ sequence }) => sequence), offsets, tokens: ids })
    using run = StepRun.of(step)
    const rows = await this.compute(run, ids)
    run.end()
    step.commit()
    const { out } = this.of
    return batch.map(({ tokens }, at) =>
      tokens.map((_, token) => {
        const row = (offsets[at] as number) + token
        return [...rows.subarray(row * out, (row + 1) * out)]
      }),
    )
  }

  [Symbol.dispose](): void {
    this.cache.dispose()
  }
}

/** The node in a session of onnxruntime. */
export class StateSession extends StateOver {
  readonly #session: NativeOnnxSession

  private constructor(of: StateCase, session: NativeOnnxSession, dtype: StateForm['state'], extra?: readonly string[]) {
    super(of, dtype, extra)
    this.#session = session
  }

  static async open(
    of: StateCase,
    { element, state, threads = 1 }: StateForm,
    { attributes = {}, extra = [] }: { attributes?: NodeOf['attributes']; extra?: readonly string[] } = {},
  ): Promise<StateSession> {
    const bytes = stateGraph(of, element, attributes)
    const session = await binding.NativeOnnxSession.create(onnxLibrary().file, bytes, { threads })
    return new StateSession(of, session, state, extra)
  }

  protected override async compute(run: StepRun, ids: Uint32Array): Promise<Float32Array> {
    const positions = Int32Array.from(ids.keys())
    const logits = await this.#session.run(run.native, ids, positions)
    const rows = Array.from(ids, (_, row) => [...logits.row(row)])
    logits.dispose()
    return Float32Array.from(rows.flat())
  }

  override [Symbol.dispose](): void {
    this.#session.dispose()
    super[Symbol.dispose]()
  }
}

/** The node by calls of the addon. */
export class StateCalls extends StateOver {
  readonly #node: NativeStateNode
  readonly #element: 'f32' | 'f16'

  constructor(of: StateCase, { element, state, threads = 1 }: StateForm) {
    super(of, state)
    this.#element = element
    this.#node = binding.NativeStateNode.of(of.operator, listed({ ...of.attributes, state: 0 }), element, threads)
  }

  protected override compute(run: StepRun, ids: Uint32Array): Promise<Float32Array> {
    const { inputs, out, isTurned = false } = this.of
    const all = Array.from(ids, id => rowsOf(this.of, id))
    const given = inputs.map((rows, input) => {
      if (rows === undefined) return undefined
      if (!('kind' in rows)) return this.#data(rows)
      const numbers = all.map(of => of[input] as number[])
      return this.#data(isTurned && input === 0 ? turnedRows(numbers) : numbers.flat())
    })
    const lent = LentRun.taken(run.share())
    try {
      const answer = lent.computeStates(this.#node, given)
      const data = answer instanceof Float32Array ? answer : halves({ type: 'float16', data: answer } as never)
      if (!isTurned) return Promise.resolve(data)
      const rows = Array.from({ length: out }, (_, at) => [...data.subarray(at * ids.length, (at + 1) * ids.length)])
      return Promise.resolve(Float32Array.from(turnedRows(rows)))
    } finally {
      lent.dispose()
    }
  }

  #data(numbers: readonly number[]): Float32Array | Uint16Array {
    return this.#element === 'f32' ? Float32Array.from(numbers) : Uint16Array.from(numbers, bitsOf)
  }
}

/** Rows as columns, one after the other. */
const turnedRows = (rows: readonly (readonly number[])[]): number[] =>
  (rows[0] ?? []).flatMap((_, at) => rows.map(row => row[at] as number))

/** The bits of a half float: of NaN, or of a multiple of 1/64 whose size is at most 2. */
function bitsOf(value: number): number {
  if (Number.isNaN(value)) return 0x7e00
  if (value === 0) return 0
  const exponent = Math.floor(Math.log2(Math.abs(value)))
  const fraction = (Math.abs(value) / 2 ** exponent - 1) * 1024
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | fraction
}

/** The rows that follow tokens of a sequence from its start, by the formulas. */
export function expectedRows(of: StateCase, tokens: readonly number[]): number[][] {
  const state = Array.from({ length: of.shape.reduce((product, size) => product * size, 1) }, () => 0)
  return tokens.map(id => of.step(rowsOf(of, id), state))
}
