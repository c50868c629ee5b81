import { checkInternal, checkThis, INTERNAL, nativeArgument, settle } from '../border/owner.js'
import { KvTideError, invalid } from '../border/errors.js'
import { PagedKvCache, type LayerGroup } from '../sequences/paged-kv-cache.js'
import { type AdmissionOptions, admitPrompt, type Lacking } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { TokenIds } from '../sequences/tokens.js'
import { loadSequence, type LoadSequenceOptions } from '../store/load.js'
import type { SavedSource } from '../store/source.js'
import type { Backend, BackendName } from './backend.js'
import type { DraftModel } from './drafter.js'
import { Generation } from './generation.js'
import { type BackendRefusal, loadModel } from './load.js'
import { type GenerateOptionsOf, type OnnxModelOptions, type OpenOptions, readEntries, readGenerate, readOpen, readRun, type RunEntry, type RunOptions } from './options.js'
import { Scheduler } from './scheduler.js'
import { type OnnxSequence, openSequence, sequenceOf, SequenceState } from './sequence.js'
import { RunTask } from './task.js'
import { readKnown } from './token-log.js'

/** Options of {@link OnnxModel.generate}. */
export type GenerateOptions = GenerateOptionsOf<OnnxModel>

/** A sequence that was admitted, or what was lacking. */
export type OnnxAdmission = { readonly sequence: OnnxSequence; readonly lacking?: undefined } | { readonly sequence?: undefined; readonly lacking: Lacking }

/** @internal What a model is made of. */
interface Loaded {
  readonly cache: PagedKvCache
  readonly backend: Backend
  readonly refusals: readonly BackendRefusal[]
  readonly vocabulary: number | undefined
  readonly limits: { readonly stepTokens: number; readonly sequences: number }
}

/** How many unused ids the vocabularies of two models with one tokenizer may differ by: exporters round them up. */
const PADDING_MAX = 1024

/**
 * A language model in an ONNX file, with its keys and values in a {@link PagedKvCache}: run by the onnxruntime that `onnxruntime-node` brings.
 *
 * Any number of `generate` and `run` calls share steps. Each step takes one token of every sequence that generates, then pieces of prompts, in
 * order of arrival, up to `maxStepTokens`. Where blocks run out, the sequence that arrived last makes room: it waits, and what prompts still
 * find of it is not computed again. Nobody waits for one that arrived later.
 */
export class OnnxModel implements AsyncDisposable, Disposable {
  /** The way in which it is run. */
  declare readonly backend: BackendName
  /** Why ways before that one were not taken. */
  declare readonly refusals: readonly BackendRefusal[]
  /** Its cache: statistics, events, prompts. */
  declare readonly cache: PagedKvCache
  /** Its layers, in groups that keep the same tokens. */
  declare readonly layers: readonly LayerGroup[]
  /** How many tokens it knows; `undefined` where the graph does not say. */
  declare readonly vocabularySize: number | undefined
  readonly #shared: SharedCache
  readonly #backend: Backend
  readonly #scheduler: Scheduler
  readonly #isWindowed: boolean
  #ended: Promise<void> | undefined

  /** @internal */
  constructor(token: unknown, loaded: unknown) {
    checkInternal(token, 'OnnxModel', 'OnnxModel.load(model) instead')
    const { cache, backend, refusals, vocabulary, limits } = loaded as Loaded
    settle<OnnxModel, 'backend' | 'refusals' | 'cache' | 'layers' | 'vocabularySize'>(this, {
      backend: backend.name, refusals: Object.freeze([...refusals]), cache, layers: cache.groups, vocabularySize: vocabulary,
    })
    this.#shared = nativeArgument<SharedCache>('cache', cache, PagedKvCache)
    this.#backend = backend
    this.#scheduler = new Scheduler(cache, this.#shared, backend, limits)
    this.#isWindowed = cache.groups.some(group => group.kind === 'sliding')
  }

