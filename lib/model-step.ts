import type { NativeModelStep } from '#binding'

import { checkSinkLogits, type KvLayer } from './attend-call.js'
import type { AttendAsyncOptions, AttendOptions, Settings } from './attend-options.js'
import { attended, attendedLater, type Attended, type AttendedWithLse, type AttendOut } from './attended.js'
import { count, optional } from './check.js'
import { meta, put, readTensor, type TokenSource } from './host-tensor.js'
import type { ModelEngine } from './model-engine.js'
import type { ModelSequence } from './model-sequence.js'
import { OpenStep } from './open-step.js'
import { checkInternal, endThis, INTERNAL, nativeArgument, Owner, settle } from './owner.js'
import type { StepOptions } from './paged-step.js'
import { readTokens, type TokenIds } from './prompt.js'
import type { Tables } from './step-batch.js'
import type { Tensor } from './tensor.js'

/** Which tokens a step of a {@link ModelCache} is for. In tensors it is of one sequence. */
export interface ModelStepOptions extends Omit<StepOptions, 'sequences'> {
  /** The sequences, each once, by their numbers or their objects. */
  readonly sequences: readonly (number | ModelSequence)[] | Float64Array
}

type WithLse<Options> = Options & { readonly returnLse: true }

/** An open step: the native one, and what its queries see unless they say otherwise. */
class Step extends OpenStep<ModelEngine> {
  readonly native: NativeModelStep

  constructor(engine: ModelEngine, options: unknown, tables?: Tables) {
    super(engine, options)
    const { batch, nodes } = this
    if (nodes !== undefined) this.check('parents', nodes)
    const arrays = tables?.checked(batch.sequences.length, this.length)
    this.native = engine.change(native =>
      arrays === undefined ? native.beginStep(batch.put(), batch.length, nodes) : native.prepareStep(batch.put(), batch.length, nodes, (tables as Tables).native, arrays),
    )
  }

  protected layer(layer: number): KvLayer {
    const { engine: { native: cache }, native } = this
    cache.checkStep(native)
    return {
      layer,
      offsets: undefined,
      attend: (queries, call, array, lists) => cache.attendLayer(native, queries, call, array as object, lists),
      request: (queries, call, lists, stop) => cache.attendLayerRequest(native, queries, call, lists, stop),
    }
  }

  protected filled(settings: Settings): Settings {
    if (this.engine.hasSinkLogits) checkSinkLogits(settings)
    return settings
  }

  dispose(): void {
    this.engine.native.releaseStep(this.native)
    this.engine.changed()
  }
}

/**
 * Tokens that a model computes layer by layer. Each layer sees the step's own tokens; they count when the step is committed, in
 * all layers at once. Until then its sequences refuse other changes with `TRANSACTION_OPEN`.
 *
 * Where a transaction is open on a sequence, the step's tokens are drafted there. Once the step has ended each call throws
 * `TRANSACTION_CLOSED`; `STALE_STEP` when one of its sequences was dropped. One that is collected is undone.
 *
 * @example
 * ```ts
 * import { ModelCache } from 'kvtide'
 *
 * using cache = new ModelCache({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2 }] }, kind: 'paged', blocks: 8 })
 * const [one, other] = [cache.openSequence(), cache.openSequence()]
 * using step = cache.beginStep({ sequences: [one, other], offsets: [0, 2, 3], tokens: [7, 8, 9] })
 * const rows = { data: Float32Array.of(1, 1, 2, 2, 3, 3), shape: [1, 3, 2] } // two tokens of one, then one of the other
 * for (let layer = 0; layer < cache.numLayers; layer++) {
 *   step.write(layer, rows, rows)
 *   const { out } = step.attend(layer, { data: new Float32Array(3 * 2), shape: [3, 1, 2] })
 *   console.log(out.toArray()) // Float32Array [1, 1, 1.5, 1.5, 3, 3]
 * }
 * step.commit()
 * console.log(one.length, other.length) // 2 1
 * ```
 */
export class ModelStep extends Owner {
  /** The numbers of its sequences. */
  declare readonly sequences: readonly number[]
  /** Where the tokens of each sequence begin, and where the last ones end. */
  declare readonly offsets: Int32Array
  /** Tokens of all sequences. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, step: unknown) {
    checkInternal(token, 'ModelStep', 'ModelCache.beginStep(options) instead')
    const { sequences, offsets, length } = step as Step
    super(token, step as Step, ModelStep)
    settle(this, { sequences: Object.freeze(Array.from(sequences)), offsets: offsets.slice(), length })
  }

  /**
   * Writes the tokens of a layer with keys and values of its own, those of all sequences one behind the other:
   * `[numKvHeads, length, headDim]`, or with a 1 before it; in tensors `[batchSize, numKvHeads, length, headDim]`, and each layer once.
   */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const { engine, native } = own(this)
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.change(cache => cache.writeLayer(native, at, put(keys, 0), put(values, 1), meta))
  }

  /**
   * Attention from a layer's queries to what it holds, or what the layer that it shares with does, once the step has written it: `[length, heads, headDim]`,
   * or `[1, heads, length, headDim]`. The model's scale, soft cap, window and sinks hold unless `options` say
   * otherwise. Where a transaction is a tree, each query sees its ancestors, as in {@link PagedStep.attend}.
   */
  attend(layer: number, q: TokenSource, options: WithLse<AttendOptions>): AttendedWithLse
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: WithLse<AttendOptions>, out: T): AttendedWithLse<T>
  attend(layer: number, q: TokenSource, options?: AttendOptions): Attended
  attend<T extends AttendOut>(layer: number, q: TokenSource, options: AttendOptions | undefined, out: T): Attended<T>
  attend(layer: number, q: TokenSource, options: AttendOptions = {}, out?: AttendOut): Attended<Tensor | AttendOut> {
    return attended(own(this).call(layer, q, options, out), out)
  }

  /**
   * As {@link attend}, off the main thread: see {@link attendAsync}. Until it has ended, whatever would change the step's sequences,
   * in any layer, throws `BUSY`; with blocks, whatever would change the cache.
   */
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
    const step = own(this)
    const ids = optional(readTokens, 'tokens', tokens)
    step.engine.native.checkStep(step.native)
    if (ids !== undefined) step.check('tokens', ids)
    step.engine.change(native => native.commitStep(step.native, ids ?? step.tokens))
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
    endThis(this, ModelStep)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, ModelStep)
  }
}

/** @internal Begins a step, and writes its tables where a batch is given. */
export function beginModelStep(engine: ModelEngine, options: unknown, tables?: Tables): ModelStep {
  return new ModelStep(INTERNAL, new Step(engine, options, tables))
}

function own(self: unknown): Step {
  return nativeArgument<Step>('this', self, ModelStep)
}
