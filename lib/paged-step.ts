import type { NativePagedStep } from '#binding'

import type { KvPages } from './attend-kv.js'
import type { AttendAsyncOptions, AttendOptions, Settings } from './attend-options.js'
import { attended, attendedLater, type Attended, type AttendedWithLse, type AttendOut } from './attended.js'
import { count, optional } from './check.js'
import { meta, put, readTensor, type TokenSource } from './host-tensor.js'
import { OpenStep } from './open-step.js'
import { checkInternal, endThis, INTERNAL, nativeArgument, Owner, settle } from './owner.js'
import type { SequenceList } from './paged-batch.js'
import type { PagedEngine } from './paged-engine.js'
import { readTokens, type TokenIds } from './prompt.js'
import type { Tables } from './step-batch.js'
import type { Tensor } from './tensor.js'

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

type WithLse<Options> = Options & { readonly returnLse: true }

/** An open step: the native one, and what its queries see unless they say otherwise. */
class Step extends OpenStep<PagedEngine> {
  readonly native: NativePagedStep
  readonly #ids: Float64Array

  constructor(engine: PagedEngine, options: unknown, tables?: Tables) {
    super(engine, options)
    const { batch, nodes } = this
    this.#ids = new Float64Array(batch.sequences)
    const arrays = tables?.checked(batch.sequences.length, this.length)
    this.native = engine.change(native =>
      arrays === undefined ? native.beginStep(batch.put(), batch.length, nodes) : native.prepareStep(batch.put(), batch.length, nodes, (tables as Tables).native, arrays),
    )
  }

  protected layer(layer: number): KvPages {
    const { native } = this.engine
    native.checkWritten(this.native, layer)
    return { cache: native, layer, sequences: this.#ids, tables: undefined, lengths: undefined }
  }

  protected filled(settings: Settings): Settings {
    return { ...settings, qOffsets: settings.qOffsets ?? this.offsets }
  }

  dispose(): void {
    this.engine.native.releaseStep(this.native)
    this.engine.changed()
  }
}

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
export class PagedStep extends Owner {
  /** The numbers of its sequences. */
  declare readonly sequences: readonly number[]
  /** Where the tokens of each sequence begin, and where the last ones end. */
  declare readonly offsets: Int32Array
  /** Tokens of all sequences. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, step: unknown) {
    checkInternal(token, 'PagedStep', 'PagedKvCache.beginStep(options) instead')
    const { sequences, offsets, length } = step as Step
    super(token, step as Step, PagedStep)
    settle(this, { sequences: Object.freeze([...sequences]), offsets: offsets.slice(), length })
  }

  /**
   * Writes the tokens of a layer, those of all sequences one behind the other: `[numKvHeads, length, headDim]`, or with a 1
   * before it; with the layout `bshd` `[length, numKvHeads, headDim]`. A layer may be written again.
   */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const { engine, native } = own(this)
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.change(cache => cache.writeLayer(native, at, put(keys, 0), put(values, 1), meta))
  }

  /**
   * As {@link attend} over the step's sequences in a layer that it has written: `q` is `[length, heads, headDim]`, those of a sequence where its
   * tokens are. Where a transaction is a tree, or the step's `parents` make it one, each query sees its ancestors in it, unless
   * `tree` or `mask` says otherwise.
   */
  attend(layer: number, q: TokenSource, options: WithLse<AttendOptions>): AttendedWithLse
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendOptions>, out: T): AttendedWithLse<T>
  attend(layer: number, q: TokenSource, options?: AttendOptions): Attended
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions | undefined, out: T): Attended<T>
  attend(layer: number, q: TokenSource, options: AttendOptions = {}, out?: AttendOut): Attended<Tensor | AttendOut> {
    return attended(own(this).call(layer, q, options, out), out)
  }

  /** As {@link attend}, off the main thread: see {@link attendAsync}. Until it has ended, writing and ending the step throw `BUSY`. */
  attendAsync(layer: number, q: TokenSource, options: WithLse<AttendAsyncOptions>): Promise<AttendedWithLse>
  attendAsync<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendAsyncOptions>, out: T): Promise<AttendedWithLse<T>>
  attendAsync(layer: number, q: TokenSource, options?: AttendAsyncOptions): Promise<Attended>
  attendAsync<T extends AttendOut>(layer: number, q: TokenSource, options: AttendAsyncOptions | undefined, out: T): Promise<Attended<T>>
  async attendAsync(layer: number, q: TokenSource, options: AttendAsyncOptions = {}, out?: AttendOut): Promise<Attended<Tensor | AttendOut>> {
    return attendedLater(own(this).call(layer, q, options, out), out)
  }

  /**
   * Ends it: its tokens count.
   *
   * @param tokens their ids, unless `beginStep` was told: full blocks of known tokens can be found by other prompts
   * @throws KvTideError `STEP_INCOMPLETE` with the layers that are not written; it stays open
   */
  commit(tokens?: TokenIds): void {
    const { engine, native, tokens: known } = own(this)
    const ids = optional(readTokens, 'tokens', tokens) ?? known
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
  dispose(): void {
    endThis(this, PagedStep)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, PagedStep)
  }
}

/** @internal Begins a step, and writes its tables where a batch is given. */
export function beginStep(engine: PagedEngine, options: unknown, tables?: Tables): PagedStep {
  return new PagedStep(INTERNAL, new Step(engine, options, tables))
}

function own(self: unknown): Step {
  return nativeArgument<Step>('this', self, PagedStep)
}
