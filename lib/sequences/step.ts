import type { NativePagedStep } from '#binding'

import { AttendCall, type Attended, type AttendedWithLse, type AttendOptions, type AttendOut, type WithLse, type KvLayer } from '../attention/attend-call.js'
import { count, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { meta } from '../border/host-array.js'
import { checkInternal, INTERNAL, nativeArgument, Owner, settle } from '../border/owner.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import { type DTypeOfSource, put, readTensor, type Tensor, type TokenSource } from '../border/tensor.js'
import { parentsOf } from '../contiguous/kv-transaction.js'
import { SequenceBatch, type SequenceList } from './sequence-batch.js'
import type { SharedCache } from './shared-cache.js'
import type { BatchArrays } from './step-batch.js'
import { readTokens, type TokenIds } from './tokens.js'

const STEP: Names<StepOptions> = { sequences: 0, offsets: 0, parents: 0, tokens: 0 }

/** The tokens of a step. */
export interface StepOptions {
  /** The sequences, each once. */
  readonly sequences: SequenceList
  /** Sequence i gets the tokens from `offsets[i]` to `offsets[i + 1]`; left out, each gets one. */
  readonly offsets?: Int32Array | readonly number[]
  /**
   * For each token, the number of the token of its sequence's open transaction that it follows, counted from 0, or -1 for the last
   * token before the transaction. Without `parents` each token follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
  /** The ids of the tokens, unless `commit` gets them. */
  readonly tokens?: TokenIds
}

/** A step's native object, and its tokens. */
class OpenStep {
  readonly shared: SharedCache
  readonly native: NativePagedStep
  readonly sequences: readonly number[]
  readonly offsets: Int32Array
  readonly tokens: Uint32Array | undefined

  constructor(shared: SharedCache, options: unknown, tables?: BatchArrays) {
    const { sequences, offsets, parents, tokens } = known<StepOptions>('options', options, STEP)
    const batch = new SequenceBatch(shared, sequences, offsets)
    this.shared = shared
    this.sequences = batch.sequences
    this.offsets = batch.offsets
    const nodes = optional(parentsOf, 'parents', parents)
    this.tokens = optional(readTokens, 'tokens', tokens)
    this.#check('tokens', this.tokens)
    this.#check('parents', nodes)
    const arrays = tables?.checked(batch.sequences.length, this.length)
    this.native = shared.change(native =>
      arrays === undefined ? native.beginStep(batch.put(), batch.length, nodes) : native.prepareStep(batch.put(), batch.length, nodes, (tables as BatchArrays).native, arrays),
    )
  }

  get length(): number {
    return this.offsets.at(-1) as number
  }

  /** Refuses a list that does not have one entry for each token. */
  #check(argument: string, given: ArrayLike<number> | undefined): void {
    if (given !== undefined && given.length !== this.length) throw invalid(`${argument}.length`, given.length, `${this.length}, one for each token`)
  }

  /** A call of attention in a layer of the step. */
  call(layer: unknown, q: unknown, options: unknown, out: AttendOut | undefined): AttendCall {
    const { shared: { native: cache, hasSinkLogits }, native } = this
    const at = count('layer', layer)
    cache.checkStep(native)
    const kv: KvLayer = {
      layer: at,
      hasSinkLogits,
      attend: (queries, call, array, lists) => cache.attendLayer(native, queries, call, array, lists),
      request: (queries, call, lists, stop) => cache.attendLayerRequest(native, queries, call, lists, stop),
    }
    return new AttendCall(q, kv, options, out)
  }

  dispose(): void {
    this.shared.native.releaseStep(this.native)
    this.shared.changed()
  }
}

