// Steps: tokens of several sequences that a model computes layer by layer. They count in all layers at once, when the step is committed.
import type { NativePagedStep } from '#binding'

import {
  AttendCall,
  type Attended,
  type AttendedWithLse,
  type AttendOptions,
  type AttendOut,
  type WithLse,
  type KvLayer,
} from '../attention/attend-call.js'
import { count, known, type Names, optional } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { meta } from '../border/host-array.js'
import { checkInternal, INTERNAL, nativeArgument, Owner, settle } from '../border/owner.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import { type DTypeOfSource, put, readTensor, type Tensor, type TokenSource } from '../border/tensor.js'
import { parentsOf } from '../contiguous/kv-transaction.js'
import { SequenceBatch, type SequenceList } from './sequence-batch.js'
import type { SharedCache } from './shared-cache.js'
import { indexArgument, readStates, statesArgument } from './states.js'
import type { BatchArrays } from './step-batch.js'
import { readTokens, type TokenIds } from './tokens.js'

const STEP: Names<StepOptions> = { sequences: 0, offsets: 0, parents: 0, tokens: 0 }

/** Options of a step: its sequences and tokens. */
export interface StepOptions {
  /** The sequences, each once. */
  readonly sequences: SequenceList
  /** Sequence i gets the tokens from `offsets[i]` to `offsets[i + 1]`; by default each gets one. */
  readonly offsets?: Int32Array | readonly number[]
  /**
   * For each token, the number of the token of its sequence's open transaction that it follows, counted from 0, or -1 for the last
   * token before the transaction. Without `parents`, each token follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
  /** The ids of the tokens, unless they are passed to `commit`. */
  readonly tokens?: TokenIds
}

