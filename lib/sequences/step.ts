import type { NativePagedStep } from '#binding'

import { AttendCall, type KvLayer } from '../attention/attend-call.js'
import { readSettings, type AttendOptions } from '../attention/attend-options.js'
import { attended, attendedLater, type Attended, type AttendedWithLse, type AttendOut } from '../attention/attended.js'
import { count, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { meta } from '../border/host-array.js'
import { put, readTensor, type TokenSource } from '../border/host-tensor.js'
import { parentsOf } from '../contiguous/kv-transaction.js'
import { checkInternal, INTERNAL, nativeArgument, Owner, settle } from '../border/owner.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import type { Tensor } from '../border/tensor.js'
import { Batch, type SequenceList } from './batch.js'
import type { Engine } from './engine.js'
import { readTokens, type TokenIds } from './prompt.js'
import type { Tables } from './step-batch.js'

const STEP: Names<StepOptions> = { sequences: 0, offsets: 0, parents: 0, tokens: 0 }

/** Which tokens a step is for. */
export interface StepOptions {
  /** The sequences, each once. */
  readonly sequences: SequenceList
  /** Sequence i gets the tokens `offsets[i]` to `offsets[i + 1]`; left out, each gets one. */
  readonly offsets?: Int32Array | readonly number[]
  /**
   * For each token the one of its sequence's open transaction that it follows, counted from 0, or -1 for the last one before
   * the transaction. Without it each follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
  /** The ids of the tokens, unless they are given at the end. */
  readonly tokens?: TokenIds
}

/** An open step: the native one, which tokens it is for, and what its queries see unless they say otherwise. */
class OpenStep {
  readonly engine: Engine
  readonly native: NativePagedStep
  readonly sequences: readonly number[]
  readonly offsets: Int32Array
  readonly tokens: Uint32Array | undefined

  constructor(engine: Engine, options: unknown, tables?: Tables) {
    const { sequences, offsets, parents, tokens } = known<StepOptions>('options', options, STEP)
    const batch = new Batch(engine, sequences, offsets)
    this.engine = engine
    this.sequences = batch.sequences
    this.offsets = batch.offsets
    const nodes = optional(parentsOf, 'parents', parents)
    this.tokens = optional(readTokens, 'tokens', tokens)
    this.#check('tokens', this.tokens)
    this.#check('parents', nodes)
    const arrays = tables?.checked(batch.sequences.length, this.length)
    this.native = engine.change(native =>
      arrays === undefined ? native.beginStep(batch.put(), batch.length, nodes) : native.prepareStep(batch.put(), batch.length, nodes, (tables as Tables).native, arrays),
    )
  }

  get length(): number {
    return this.offsets.at(-1) as number
  }

  /** Refuses a list that has not one entry for each token. */
  #check(argument: string, given: ArrayLike<number> | undefined): void {
    if (given !== undefined && given.length !== this.length) throw invalid(`${argument}.length`, given.length, `${this.length}, one for each token`)
  }

  /** A call of attention in a layer, what was left out filled in. */
  call(layer: unknown, q: unknown, options: unknown, out: unknown): AttendCall {
    const { engine: { native: cache, hasSinkLogits }, native } = this
    const at = count('layer', layer)
    cache.checkStep(native)
    const kv: KvLayer = {
      layer: at,
      hasSinkLogits,
      attend: (queries, call, array, lists) => cache.attendLayer(native, queries, call, array, lists),
      request: (queries, call, lists, stop) => cache.attendLayerRequest(native, queries, call, lists, stop),
    }
    return new AttendCall(q, kv, readSettings(options), out)
  }

  dispose(): void {
    this.engine.native.releaseStep(this.native)
    this.engine.changed()
  }
}

type WithLse<Options> = Options & { readonly returnLse: true }

/**
 * Tokens that a model computes layer by layer: the K of a layer depends on the attention of the one before. Each layer sees the
 * step's own tokens, as other reads of its sequences do; they count when the step is committed, in all layers at once. Until then
 * its sequences refuse other changes with `TRANSACTION_OPEN`.
 *
 * Where a transaction is open on a sequence, the step's tokens are drafted there. Once the step has ended each call throws
 * `TRANSACTION_CLOSED`; `STALE_STEP` when one of its sequences was dropped. One that is collected is undone.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 8, numLayers: 2, numKvHeads: 1, headDim: 2 })
 * const [one, other] = [cache.openSequence(), cache.openSequence()]
 * const rows = (value: number) => ({ data: new Float32Array(3 * 2).fill(value), shape: [1, 3, 2] })
 * using step = cache.beginStep({ sequences: [one, other], offsets: [0, 2, 3] })
 * for (let layer = 0; layer < 2; layer++) {
 *   step.write(layer, rows(layer), rows(layer + 1)) // [numKvHeads, tokens, headDim]
 *   const { out } = step.attend(layer, { data: new Float32Array(3 * 2), shape: [3, 1, 2] })
 *   console.log(out.shape, out.toArray()[0]) // [3, 1, 2]
 * }
 * step.commit(Uint32Array.of(7, 8, 9))
 * console.log([one.length, other.length]) // [2, 1]
 * ```
 */