  /**
   * Loads a model.
   *
   * @param model the path of its file, whose weights stay there; or its bytes
   * @throws KvTideError `UNSUPPORTED_GRAPH` with the node that is not recognised, `INVALID_GRAPH`, `RUNTIME_UNAVAILABLE` without a usable
   * onnxruntime-node, `RUNTIME_FAILED`
   */
  static async load(model: string | Uint8Array, options: OnnxModelOptions = {}): Promise<OnnxModel> {
    return new OnnxModel(INTERNAL, await loadModel(model, options))
  }

  /** A new sequence. It starts with what the cache has of `tokens`; the rest of them is pending. */
  open(options: OpenOptions = {}): OnnxSequence {
    OnnxModel.#check(this)
    const { tokens, prompt } = readOpen(options, this.vocabularySize)
    return openSequence(this.#shared, tokens, { prompt, vocabulary: this.vocabularySize })
  }

  /**
   * Opens a sequence for a prompt, if there is room for the rest of it and for its answer; otherwise says what is lacking: see
   * {@link PagedKvCache.admit}. The rest of the prompt is pending.
   */
  admit(tokens: TokenIds, options: AdmissionOptions = {}): OnnxAdmission {
    OnnxModel.#check(this)
    const ids = readKnown('tokens', tokens, this.vocabularySize)
    const { sequence, lacking, prompt } = admitPrompt(this.#shared, ids, options)
    if (sequence === undefined) return { lacking: lacking as Lacking }
    return { sequence: sequenceOf(this.#shared, sequence, ids, { prompt, vocabulary: this.vocabularySize }) }
  }

  /**
   * A new sequence with what {@link OnnxSequence.save} saved, also in another process, whichever way it runs the model. Salt and extras have to be
   * those of the saved sequence. To bring back what prompts found, see {@link PagedKvCache.loadPrompts} of `cache`.
   *
   * @throws KvTideError `CORRUPT`, `INCOMPATIBLE` with the field that differs, or `OUT_OF_BLOCKS`
   */
  async loadSequence(source: SavedSource, options: LoadSequenceOptions = {}): Promise<OnnxSequence> {
    OnnxModel.#check(this)
    const shared = this.#shared
    const { id, ids, prompt } = await loadSequence(shared, source, options)
    try {
      if (ids === undefined) {
        const details = { field: 'tokens', value: 'without ids', expected: 'tokens whose ids are known' }
        throw new KvTideError('INCOMPATIBLE', `tokens is ${details.value}, expected ${details.expected}`, details)
      }
      const known = readKnown('tokens', ids, this.vocabularySize)
      // Under another key its blocks have no names yet.
      shared.change(native => native.identify(id, known.subarray(0, native.sequenceLength(id))))
      return sequenceOf(shared, id, known, { prompt, vocabulary: this.vocabularySize })
    } catch (error) {
      shared.change(native => native.releaseSequence(id))
      throw error
    }
  }

  /**
   * Generates tokens behind those of a sequence, one by one. Computing starts with the first `next()`. The options are those of sampling, how long
   * it goes on, and what it starts with.
   */
  generate(sequence: OnnxSequence, options: GenerateOptions = {}): Generation {
    OnnxModel.#check(this)
    const state = SequenceState.of(this.#shared, 'sequence', sequence)
    const settings = readGenerate(options, this.vocabularySize, (argument, value) => this.#drafting(argument, value))
    return new Generation(INTERNAL, this.#scheduler, state, settings, this.#isWindowed)
  }

  /**
   * Computes tokens of sequences, beside everything else that goes on, and answers with logits: for each sequence those of its last token, or with
   * `logits: 'all'` those of all tokens that were computed, one behind the other. Where one is refused, all are as they were before.
   */
  async run(entries: readonly RunEntry<OnnxSequence>[], options: RunOptions = {}): Promise<Float32Array[]> {
    OnnxModel.#check(this)
    const { isLast, signal } = readRun(options)
    const read = readEntries(entries, this.vocabularySize).map(({ sequence, tokens }, place) => {
      const state = SequenceState.of(this.#shared, `entries[${place}].sequence`, sequence)
      state.reconcile()
      state.checkFree()
      if (state.pending + tokens.length === 0) throw invalid(`entries[${place}].tokens.length`, 0, 'at least 1: nothing is pending')
      return { state, tokens }
    })
    const twice = read.findIndex(({ state }, place) => read.findIndex(other => other.state === state) < place)
    if (twice >= 0) throw invalid(`entries[${twice}].sequence`, read[twice]?.state.sequence, 'each sequence once')
    if (isAborted(signal)) throw aborted(signal)
    const tasks = read.map(({ state, tokens }) => this.#scheduler.add(state, arrival => new RunTask(state, tokens, arrival, isLast)))
    const end = (): void => {
      for (const task of tasks) task.end()
      this.#scheduler.wake()
    }
    signal?.addEventListener('abort', end, { once: true })
    const settled = await Promise.allSettled(tasks.map(({ done }) => done.catch((error: unknown) => {
      end()
      throw error
    })))
    signal?.removeEventListener('abort', end)
    const refused = settled.find(result => result.status === 'rejected')
    const logits = refused === undefined ? await Promise.allSettled(tasks.map(task => task.logits())) : []
    const failed = refused ?? logits.find(result => result.status === 'rejected')
    for (const task of tasks) task.settle(failed === undefined)
    if (failed === undefined) return logits.map(result => (result as PromiseFulfilledResult<Float32Array>).value)
    throw refused !== undefined && isAborted(signal) ? aborted(signal) : failed.reason
  }

  /** Runs a function between two steps, when nothing is computed: calls on the cache that throw `BUSY` otherwise. The next step waits for it. */
  between<R>(call: () => R | Promise<R>): Promise<R> {
    OnnxModel.#check(this)
    if (typeof call !== 'function') throw invalid('call', call, 'a function')
    return this.#scheduler.between(call)
  }

  /**
   * Ends it, behind the step that is being computed: what is generated or run is refused with `DISPOSED`, what waits for tiers is written, for ten
   * seconds at most, and its memory is given back. A second time does nothing.
   */
  dispose(): Promise<void> {
    OnnxModel.#checkThis(this)
    this.#ended ??= this.#end()
    return this.#ended
  }

  /** As {@link dispose}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return OnnxModel.prototype.dispose.call(this)
  }

  /** As {@link dispose}, for `using`; nobody waits for its end. */
  [Symbol.dispose](): void {
    // Whoever waits for it hears what went wrong.
    OnnxModel.prototype.dispose.call(this).catch(() => {})
  }

  static #checkThis(self: unknown): void {
    checkThis(self, value => #scheduler in value, 'an OnnxModel')
  }

  /** Refuses a `this` that is none, or that was disposed of. */
  static #check(self: OnnxModel): void {
    OnnxModel.#checkThis(self)
    self.#scheduler.check()
  }

  /** A second model whose tokens are drafts of this one's; nothing where it is no model. */
  #drafting(argument: string, model: unknown): DraftModel | undefined {
    if (typeof model !== 'object' || model === null || !(#scheduler in model)) return undefined
    if (model === this) throw invalid(argument, model, 'another model: one drafts for another')
    const [own, theirs] = [this.vocabularySize, model.vocabularySize]
    if (own !== undefined && theirs !== undefined && Math.abs(own - theirs) > PADDING_MAX) throw invalid(`${argument}.vocabularySize`, theirs, `about ${own}: a model with the same tokenizer`)
    model.#scheduler.check()
    return { scheduler: model.#scheduler, shared: model.#shared }
  }

  async #end(): Promise<void> {
    await this.#scheduler.dispose()
    await this.#backend.dispose()
    await this.cache[Symbol.asyncDispose]()
  }
}

function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true
}

function aborted(signal: AbortSignal | undefined): KvTideError<'ABORTED'> {
  return new KvTideError('ABORTED', 'aborted by its signal', {}, { cause: signal?.reason })
}
