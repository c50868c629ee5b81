import { AttendCall, type KvLayer } from './attend-call.js'
import type { KvPages } from './attend-kv.js'
import { readSettings, type Settings } from './attend-options.js'
import { count, known, type Names, optional } from './check.js'
import { invalid } from './errors.js'
import { parentsOf } from './kv-transaction.js'
import { Batch } from './paged-batch.js'
import type { SequencesEngine } from './paged-engine.js'
import { readTokens } from './prompt.js'

const STEP: Names<StepInput> = { sequences: 0, offsets: 0, parents: 0, tokens: 0 }

/** What every step is made with, not read yet. */
export interface StepInput {
  readonly sequences: unknown
  readonly offsets?: unknown
  readonly parents?: unknown
  readonly tokens?: unknown
}

/** @internal An open step of any cache of many sequences: which tokens it is for, and what its queries see unless they say otherwise. */
export abstract class OpenStep<E extends SequencesEngine> {
  readonly engine: E
  readonly sequences: readonly number[]
  readonly offsets: Int32Array
  readonly tokens: Uint32Array | undefined
  protected readonly batch: Batch
  protected readonly nodes: Int32Array | undefined

  constructor(engine: E, options: unknown) {
    const { sequences, offsets, parents, tokens } = known<StepInput>('options', options, STEP)
    this.engine = engine
    this.batch = new Batch(engine, sequences, offsets)
    this.sequences = this.batch.sequences
    this.offsets = this.batch.offsets
    this.nodes = optional(parentsOf, 'parents', parents)
    this.tokens = optional(readTokens, 'tokens', tokens)
    if (this.tokens !== undefined) this.check('tokens', this.tokens)
  }

  get length(): number {
    return this.offsets.at(-1) as number
  }

  /** Refuses a list that has not one entry for each token. */
  check(argument: string, list: ArrayLike<number>): void {
    if (list.length !== this.length) throw invalid(`${argument}.length`, list.length, `${this.length}, one for each token`)
  }

  /** A call of attention in a layer, what was left out filled in. */
  call(layer: unknown, q: unknown, options: unknown, out: unknown): AttendCall {
    const kv = this.layer(count('layer', layer))
    return new AttendCall(q, kv, this.filled(readSettings(options)), out)
  }

  /** What the queries of a layer see; a step that has ended is refused. */
  protected abstract layer(layer: number): KvPages | KvLayer

  /** What this kind of step says where a call does not. */
  protected abstract filled(settings: Settings): Settings

  abstract dispose(): void
}
