// kvtide/onnx: language models in ONNX files over a paged cache. `OnnxModel` loads a model (load), a backend computes its steps (backend, graph, parts, plain), and
// the scheduler shares steps between generations and calls of `run` (scheduler, policy). `OnnxPast` is for sessions of the caller's own (past).
// A decoder like Whisper's has an encoder beside it (encoder, encoding), whose keys and values all sequences of an input share (cross-cache, cross-tensors).
//
// Invariants: the ids of a sequence always match the rows in the cache (sequence-state); a step that fails is rolled back, and its sequences stay as they were;
// graphs with an unknown input are refused (ports). Per token, a step costs one call of the runtime and bookkeeping of microseconds per sequence.
import { checkInternal, checkThis, INTERNAL, nativeArgument, settle } from '../border/owner.js'
import { abortedBy, invalid, isKvTideError, KvTideError } from '../errors/errors.js'
import type { LayerGroup } from '../sequences/layer-group.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import { ADMISSION, type AdmissionOptions, admitPrompt, type Lacking, type PromptOptions } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { TokenIds } from '../sequences/tokens.js'
import { loadSequence, type LoadSequenceOptions, SEQUENCE } from '../paged/load.js'
import type { SavedSource } from '../files/source.js'
import type { Backend, BackendName } from './backend.js'
import { checkContext } from './context.js'
import type { Cuts } from './cuts.js'
import type { CrossCache, CrossCacheStats } from './cross-cache.js'
import type { DraftModel } from './drafter.js'
import { Encoder } from './encoder.js'
import type { EncoderParts } from './encoder-parts.js'
import { encodedNames, type EncoderInput, type Encoding, readEncoded } from './encoding.js'
import type { Constraint } from '../sampling/grammar.js'
import { compile, type Vocabulary, vocabularyBeside } from '../sampling/vocabulary.js'
import { Generation, type ModelLimits } from './generation.js'
import { type BackendRefusal, loadModel } from './load.js'
import {
  apart,
  type Constrained,
  type EmbedsOption,
  type GenerateOptionsOf,
  type OnnxModelOptions,
  type OpenOptions,
  readDraft,
  readEntries,
  readGenerate,
  readOpen,
  readRun,
  type RunEntry,
  type RunOptions,
} from './options.js'
import { rest, Scheduler } from './scheduler.js'
import { type OnnxSequence, openSequence, sequenceOf } from './sequence.js'
import { type LongRope, namesAt } from './long-rope.js'
import { type EmbeddingForm, namedBy, readEmbeds, Spans } from './spans.js'
import { type SequenceKind, SequenceState } from './sequence-state.js'
import { RunTask } from './task.js'
import { checkPositions, readKnown } from './token-log.js'

/** Options of {@link OnnxModel.generate}. */
export type GenerateOptions = GenerateOptionsOf<OnnxModel>

/** The option `encoded` of {@link OpenOptions}. */
export type Encoded = Pick<OpenOptions, 'encoded'>

/** A sequence that was admitted, or the shortage. */
export type OnnxAdmission =
  | { readonly sequence: OnnxSequence; readonly lacking?: undefined }
  | { readonly sequence?: undefined; readonly lacking: Lacking }

/** @internal The parts of a loaded model. */
interface Loaded {
  readonly cache: PagedKvCache
  readonly backend: Backend
  readonly refusals: readonly BackendRefusal[]
  readonly vocabulary: number | undefined
  readonly contextLength?: number | undefined
  /** The path of the graph, and the ids that end an answer. */
  readonly path?: string | undefined
  readonly ends?: readonly number[] | undefined
  readonly rope?: LongRope | undefined
  /** Elements of a row of embeddings, if the model takes these. */
  readonly width?: number | undefined
  readonly limits: { readonly stepTokens: number; readonly sequences: number }
  /** The ends of steps in prompts; by default those that the cache's states need. */
  readonly cuts?: Cuts | undefined
  /** The encoder and the cross cache, for a decoder with an encoder. */
  readonly encoded?: (EncoderParts & { readonly cross: CrossCache }) | undefined
}

/** The properties of a model that never change. */
type Facts =
  | 'backend'
  | 'refusals'
  | 'cache'
  | 'namespace'
  | 'layers'
  | 'vocabularySize'
  | 'contextLength'
  | 'endOfSequence'
  | 'path'