/** A step's native object and its tokens. */
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
      arrays === undefined
        ? native.beginStep(batch.put(), batch.length, nodes)
        : native.prepareStep(batch.put(), batch.length, nodes, (tables as BatchArrays).native, arrays),
    )
  }

  get length(): number {
    return this.offsets.at(-1) as number
  }

  /** Refuses a list whose length is not the number of tokens. */
  #check(argument: string, given: ArrayLike<number> | undefined): void {
    if (given !== undefined && given.length !== this.length)
      throw invalid(`${argument}.length`, given.length, `${this.length}, one for each token`)
  }

  /** Makes a call of attention in a layer of the step. */
  call(layer: unknown, q: unknown, options: unknown, out: AttendOut | undefined): AttendCall {
    const {
      shared: { native: cache, hasSinkLogits },
      native,
    } = this
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
 * step's own tokens. They count in all layers at once, when the step is committed. Until then its sequences refuse other changes with
 * `TRANSACTION_OPEN`; forks and snapshots of them have the tokens from before the step.
 *
 * If a transaction is open on a sequence, the step's tokens are drafted in it. Calls on a step that has ended throw
 * `TRANSACTION_CLOSED`, or `STALE_STEP` if one of its sequences was dropped. A step that is garbage collected is rolled back.
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
  /** The start of each sequence's tokens, and the end of the last ones. */
  declare readonly offsets: Int32Array
  /** The number of tokens of all sequences together. */
  declare readonly length: number
  /** The position of each token: a model's `position_ids`. In a draft tree, the position at the end of the token's path. */
  declare readonly positions: Int32Array

  /** @internal */
  constructor(token: unknown, step: unknown) {
    checkInternal(token, 'Step', 'PagedKvCache.beginStep(options) instead')
    const { sequences, offsets, length, shared, native } = step as OpenStep
    super(token, step as OpenStep, Step)
    settle(this, {
      sequences: Object.freeze([...sequences]),
      offsets: offsets.slice(),
      length,
      positions: shared.native.stepPositions(native),
    })
  }

  /**
   * Writes the tokens of a layer with keys and values of its own, with those of all sequences concatenated:
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
   * Copies the states that the step's sequence `index` had before the step: all tensors of the cache's group of states, at their offsets. A sequence without
   * tokens has zeros.
   *
   * @throws KvTideError `INVALID_ARGUMENT` if no layer keeps a state
   */
  readStates(index: number): Uint8Array {
    const { shared, native, sequences } = own(this)
    const at = indexArgument(index, sequences.length)
    return readStates(shared.native, out => shared.native.readStates(native, at, out))
  }

  /**
   * Writes the states of the step's sequence `index` after the step's tokens, at the offsets of the cache's group of states. Each sequence that gets tokens
   * needs them before `commit`; they may be written more than once.
   *
   * @throws KvTideError `SHAPE_MISMATCH` unless there are exactly the bytes of a slot; `INVALID_ARGUMENT` for a sequence without tokens
   */
  writeStates(index: number, bytes: Uint8Array): void {
    const { shared, native, sequences } = own(this)
    const [at, states] = statesArgument(index, sequences.length, bytes)
    shared.change(cache => cache.writeStates(native, at, states))
  }

  /**
   * Computes attention from a layer's queries to the keys and values of that layer, or of the layer that it shares with; that layer has to
   * be written first. `q` is `[length, heads, headDim]` in the order of the step's tokens, or `[1, heads, length, headDim]` for one
   * sequence. The model's scale, soft cap, window and sinks apply unless `options` override them. In a draft tree each query sees its
   * ancestors, unless `tree` or `mask` is given.
   */
  attend<Q extends TokenSource>(
    layer: number,
    q: Q,
    options: WithLse<AttendOptions>,
  ): AttendedWithLse<Tensor<DTypeOfSource<Q>>>
  attend<T extends AttendOut>(
    layer: number,
    q: TokenSource,
    options: WithLse<AttendOptions>,
    out: T,
  ): AttendedWithLse<T>
  attend<Q extends TokenSource>(layer: number, q: Q, options?: AttendOptions): Attended<Tensor<DTypeOfSource<Q>>>
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions | undefined, out: T): Attended<T>
  attend(layer: number, q: TokenSource, options: AttendOptions = {}, out?: AttendOut): Attended<Tensor | AttendOut> {
    return own(this).call(layer, q, options, out).run()
  }

  /** As {@link attend}, off the main thread: see {@link attendAsync}. Until the promise is settled, `write`, `commit` and `rollback` throw `BUSY`. */
  attendAsync<Q extends TokenSource>(
    layer: number,
    q: Q,
    options: WithLse<AttendOptions & AsyncOptions>,
  ): Promise<AttendedWithLse<Tensor<DTypeOfSource<Q>>>>
  attendAsync<T extends AttendOut>(
    layer: number,
    q: TokenSource,
    options: WithLse<AttendOptions & AsyncOptions>,
    out: T,
  ): Promise<AttendedWithLse<T>>
  attendAsync<Q extends TokenSource>(
    layer: number,
    q: Q,
    options?: AttendOptions & AsyncOptions,
  ): Promise<Attended<Tensor<DTypeOfSource<Q>>>>
  attendAsync<T extends AttendOut>(
    layer: number,
    q: TokenSource,
    options: (AttendOptions & AsyncOptions) | undefined,
    out: T,
  ): Promise<Attended<T>>
  async attendAsync(
    layer: number,
    q: TokenSource,
    options: AttendOptions & AsyncOptions = {},
    out?: AttendOut,
  ): Promise<Attended<Tensor | AttendOut>> {
    return own(this).call(layer, q, options, out).runLater()
  }

  /**
   * Commits the step: its tokens count from now on.
   *
   * @param tokens their ids, unless `beginStep` got them. Only full blocks of tokens with ids are added to the prefix cache
   * @throws KvTideError `STEP_INCOMPLETE` with the layers that are not written, or whose states are not; the step stays open
   */
  commit(tokens?: TokenIds): void {
    const { shared, native, tokens: begun } = own(this)
    const ids = optional(readTokens, 'tokens', tokens) ?? begun
    shared.change(cache => cache.commitStep(native, ids))
  }

  /**
   * Rolls the step back: its sequences return to their state before it. Blocks that were evicted for the step stay evicted. If there
   * was no free block for a copy of a block that the step wrote into, prompts can no longer reuse that block.
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

/** @internal Begins a step, and fills the arrays of a batch if one is given. */
export function beginStep(shared: SharedCache, options: unknown, tables?: BatchArrays): Step {
  return new Step(INTERNAL, new OpenStep(shared, options, tables))
}

function own(self: unknown): OpenStep {
  return nativeArgument<OpenStep>('this', self, Step)
}
