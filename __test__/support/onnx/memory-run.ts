// A cache in plain JavaScript, for a session thread's calls: keys and values of one head, and the states after the last token, of each sequence.
import { binding } from '../../../lib/loading/binding.js'
import type { CarriedCache } from '../../../lib/onnx/carried.js'
import { pastLayers } from '../../../lib/onnx/past-layers.js'
import { Plain, plainPorts } from '../../../lib/onnx/plain.js'
import { onnxPackage } from '../../../lib/onnx/runtime.js'
import type { SessionStep } from '../../../lib/onnx/sessions.js'
import type { PlacedState } from '../../../lib/onnx/state-tensors.js'
import type { LentRun } from '../../../lib/sequences/lent-run.js'

/** A layer as `pastLayers` describes it. */
interface Described {
  readonly kind: string
  readonly headDim?: number
  readonly tensors?: readonly Pick<PlacedState, 'name' | 'shape' | 'dtype'>[]
}

/** Each tensor of a slot begins at a multiple of so many bytes. */
const ALIGNED = 64

/** The groups of a cache for layers with one head of keys and values, and for their states. */
export function groupsOf(layers: readonly Described[]): CarriedCache['groups'] {
  let end = 0
  const tensors = layers.flatMap(({ tensors: own = [] }, layer) =>
    own.map(({ name, shape, dtype }): PlacedState => {
      const bytes = shape.reduce((product, size) => product * size, dtype === 'f32' ? 4 : 2)
      const offset = Math.ceil(end / ALIGNED) * ALIGNED
      end = offset + bytes
      return { layer, name, shape, dtype, offset, bytes }
    }),
  )
  const rows = layers.flatMap(({ kind, headDim }, layer) =>
    kind === 'state' ? [] : [{ kind: 'full', layers: [layer], numKvHeads: 1, headDim, valueHeadDim: headDim }],
  )
  const states = tensors.length === 0 ? [] : [{ kind: 'state', layers: [], tensors, bytes: end }]
  return [...rows, ...states] as unknown as CarriedCache['groups']
}

/** The content of a sequence: never changed in place. */
export interface Content {
  readonly ids: readonly number[]
  readonly rows: ReadonlyMap<number, readonly [key: number[], value: number[]]>
  readonly slot: Uint8Array | undefined
  /** The number of its presents on the session's side. */
  readonly kept: number | undefined
}

/** A sequence without tokens. */
export const EMPTY: Content = { ids: [], rows: new Map(), slot: undefined, kept: undefined }

/** The rows that a run is given, in order: a range of a tensor's rows, or all of an array. */
interface Given {
  readonly data: { readonly data?: Float32Array } | Float32Array
  readonly range?: readonly [number, number]
}

/** Answers to steps: new contents, and rows of logits of the wanted tokens. */
interface Computed {
  readonly contents: Content[]
  readonly logits: Float32Array[]
}

/** The unmodified graph over such a cache. */
export class MemoryCache {
  readonly #plain: Plain
  readonly #width: number
  /** The number of reads of states so far. */
  reads = 0
  #kept = 0

  private constructor(plain: Plain, width: number) {
    this.#plain = plain
    this.#width = width
  }

  static async open(model: Uint8Array, width: number): Promise<MemoryCache> {
    const graph = await binding.NativeOnnxGraph.of(model)
    const groups = groupsOf(pastLayers(plainPorts(graph), {}) as readonly Described[])
    const cache: CarriedCache = { groups, dtype: 'f32', keyFormat: 'f32', valueFormat: 'f32' }
    const options = { runtime: onnxPackage(), threads: 1, takesFolder: true }
    const plain = await Plain.open({ kind: 'plain', graph: graph.share(), cache, ...options }, async call => call())
    return new MemoryCache(plain, width)
  }

  /** Computes tokens behind contents, which stay as they are. The logits are those of all tokens, or of the last one of each sequence. */
  async step(parts: readonly (readonly [Content, readonly number[]])[], isAll = false): Promise<Computed> {
    const offsets = [0]
    for (const [, own] of parts) offsets.push((offsets.at(-1) as number) + own.length)
    const ids = Uint32Array.from(parts.flatMap(([, own]) => own))
    const numbers = parts.map(() => (this.#kept += 1))
    const step: SessionStep = {
      offsets: Int32Array.from(offsets),
      ids,
      positions: Int32Array.from(parts.flatMap(([{ ids: before }, own]) => own.map((_, at) => before.length + at))),
      rows: isAll ? Int32Array.from(ids.keys()) : Int32Array.from(offsets.slice(1), end => end - 1),
      pasts: {
        sequences: parts.map(([{ ids: before, kept }], place) => ({
          length: before.length,
          from: kept,
          keep: numbers[place] as number,
        })),
        forget: [],
      },
    }
    const slots: Uint8Array[] = []
    const rows = new Map<number, readonly [number[], number[]]>()
    let logits: readonly [data: Float32Array, vocabulary: number] | undefined
    const run = {
      gather: (layer: number, place: number) => {
        const [k, v] = parts[place]?.[0].rows.get(layer) ?? [[], []]
        return { k: Float32Array.from(k), v: Float32Array.from(v) }
      },
      write: (layer: number, k: Given, v: Given) => rows.set(layer, [this.#numbers(k), this.#numbers(v)]),
      readStates: (place: number) => {
        this.reads += 1
        const { slot } = (parts[place] as (typeof parts)[number])[0]
        if (slot === undefined) throw new Error('the states of an empty sequence were read')
        return slot.slice()
      },
      writeStates: (place: number, slot: Uint8Array) => void (slots[place] = slot.slice()),
      logits: (data: Float32Array, _: string, __: number, vocabulary: number) => void (logits = [data, vocabulary]),
    }
    await this.#plain.compute(run as unknown as LentRun, step)
    const contents = parts.map(([before, own], place): Content => {
      const added = [...rows].map(([layer, sides]) => {
        const old = before.rows.get(layer) ?? [[], []]
        const [from, to] = [offsets[place], offsets[place + 1]].map(at => (at as number) * this.#width)
        const [k, v] = sides.map((side, at) => [...(old[at] as number[]), ...side.slice(from, to)])
        return [layer, [k, v] as [number[], number[]]] as const
      })
      return { ids: [...before.ids, ...own], rows: new Map(added), slot: slots[place], kept: numbers[place] }
    })
    const [data, vocabulary] = logits as NonNullable<typeof logits>
    const count = data.length / vocabulary
    return {
      contents,
      logits: Array.from({ length: count }, (_, row) => data.slice(row * vocabulary, (row + 1) * vocabulary)),
    }
  }

  #numbers({ data, range }: Given): number[] {
    const all = data instanceof Float32Array ? data : (data.data as Float32Array)
    const [start, end] = range ?? [0, all.length / this.#width]
    return [...all.subarray(start * this.#width, end * this.#width)]
  }

  release(): Promise<void> {
    return this.#plain.release()
  }
}