/** The maximum difference between the vocabularies of two models with one tokenizer: exporters round the size up. */
const PADDING_MAX = 1024

let drafting: (target: OnnxModel, argument: string, model: unknown) => DraftModel | undefined

/** @internal Checks the option `draft` of the generations of a model, as {@link OnnxModel.generate} does. */
export function checkDraft(target: OnnxModel, draft: unknown): void {
  readDraft(draft, (argument, value) => drafting(target, argument, value))
}

/**
 * A language model in an ONNX file, with its keys and values in a {@link PagedKvCache}: run by the onnxruntime that `onnxruntime-node` brings.
 *
 * Any number of `generate` and `run` calls share steps. Each step takes one token of every sequence that generates, then chunks of prompts, in
 * order of arrival, up to `maxStepTokens`. If blocks run out, the sequence that arrived last is preempted: it waits, and the tokens that stay in
 * the prefix cache are not computed again. No sequence waits for one that arrived later. A prompt that can never fit is refused with `OUT_OF_BLOCKS`
 * before any of its tokens is computed.
 */
export class OnnxModel implements AsyncDisposable, Disposable {
  /** The backend that runs it. */
  declare readonly backend: BackendName
  /** The reasons why preceding backends were not used. */
  declare readonly refusals: readonly BackendRefusal[]
  /** The model's cache: statistics, events, prompts. */
  declare readonly cache: PagedKvCache
  /**
   * The namespace of its cache: by default a fingerprint of the graph, so that equal files have the same one. It is part of `cache.form`, with which
   * `PrefixNamer` of `kvtide` computes the same keys as this model.
   */
  declare readonly namespace: string
  /** Its layers, in groups that keep the same tokens. */
  declare readonly layers: readonly LayerGroup[]
  /** The size of the vocabulary; `undefined` if the graph does not declare it. */
  declare readonly vocabularySize: number | undefined
  /**
   * The maximum number of tokens in a sequence, including generated ones: the smallest value that `config.json`, `genai_config.json` or the graph's tables of
   * positions declare; `undefined` if none does. Longer prompts are refused with `CONTEXT_OVERFLOW`, and a generation ends there.
   */
  declare readonly contextLength: number | undefined
  /**
   * The ids that end an answer: `eos_token_id` of `generation_config.json`, else of `config.json`, else of `genai_config.json`. `generate` stops at them. Empty if no
   * config declares any.
   */
  declare readonly endOfSequence: readonly number[]
  /** The path of the graph's file; `undefined` if the model was given as bytes. */
  declare readonly path: string | undefined
  readonly #shared: SharedCache
  readonly #backend: Backend
  readonly #rope: LongRope | undefined
  readonly #embedding: EmbeddingForm | undefined
  readonly #encoded: Loaded['encoded']
  readonly #encoder: Encoder | undefined
  readonly #limits: ModelLimits
  readonly #scheduler: Scheduler
  readonly #isWindowed: boolean
  /** The vocabulary of the tokenizer beside it, once a grammar has needed it. */
  #tokens: Promise<Vocabulary> | undefined
  #ended: Promise<void> | undefined