export class Step extends Owner {
  /** The numbers of its sequences. */
  declare readonly sequences: readonly number[]
  /** Where the tokens of each sequence begin, and where the last ones end. */
  declare readonly offsets: Int32Array
  /** Tokens of all sequences. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, step: unknown) {
    checkInternal(token, 'Step', 'PagedKvCache.beginStep(options) instead')
    const { sequences, offsets, length } = step as OpenStep
    super(token, step as OpenStep, Step)
    settle(this, { sequences: Object.freeze([...sequences]), offsets: offsets.slice(), length })
  }

  /**
   * Writes the tokens of a layer with keys and values of its own, those of all sequences one behind the other:
   * `[numKvHeads, length, headDim]`, or with a 1 before it; with the layout `bshd` `[length, numKvHeads, headDim]`. A layer may be
   * written again.
   */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const { engine, native } = own(this)
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.change(cache => cache.writeLayer(native, at, put(keys, 0), put(values, 1), meta))
  }

  /**
   * Attention from a layer's queries to what it holds, or what the layer that it shares with does, once the step has written it: `q` is
   * `[length, heads, headDim]`, those of a sequence where its tokens are, or of one sequence `[1, heads, length, headDim]`. The model's
   * scale, soft cap, window and sinks hold unless `options` say otherwise. Where a transaction is a tree, or the step's `parents` make
   * it one, each query sees its ancestors in it, unless `tree` or `mask` says otherwise.
   */
  attend(layer: number, q: TokenSource, options: WithLse<AttendOptions>): AttendedWithLse
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendOptions>, out: T): AttendedWithLse<T>
  attend(layer: number, q: TokenSource, options?: AttendOptions): Attended
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions | undefined, out: T): Attended<T>
  attend(layer: number, q: TokenSource, options: AttendOptions = {}, out?: AttendOut): Attended<Tensor | AttendOut> {
    return attended(own(this).call(layer, q, options, out), out)
  }

  /** As {@link attend}, off the main thread: see {@link attendAsync}. Until it has ended, writing and ending the step throw `BUSY`. */
  attendAsync(layer: number, q: TokenSource, options: WithLse<AttendOptions & AsyncOptions>): Promise<AttendedWithLse>
  attendAsync<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendOptions & AsyncOptions>, out: T): Promise<AttendedWithLse<T>>
  attendAsync(layer: number, q: TokenSource, options?: AttendOptions & AsyncOptions): Promise<Attended>
  attendAsync<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions & AsyncOptions | undefined, out: T): Promise<Attended<T>>
  async attendAsync(layer: number, q: TokenSource, options: AttendOptions & AsyncOptions = {}, out?: AttendOut): Promise<Attended<Tensor | AttendOut>> {
    return attendedLater(own(this).call(layer, q, options, out), out)
  }

  /**
   * Ends it: its tokens count.
   *
   * @param tokens their ids, unless `beginStep` was told: full blocks of known tokens can be found by other prompts
   * @throws KvTideError `STEP_INCOMPLETE` with the layers that are not written; it stays open
   */
  commit(tokens?: TokenIds): void {
    const { engine, native, tokens: begun } = own(this)
    const ids = optional(readTokens, 'tokens', tokens) ?? begun
    engine.change(cache => cache.commitStep(native, ids))
  }

  /**
   * Ends it: its sequences are as if it had never been. Blocks that were evicted for it stay so, and where none was left to copy the
   * block that it went on in, prompts no longer find what lay there.
   */
  rollback(): void {
    const { engine, native } = own(this)
    engine.change(cache => cache.undoStep(native))
  }

  /** Rolls it back if it is still open, also while `attendAsync` reads. Any number of times. */
  override dispose(): void {
    super.dispose()
  }
}

/** @internal Begins a step, and writes its tables where a batch is given. */
export function beginStep(engine: Engine, options: unknown, tables?: Tables): Step {
  return new Step(INTERNAL, new OpenStep(engine, options, tables))
}

function own(self: unknown): OpenStep {
  return nativeArgument<OpenStep>('this', self, Step)
}