/**
 * Tokens that a model computes layer by layer: K of a layer depends on the attention of the layer before. Attention in a step sees the
 * step's own tokens. They count once the step is committed, in all layers at once. Until then its sequences refuse other changes with
 * `TRANSACTION_OPEN`.
 *
 * Where a transaction is open on a sequence, the step's tokens are drafted in it. Calls on a step that has ended throw
 * `TRANSACTION_CLOSED`, and `STALE_STEP` when one of its sequences was dropped. A step that is garbage collected is rolled back.
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
  /** How many tokens it has, of all sequences together. */
  declare readonly length: number
  /** The position of each token: what a model's `position_ids` are. In a draft tree it is where the token's path leads to. */
  declare readonly positions: Int32Array

  /** @internal */
  constructor(token: unknown, step: unknown) {
    checkInternal(token, 'Step', 'PagedKvCache.beginStep(options) instead')
    const { sequences, offsets, length, shared, native } = step as OpenStep
    super(token, step as OpenStep, Step)
    settle(this, { sequences: Object.freeze([...sequences]), offsets: offsets.slice(), length, positions: shared.native.stepPositions(native) })
  }

  /**
   * Writes the tokens of a layer with keys and values of its own, those of all sequences one behind the other:
   * `[numKvHeads, length, headDim]`, or with a 1 before it; with the layout `bshd` `[length, numKvHeads, headDim]`. A layer may be
   * written more than once.
   */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const { shared, native } = own(this)
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    shared.change(cache => cache.writeLayer(native, at, put(keys, 0), put(values, 1), meta))
  }

  /**
   * Attention from a layer's queries to what the layer holds, or the layer that it shares with; that layer has to be written first. `q`
   * is `[length, heads, headDim]` in the order of the step's tokens, or `[1, heads, length, headDim]` for one sequence. The model's
   * scale, soft cap, window and sinks hold unless `options` say otherwise. In a draft tree each query sees its ancestors, unless
   * `tree` or `mask` says otherwise.
   */
  attend<Q extends TokenSource>(layer: number, q: Q, options: WithLse<AttendOptions>): AttendedWithLse<Tensor<DTypeOfSource<Q>>>
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendOptions>, out: T): AttendedWithLse<T>
  attend<Q extends TokenSource>(layer: number, q: Q, options?: AttendOptions): Attended<Tensor<DTypeOfSource<Q>>>
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions | undefined, out: T): Attended<T>
  attend(layer: number, q: TokenSource, options: AttendOptions = {}, out?: AttendOut): Attended<Tensor | AttendOut> {
    return own(this).call(layer, q, options, out).run()
  }

  /** As {@link attend}, off the main thread: see {@link attendAsync}. Until the promise is settled, `write`, `commit` and `rollback` throw `BUSY`. */
  attendAsync<Q extends TokenSource>(layer: number, q: Q, options: WithLse<AttendOptions & AsyncOptions>): Promise<AttendedWithLse<Tensor<DTypeOfSource<Q>>>>
  attendAsync<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendOptions & AsyncOptions>, out: T): Promise<AttendedWithLse<T>>
  attendAsync<Q extends TokenSource>(layer: number, q: Q, options?: AttendOptions & AsyncOptions): Promise<Attended<Tensor<DTypeOfSource<Q>>>>
  attendAsync<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions & AsyncOptions | undefined, out: T): Promise<Attended<T>>
  async attendAsync(layer: number, q: TokenSource, options: AttendOptions & AsyncOptions = {}, out?: AttendOut): Promise<Attended<Tensor | AttendOut>> {
    return own(this).call(layer, q, options, out).runLater()
  }

  /**
   * Ends the step; its tokens count from now on.
   *
   * @param tokens their ids, unless `beginStep` got them. Prompts find full blocks of tokens whose ids are known
   * @throws KvTideError `STEP_INCOMPLETE` with the layers that are not written; the step stays open
   */
  commit(tokens?: TokenIds): void {
    const { shared, native, tokens: begun } = own(this)
    const ids = optional(readTokens, 'tokens', tokens) ?? begun
    shared.change(cache => cache.commitStep(native, ids))
  }

  /**
   * Ends the step; its sequences are as they were before. Blocks that were evicted for it stay evicted. Where no block was left for a
   * copy of the block that it wrote into, prompts no longer find that block.
   */
  rollback(): void {
    const { shared, native } = own(this)
    shared.change(cache => cache.undoStep(native))
  }

  /** Rolls the step back if it is still open, even while `attendAsync` reads. May be called any number of times. */
  override dispose(): void {
    super.dispose()
  }
}

/** @internal Begins a step, and fills the arrays of a batch where one is given. */
export function beginStep(shared: SharedCache, options: unknown, tables?: BatchArrays): Step {
  return new Step(INTERNAL, new OpenStep(shared, options, tables))
}

function own(self: unknown): OpenStep {
  return nativeArgument<OpenStep>('this', self, Step)
}