  static {
    // A second model that drafts for the target; `undefined` if the value is not a model.
    drafting = (target, argument, model) => {
      if (typeof model !== 'object' || model === null || !(#scheduler in model)) return undefined
      if (model === target) throw invalid(argument, model, 'another model than the one that it drafts for')
      if (model.#encoded !== undefined) throw invalid(argument, model, 'a model without an encoder')
      const [own, theirs] = [target.vocabularySize, model.vocabularySize]
      if (own !== undefined && theirs !== undefined && Math.abs(own - theirs) > PADDING_MAX)
        throw invalid(`${argument}.vocabularySize`, theirs, `about ${own}: a model with the same tokenizer`)
      model.#scheduler.check()
      const { contextLength } = model
      return { scheduler: model.#scheduler, shared: model.#shared, contextLength, rope: model.#rope }
    }
  }

  /** @internal */
  constructor(token: unknown, loaded: unknown) {
    checkInternal(token, 'OnnxModel', 'OnnxModel.load(model) instead')
    const { cache, backend, refusals, vocabulary, contextLength, limits, cuts, rope, width, encoded, path, ends } =
      loaded as Loaded
    settle<OnnxModel, Facts>(this, {
      backend: backend.name,
      refusals: Object.freeze([...refusals]),
      cache,
      namespace: cache.form.namespace,
      layers: cache.groups,
      vocabularySize: vocabulary,
      contextLength,
      endOfSequence: Object.freeze([...(ends ?? [])]),
      path,
    })
    this.#limits = {
      contextLength,
      get isPruned() {
        return backend.isPruned === true
      },
    }
    this.#shared = nativeArgument<SharedCache>('cache', cache, PagedKvCache)
    this.#backend = backend
    // The runtime's own operators return the states after the last token of a step alone.
    if (backend.name !== 'plain') this.#shared.native.keepDraftedStates()
    this.#rope = rope
    this.#embedding = width === undefined ? undefined : { width, hasGrids: backend.positionRows === 3 }
    this.#encoded = encoded
    if (encoded?.graph !== undefined)
      this.#encoder = new Encoder({ ...encoded, graph: encoded.graph, backend: backend as Required<Backend> })
    this.#scheduler = new Scheduler(cache, this.#shared, backend, limits, cuts)
    this.#isWindowed = cache.groups.some(group => group.kind !== 'full')
  }

  /**
   * Loads a model.
   *
   * @param model the path or the `file:` URL of its file, whose weights stay there; of its folder, in which `dtype` chooses the file; or its bytes
   * @throws KvTideError `UNSUPPORTED_GRAPH` with the node that is not recognised, `INVALID_GRAPH`, `RUNTIME_UNAVAILABLE` without a usable
   * onnxruntime-node, `RUNTIME_FAILED`
   */
  static async load(model: string | URL | Uint8Array, options: OnnxModelOptions = {}): Promise<OnnxModel> {
    return new OnnxModel(INTERNAL, await loadModel(model, options))
  }

  /** Opens a new sequence. It starts with the cached prefix of `tokens`; the rest of them is pending. */
  open(options: OpenOptions = {}): OnnxSequence {
    OnnxModel.#check(this)
    const { tokens, prompt, embeds, encoded, checkpoints } = readOpen(options, this.vocabularySize, this.#embedding)
    const kind = this.#kindOf(prompt, Spans.ofPrompt(embeds, tokens), this.#encodingOf(encoded))
    return openSequence(this.#shared, tokens, kind, checkpoints)
  }

  /**
   * Runs the encoder of a decoder like Whisper's or T5's: for `open`, `admit` and `loadSequence`. The inputs are those of the encoder's graph, as tensors or token
   * ids: `{ input_features }` or `{ input_ids }`, also as a processor or a tokenizer of transformers.js returns them. If the same inputs were encoded before and are
   * still in the cross cache, the encoder does not run.
   */
  async encode(inputs: Readonly<Record<string, EncoderInput>>): Promise<Encoding> {
    OnnxModel.#check(this)
    const encoder = this.#encoder
    if (encoder !== undefined) return encoder.encode(inputs)
    const what = this.#encoded === undefined ? 'none: it has no inputs for one' : 'the option encoder of OnnxModel.load'
    throw invalid('encoder', undefined, `the file of the model's encoder, ${what}`)
  }

  /** Statistics of the cross cache: encodings with their keys and values. `undefined` for a model without an encoder. */
  get crossCache(): CrossCacheStats | undefined {
    OnnxModel.#checkThis(this)
    return this.#encoded?.cross.stats()
  }

  /**
   * Opens a sequence for a prompt if there is room for the rest of it and for its answer; otherwise returns the shortage: see
   * {@link PagedKvCache.admit}. The rest of the prompt is pending. No room is reserved beyond the model's context, because an answer ends there.
   *
   * @throws KvTideError `CONTEXT_OVERFLOW` for a prompt that is longer than the context
   */
  admit(tokens: TokenIds, options: AdmissionOptions & EmbedsOption & Encoded = {}): OnnxAdmission {
    OnnxModel.#check(this)
    const ids = readKnown('tokens', tokens, this.vocabularySize)
    const { contextLength = Infinity } = this
    checkContext(ids.length, contextLength)
    const { embeds, encoded, rest: own } = apart(options, ADMISSION)
    const encoding = this.#encodingOf(encoded)
    const spans = Spans.ofPrompt(readEmbeds(embeds, this.#embedding), ids)
    const names = (prompt: PromptOptions): PromptOptions =>
      namesAt(this.#rope, encodedNames(spans.named(prompt), encoding), ids.length)
    const { sequence, lacking, prompt } = admitPrompt(this.#shared, ids, own, contextLength - ids.length, names)
    if (sequence === undefined) return { lacking: lacking as Lacking }
    return { sequence: sequenceOf(this.#shared, sequence, ids, this.#kindOf(prompt, spans, encoding)) }
  }

  /**
   * Opens a new sequence with the content that {@link OnnxSequence.save} saved, possibly in another process and with another backend. Salt and extras must
   * be those of the saved sequence, and so must `embeds` and `encoded`: images may have to be computed again, and an encoding is not in the file. To load a saved
   * prefix cache, see {@link PagedKvCache.loadPrompts} of `cache`.
   *
   * @throws KvTideError `CORRUPT`, `INCOMPATIBLE` with the field that differs, or `OUT_OF_BLOCKS`
   */
  async loadSequence(
    source: SavedSource,
    options: LoadSequenceOptions & EmbedsOption & Encoded = {},
  ): Promise<OnnxSequence> {
    OnnxModel.#check(this)
    const shared = this.#shared
    const { embeds: given, encoded, rest: own } = apart(options, SEQUENCE)
    const encoding = this.#encodingOf(encoded)
    const embeds = readEmbeds(given, this.#embedding)
    const names = (prompt: PromptOptions, length: number): PromptOptions =>
      namesAt(this.#rope, encodedNames(namedBy(embeds, prompt), encoding), length)
    const { id, ids, prompt } = await loadSequence(shared, source, own, names)
    try {
      if (ids === undefined) {
        const details = { field: 'tokens', value: 'without ids', expected: 'tokens whose ids are known' }
        throw new KvTideError(
          'INCOMPATIBLE',
          `the saved tokens are ${details.value}, expected ${details.expected}`,
          details,
        )
      }
      const known = readKnown('tokens', ids, this.vocabularySize)
      // With another secret, its blocks have no keys in this cache yet.
      shared.change(native => native.identify(id, known.subarray(0, native.sequenceLength(id))))
      return sequenceOf(shared, id, known, this.#kindOf(prompt, new Spans(embeds, known), encoding))
    } catch (error) {
      shared.change(native => native.releaseSequence(id))
      throw error
    }
  }

  /**
   * Generates tokens behind those of a sequence, one by one. Computing starts with the first `next()`. The options determine sampling, the end of the
   * generation, and the tokens that it starts with. It ends at an id of `endOfSequence`, which is not returned, with `finishReason` `'stop'`. At the end of the
   * model's context it ends with `finishReason` `'length'`. A prompt that is longer is
   * refused with `CONTEXT_OVERFLOW` at the first `next()`, before anything is computed.
   */
  generate(sequence: OnnxSequence, options: GenerateOptions = {}): Generation {
    OnnxModel.#check(this)
    const state = SequenceState.of(this.#shared, 'sequence', sequence)
    const { constrained, ...read } = readGenerate(
      options,
      { vocabulary: this.vocabularySize, ends: this.endOfSequence },
      (argument, value) => drafting(this, argument, value),
    )
    const constrain = constrained && (() => this.#constrain(constrained, read.stop))
    const settings = { ...read, constrain, limits: this.#limits }
    return new Generation(INTERNAL, this.#scheduler, state, settings, this.#isWindowed)
  }

  /**
   * Computes tokens of sequences, in steps shared with generations, and returns logits: for each sequence those of its last token, or with
   * `logits: 'all'` those of all computed tokens, concatenated. If one sequence is refused, all of them return to their previous state.
   *
   * @throws KvTideError `CONTEXT_OVERFLOW`, before anything is computed, if a sequence would become longer than the model's context
   */
  async run(entries: readonly RunEntry<OnnxSequence>[], options: RunOptions = {}): Promise<Float32Array[]> {
    OnnxModel.#check(this)
    const { isLast, signal } = readRun(options)
    const read = readEntries(entries, this.vocabularySize).map(({ sequence, tokens, checkpoints }, place) => {
      const state = SequenceState.of(this.#shared, `entries[${place}].sequence`, sequence)
      state.reconcile()
      state.checkFree()
      if (state.pending + tokens.length === 0)
        throw invalid(`entries[${place}].tokens.length`, 0, 'at least 1: nothing is pending')
      checkContext(state.log.length + tokens.length, this.contextLength)
      checkPositions(`entries[${place}].checkpoints`, checkpoints, state.log.length + tokens.length)
      state.spans.check(`entries[${place}].tokens`, state.log.length, tokens)
      return { state, tokens, checkpoints }
    })
    const twice = read.findIndex(({ state }, place) => read.findIndex(other => other.state === state) < place)
    if (twice >= 0) throw invalid(`entries[${twice}].sequence`, read[twice]?.state.sequence, 'each sequence once')
    if (isAborted(signal)) throw abortedBy(signal)
    const tasks = read.map(({ state, ...given }) =>
      this.#scheduler.add(state, arrival => new RunTask(state, given, arrival, isLast)),
    )
    const end = (): void => {
      for (const task of tasks) task.end()
      this.#scheduler.wake()
    }
    signal?.addEventListener('abort', end, { once: true })
    const settled = await Promise.allSettled(
      tasks.map(({ done }) =>
        done.catch((error: unknown) => {
          end()
          throw error
        }),
      ),
    )
    signal?.removeEventListener('abort', end)
    const refused = settled.find(result => result.status === 'rejected')
    const logits = refused === undefined ? await Promise.allSettled(tasks.map(task => task.logits())) : []
    const failed = refused ?? logits.find(result => result.status === 'rejected') ?? (await this.#keep(tasks))
    for (const task of tasks) task.settle(failed === undefined)
    if (failed === undefined) return logits.map(result => (result as PromiseFulfilledResult<Float32Array>).value)
    throw refused !== undefined && isAborted(signal) ? abortedBy(signal) : failed.reason
  }

  /**
   * Runs a function between two steps, while nothing is computed: for calls on the cache that would otherwise throw `BUSY`. The next step waits for
   * it, so inside the function `generate`, `run` and `between` of this model throw `BUSY`, and so does `next()` of a generation without a computed token.
   * `return()` of a generation and `dispose()` take effect at once. Do not await the promise of an earlier `run` inside: it needs that step.
   */
  between<R>(call: () => R | Promise<R>): Promise<R> {
    OnnxModel.#check(this)
    if (typeof call !== 'function') throw invalid('call', call, 'a function')
    return this.#scheduler.between(call)
  }

  /**
   * Disposes of the model after the step that is being computed. Generations and calls of `run` are refused with `DISPOSED`, the offload queue is flushed for
   * at most ten seconds, and the memory is freed. A second call does nothing.
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

  /** As {@link dispose}, for `using`, which does not wait for the end. */
  [Symbol.dispose](): void {
    // Callers that await `dispose()` get the error.
    OnnxModel.prototype.dispose.call(this).catch(() => {})
  }

  static #checkThis(self: unknown): void {
    checkThis(self, value => #scheduler in value, 'an OnnxModel')
  }

  /** Commits the transactions that calls of `run` have opened on their callers' transactions, all or none. Returns the reason if that is impossible. */
  async #keep(tasks: readonly RunTask[]): Promise<{ readonly reason: unknown } | undefined> {
    while (tasks.some(task => task.isNested)) {
      try {
        await this.#scheduler.between(() => {
          for (const task of tasks) task.check()
          for (const task of tasks) task.keep()
        })
      } catch (reason) {
        if (!isKvTideError(reason) || reason.code !== 'BUSY') return { reason }
        await rest()
      }
    }
    return undefined
  }

  /** Refuses a `this` that is not an OnnxModel, or that was disposed of. */
  static #check(self: OnnxModel): void {
    OnnxModel.#checkThis(self)
    self.#scheduler.check()
  }

  /** Compiles a grammar for the vocabulary that was given, or for that of the tokenizer beside the model. */
  async #constrain({ grammar, vocabulary }: Constrained, stop: ReadonlySet<number>): Promise<Constraint> {
    const own = (): Promise<Vocabulary> => {
      this.#tokens ??= vocabularyBeside(this.path, this.vocabularySize)
      this.#tokens.catch(() => (this.#tokens = undefined))
      return this.#tokens
    }
    const tokens = vocabulary ?? (await own())
    return { grammar: await compile(tokens, grammar), ends: new Set([...stop, ...tokens.endOfSequence]) }
  }

  #kindOf(prompt: PromptOptions, spans: Spans, encoding: Encoding | undefined): SequenceKind {
    const named = encodedNames(prompt, encoding)
    return { prompt: named, vocabulary: this.vocabularySize, rope: this.#rope, spans, encoding }
  }

  #encodingOf(encoded: unknown): Encoding | undefined {
    return readEncoded(encoded, this.#encoded?.facts)
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
