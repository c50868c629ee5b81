// A cache in plain JavaScript, for a session thread's calls: keys and values, and the states after the last token, of each sequence.
import type { CarriedCache } from '../../../lib/onnx/carried.js'
import { openSource } from '../../../lib/onnx/graph-source.js'
import { pastLayers } from '../../../lib/onnx/past-layers.js'
import { Plain, plainPorts } from '../../../lib/onnx/plain.js'
import { onnxPackage } from '../../../lib/onnx/runtime.js'
import type { SessionStep } from '../../../lib/onnx/sessions.js'
import type { StatePlace } from '../../../lib/sequences/layer-group.js'
import type { LentRun } from '../../../lib/sequences/lent-run.js'

/** A layer as `pastLayers` describes it. */
interface Described {
  readonly kind: string
  readonly numKvHeads?: number
  readonly headDim?: number
  readonly tensors?: readonly Pick<StatePlace, 'name' | 'shape' | 'dtype'>[]
}

/** Each tensor of a slot begins at a multiple of so many bytes. */
const ALIGNED = 64

/** The groups of a cache for layers with keys and values, and for their states. */
export function groupsOf(layers: readonly Described[]): CarriedCache['groups'] {
  let end = 0
  const tensors = layers.flatMap(({ tensors: own = [] }, layer) =>
    own.map(({ name, shape, dtype }): StatePlace => {
      const bytes = shape.reduce((product, size) => product * size, dtype === 'f32' ? 4 : 2)
      const offset = Math.ceil(end / ALIGNED) * ALIGNED
      end = offset + bytes
      return { layer, name, shape, dtype, offset, bytes }
    }),
  )
  const rows = layers.flatMap(({ kind, numKvHeads, headDim }, layer) =>
    kind === 'state' ? [] : [{ kind: 'full', layers: [layer], numKvHeads, headDim, valueHeadDim: headDim }],
  )
  const states = tensors.length === 0 ? [] : [{ kind: 'state', layers: [], tensors, bytes: end }]
  return [...rows, ...states] as unknown as CarriedCache['groups']
}

/** The numbers of all tokens, one list for each head. */
type Heads = readonly (readonly number[])[]

type Sides = readonly [key: Heads, value: Heads]

/** The content of a sequence: never changed in place. */
export interface Content {
  readonly ids: readonly number[]
  readonly rows: ReadonlyMap<number, Sides>
  readonly slot: Uint8Array | undefined
  /** The number of its presents on the session's side. */
  readonly kept: number | undefined
}

/** A sequence without tokens. */
export const EMPTY: Content = { ids: [], rows: new Map(), slot: undefined, kept: undefined }

/** The rows that a run is given, `[heads, tokens, dim]`: a range of a tensor's tokens, or all of an array. */
type Given =
  | {
      readonly data: { readonly data: Float32Array; readonly dims: readonly number[] }
      readonly range: readonly [number, number]
    }
  | { readonly data: Float32Array; readonly shape: readonly number[]; readonly range?: undefined }

/** Answers to steps: new contents, and rows of logits of the wanted tokens. */
interface Computed {
  readonly contents: Content[]
  readonly logits: Float32Array[]
}

/** The unmodified graph over such a cache. */
export class MemoryCache {
  readonly #plain: Plain
  /** The rows of positions, which are alike for text: 1 or 3. */
  readonly #positionRows: number
  /** The number of reads of states so far. */
  reads = 0
  #kept = 0

  private constructor(plain: Plain, positionRows: number) {
    this.#plain = plain
    this.#positionRows = positionRows
  }

  /** Opens a model. `declared` has the sizes that it does not declare. */
  static async open(model: Uint8Array | string, declared: Parameters<typeof pastLayers>[1] = {}): Promise<MemoryCache> {
    const graph = await openSource(model)
    const groups = groupsOf(pastLayers(plainPorts(graph), declared) as readonly Described[])
    const cache: CarriedCache = { groups, dtype: 'f32', keyFormat: 'f32', valueFormat: 'f32' }
    const options = { runtime: onnxPackage(), threads: 1, takesFolder: true }
    const plain = await Plain.open({ kind: 'plain', graph: graph.share(), cache, ...options }, async call => call())
    const { dims = [] } = graph.inputs().find(({ name }) => name === 'position_ids') ?? {}
    return new MemoryCache(plain, dims.length === 3 ? 3 : 1)
  }

  /** Computes tokens behind contents, which stay as they are. The logits are those of all tokens, or of the last one of each sequence. */
  async step(parts: readonly (readonly [Content, readonly number[]])[], isAll = false): Promise<Computed> {
    const offsets = [0]
    for (const [, own] of parts) offsets.push((offsets.at(-1) as number) + own.length)
    const ids = Uint32Array.from(parts.flatMap(([, own]) => own))
    const positions = parts.flatMap(([{ ids: before }, own]) => own.map((_, at) => before.length + at))
    const numbers = parts.map(() => (this.#kept += 1))
    const step: SessionStep = {
      offsets: Int32Array.from(offsets),
      ids,
      positions: Int32Array.from(Array.from({ length: this.#positionRows }, () => positions).flat()),
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
    const rows = new Map<number, Sides>()
    let logits: readonly [data: Float32Array, vocabulary: number] | undefined
    const run = {
      gather: (layer: number, place: number) => {
        const [k, v] = parts[place]?.[0].rows.get(layer) ?? [[], []]
        return { k: Float32Array.from(k.flat()), v: Float32Array.from(v.flat()) }
      },
      write: (layer: number, k: Given, v: Given) => rows.set(layer, [headsOf(k), headsOf(v)]),
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
        const old = before.rows.get(layer)
        const [k, v] = sides.map((heads, side) =>
          heads.map((all, head) => {
            const width = all.length / ids.length
            const [from, to] = [offsets[place] as number, offsets[place + 1] as number]
            return [...(old?.[side]?.[head] ?? []), ...all.slice(from * width, to * width)]
          }),
        ) as unknown as Sides
        return [layer, [k, v] as const] as const
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

  release(): Promise<void> {
    return this.#plain.release()
  }
}

function headsOf({ data, range, ...rest }: Given): Heads {
  const [all, dims] = data instanceof Float32Array ? [data, 'shape' in rest ? rest.shape : []] : [data.data, data.dims]
  const [heads, tokens, width] = dims.slice(-3) as [number, number, number]
  const [start, end] = range ?? [0, tokens]
  return Array.from({ length: heads }, (_, head) => [
    ...all.subarray((head * tokens + start) * width, (head * tokens + end) * width),
  ])
}
