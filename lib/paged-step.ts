import type { NativePagedStep } from '#binding'

import { AttendCall } from './attend-call.js'
import { readSettings, type AttendAsyncOptions, type AttendOptions } from './attend-options.js'
import { attended, attendedLater, type Attended, type AttendedWithLse, type AttendOut } from './attended.js'
import { count, fields, optional } from './check.js'
import { invalid } from './errors.js'
import { meta, put, readTensor, type TokenSource } from './host-tensor.js'
import { parentsOf } from './kv-transaction.js'
import { checkInternal, endThis, INTERNAL, nativeArgument, Owner, settle } from './owner.js'
import { Batch, type SequenceList } from './paged-batch.js'
import type { PagedEngine, SequencesEngine } from './paged-engine.js'
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
class Step {
  readonly engine: PagedEngine
  readonly native: NativePagedStep
  readonly sequences: Float64Array
  readonly offsets: Int32Array
  readonly tokens: Uint32Array | undefined
  /** The tree of the queries; nothing for a chain, `null` where there is none that holds for all of them. */
  readonly tree: Int32Array | undefined | null

  constructor(engine: PagedEngine, options: unknown, tables?: Tables) {
    const { sequences, offsets, parents, tokens } = fields<StepOptions>('options', options)
    const batch = new Batch(engine, sequences, offsets)
    const nodes = optional(parentsOf, 'parents', parents)
    this.tokens = optional(readTokens, 'tokens', tokens)
    this.engine = engine
    this.sequences = new Float64Array(batch.sequences)
    this.offsets = batch.offsets
    const all = this.offsets.at(-1) as number
    if (this.tokens !== undefined && this.tokens.length !== all) throw invalid('tokens.length', this.tokens.length, `${all}, one for each token`)
    const tree = nodes && treeOf(engine, batch.sequences, this.offsets, nodes)
    const arrays = tables?.checked()
    const native = engine.ticked()
    this.native = arrays === undefined ? native.beginStep(batch.put(), batch.length, nodes) : native.prepareStep(batch.put(), batch.length, nodes, (tables as Tables).native, arrays)
    this.tree = tree
    engine.changed()
  }

  /** A call of attention over its sequences, what was left out filled in. */
  call(layer: unknown, q: unknown, options: unknown, out: unknown): AttendCall {
    const { native } = this.engine
    native.checkStep(this.native)
    const pages = { cache: native, layer: count('layer', layer), sequences: this.sequences, tables: undefined, lengths: undefined }
    const settings = readSettings(options)
    const qOffsets = settings.qOffsets ?? this.offsets
    if (settings.tree !== undefined || settings.mask !== undefined) return new AttendCall(q, pages, { ...settings, qOffsets }, out)
    if (this.tree === null) throw invalid('tree', undefined, 'a tree or a mask: that of this step is not one for all its sequences, right behind what is committed')
    return new AttendCall(q, pages, { ...settings, qOffsets, tree: this.tree }, out)
  }

  dispose(): void {
    this.engine.native.releaseStep(this.native)
    this.engine.changed()
  }
}

/** @internal The tree that all sequences have alike, right behind what is committed. */
export function treeOf(engine: SequencesEngine, sequences: readonly number[], offsets: Int32Array, nodes: Int32Array): Int32Array | null {
  const first = nodes.slice(0, offsets[1])
  const isSame = sequences.every((id, place) => {
    const queries = nodes.subarray(offsets[place], offsets[place + 1])
    const isFirst = engine.native.committedLength(id) === engine.native.sequenceLength(id)
    return isFirst && queries.length === first.length && queries.every((parent, node) => parent === first[node])
  })
  return isSame ? first : null
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
    const { sequences, offsets } = step as Step
    super(token, step as Step, PagedStep)
    settle(this, { sequences: Object.freeze([...sequences]), offsets: offsets.slice(), length: offsets.at(-1) as number })
  }

  /**
   * Writes the tokens of a layer, those of all sequences one behind the other: `[numKvHeads, length, headDim]`, or with a 1
   * before it; with the layout `bshd` `[length, numKvHeads, headDim]`. A layer may be written again.
   */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const { engine, native } = own(this)
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.ticked().writeLayer(native, at, put(keys, 0), put(values, 1), meta)
    engine.changed()
  }

  /**
   * As {@link attend} over the step's sequences in a layer: `q` is `[length, heads, headDim]`, those of a sequence where its
   * tokens are. With `parents` the queries are a tree; where theirs is not one for all sequences, or follows what was drafted
   * before, `tree` or `mask` has to say it.
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
    engine.ticked().commitStep(native, optional(readTokens, 'tokens', tokens) ?? known)
    engine.changed()
  }

  /** Ends it, as if it had never been. */
  rollback(): void {
    const { engine, native } = own(this)
    engine.ticked().undoStep(native)
    engine.changed()
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
