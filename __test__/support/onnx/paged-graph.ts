import { fileURLToPath } from 'node:url'

import type { NativeLogits, NativeOnnxSession } from '#binding'

import { PagedKvCache, type PagedKvCacheOptions, type Sequence } from '../../../index.js'
import { binding } from '../../../lib/loading/binding.js'
import { graphSession, type GraphSessionOptions } from '../../../lib/onnx/graph-session.js'
import { StepRun } from '../../../lib/sequences/step-run.js'

/** Graphs of the fixtures, by the element type of their outputs. */
export const F32 = ['onnx', 'onnx-gqa-f32', 'onnx-gqa-f32-ext', 'onnx-gqa-pos-f32'] as const
export const F16 = 'onnx-gqa-f16'
export const INT4 = 'onnx-gqa-int4'

export const graphFile = (name: string): string =>
  fileURLToPath(new URL(`../../fixtures/llama/${name}/model.onnx`, import.meta.url))

/** A config of the Llama fixtures that gives each layer a window of 8 tokens. */
export const WINDOWED = {
  model_type: 'mistral',
  sliding_window: 8,
  num_hidden_layers: 3,
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  vocab_size: 320,
}

/** Returns the most probable token. */
export const best = (row: Float32Array): number =>
  row.reduce((top, value, id) => (value > (row[top] as number) ? id : top), 0)

/** New tokens of a sequence. */
export interface NewTokens {
  readonly sequence: Sequence
  readonly tokens: readonly number[]
}

/** Runs a graph on pages: steps in onnxruntime, one after the other. */
export class PagedGraph {
  readonly cache: PagedKvCache
  readonly session: NativeOnnxSession

  private constructor(cache: PagedKvCache, session: NativeOnnxSession) {
    this.cache = cache
    this.session = session
  }

  static async open(
    file: string,
    options: Partial<GraphSessionOptions> & {
      readonly rows?: boolean
      readonly cache?: Partial<PagedKvCacheOptions>
    } = {},
  ): Promise<PagedGraph> {
    const graph = await binding.NativeOnnxGraph.open(file)
    const rewritten = await graph.rewrite(options.rows ?? true)
    const found = rewritten.layers()
    const layers = found.map(({ window, numKvHeads, headDim, valueHeadDim }) => ({
      kind: window === undefined ? ('full' as const) : ('sliding' as const),
      ...(window === undefined ? {} : { window }),
      numKvHeads,
      headDim,
      valueHeadDim,
    }))
    const numQueryHeads = found[0]?.numHeads ?? 1
    const dtype = found[0]?.element as 'f32' | 'f16' | 'bf16'
    const model = { layers, attention: { numQueryHeads, sinkLogits: found.some(layer => layer.sinks !== undefined) } }
    const cache = new PagedKvCache({
      model,
      dtype,
      capacity: 1024,
      blockSize: 16,
      ...options.cache,
    } as PagedKvCacheOptions)
    return new PagedGraph(cache, await graphSession(graph, rewritten, { threads: 2, ...options }))
  }

  /** Runs one step, and returns logits of the requested rows, or of all. If it fails, it is undone. */
  async step(batch: readonly NewTokens[], rows?: readonly number[]): Promise<NativeLogits> {
    const sequences = batch.map(entry => entry.sequence)
    const starts = sequences.map(sequence => sequence.length)
    const offsets = [0]
    for (const { tokens } of batch) offsets.push((offsets.at(-1) as number) + tokens.length)
    const ids = Uint32Array.from(batch.flatMap(entry => entry.tokens))
    const positions = Int32Array.from(
      batch.flatMap(({ tokens }, at) => tokens.map((_, place) => (starts[at] as number) + place)),
    )
    using step = this.cache.beginStep({ sequences, offsets, tokens: ids })
    using run = StepRun.of(step)
    const logits = await this.session.run(
      run.native,
      ids,
      positions,
      rows === undefined ? undefined : Int32Array.from(rows),
    )
    run.end()
    step.commit()
    return logits
  }

  /** Computes tokens of one sequence, and returns the logits of all of them. */
  async all(sequence: Sequence, tokens: readonly number[]): Promise<Float32Array> {
    const logits = await this.step([{ sequence, tokens }])
    const rows = tokens.map((_, row) => logits.row(row))
    const joined = new Float32Array(rows.reduce((sum, row) => sum + row.length, 0))
    rows.reduce((at, row) => (joined.set(row, at), at + row.length), 0)
    return joined
  }

  /** Generates the most probable tokens after a prompt. */
  async greedy(sequence: Sequence, prompt: readonly number[], count: number): Promise<number[]> {
    const chosen: number[] = []
    let tokens = prompt
    while (chosen.length < count) {
      const row = (await this.step([{ sequence, tokens }], [tokens.length - 1])).row(0)
      const next = best(row)
      chosen.push(next)
      tokens = [next]
    }
    return chosen
  }

  [Symbol.dispose](): void {
    this.session.dispose()
    this.cache.dispose()
  }
}
