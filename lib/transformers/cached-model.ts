// Models of transformers.js over a cache. Before a call, `load` copies the cached prefix of the prompt into the model's `DynamicCache`, so the model computes
// only the rest; afterwards `store` copies the new rows back. So each call costs two copies of keys and values. If a call fails, the sequence is unchanged.
import { createHash } from 'node:crypto'

import { count, fields, isObject, known, type Names, optional } from '../errors/check.js'
import { type ErrorCode, invalid, isKvTideError, KvTideError } from '../errors/errors.js'
import { checkInternal, checkThis, INTERNAL, liveArgument, nativeArgument, settle } from '../border/owner.js'
import type { HostTensor, OnnxTensor } from '../border/tensor.js'
import { CarriedPorts, isSlid, readSequence } from '../onnx/carried.js'
import { configSizes } from '../onnx/config.js'
import { checkContext } from '../onnx/context.js'
import { type OnnxCacheOptions, readCacheOptions, rotationOf } from '../onnx/options.js'
import { pastLayers } from '../onnx/past-layers.js'
import { type LayerPorts, OnnxPorts, type OnnxSession, readSession } from '../onnx/ports.js'
import { refusedPort } from '../onnx/refused-node.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import { promptOf, type PromptOptions, readPrompt } from '../sequences/prompt.js'
import { Sequence } from '../paged/sequence.js'
import type { SequenceHandle, SharedCache } from '../sequences/shared-cache.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { type GrammarOptions, grammarOf } from './grammar.js'
import {
  type DynamicCache,
  packageOf,
  type TransformersModel,
  type TransformersPackage,
  type TransformersTensor,
} from './package.js'
import { checkEach, ELEMENTS_MAX, idsOf, isTensor, type LayerSizes, pastIn, rowsOf, tensorIn } from './tensors.js'

/** Options of {@link CachedModel.of}. */
export interface CachedModelOptions {
  /** A cache of your own, with the model's layers in its dtype, or options for a new one. By default it has 1 GiB for at most 32 sequences at once. */
  readonly cache?: PagedKvCache | OnnxCacheOptions
}

/** Options of {@link CachedModel.generate} besides those of the model's own `generate`. */
export interface CachedGenerateOptions extends PromptOptions, GrammarOptions {
  /** The sequence of a chat. Tokens of `input_ids` that it has are not computed again, and afterwards it has all computed tokens. */
  readonly sequence?: Sequence
}

/** The options of a model's `generate`. */
type ParametersOf<M extends TransformersModel> = Parameters<M['generate']>[0]

const OPTIONS: Names<CachedModelOptions> = { cache: 0 }
const MEMORY_BYTES = 2 ** 30
const SEQUENCES = 32
/** Errors after which the computed tokens are not cached, but the answer is returned. */
const NO_ROOM: ReadonlySet<ErrorCode> = new Set(['OUT_OF_BLOCKS', 'OUT_OF_MEMORY', 'BUSY'])
const TYPES: Readonly<Record<string, 'f32' | 'f16'>> = { float32: 'f32', float16: 'f16' }

/** @internal The fields of a cached model. */
interface Made<M> {
  readonly model: M
  /** The model's `generate` before it got a cache. Later it may be replaced by that of the cached model. */
  readonly generate: TransformersModel['generate']
  readonly classes: TransformersPackage
  readonly ports: CarriedPorts<OnnxTensor>
  readonly cache: PagedKvCache
  readonly isOwn: boolean
  /** The maximum number of tokens that the model sees at once, if its config says so. */
  readonly contextLength: number | undefined
}

/**
 * A text model of transformers.js whose keys and values are kept in a {@link PagedKvCache}: a prefix that several prompts share is computed once, and
 * after an edit of a chat's history only the tokens behind the first change are computed again.
 *
 * @example
 * ```ts
 * // import { AutoModelForCausalLM, AutoTokenizer } from '@huggingface/transformers'
 * // import { CachedModel } from 'kvtide/transformers'
 * //
 * // const tokenizer = await AutoTokenizer.from_pretrained(name)
 * // const model = await AutoModelForCausalLM.from_pretrained(name, { dtype: 'q4' })
 * // using cached = await CachedModel.of(model)
 * // const inputs = tokenizer.apply_chat_template(messages, { add_generation_prompt: true, return_dict: true })
 * // const output = await cached.generate({ ...inputs, max_new_tokens: 200 }) // only new tokens are computed
 * ```
 */
export class CachedModel<M extends TransformersModel = TransformersModel> implements Disposable, AsyncDisposable {
  /** The model itself. */
  declare readonly model: M
  /** The model's cache: sequences, prompts, statistics. */
  declare readonly cache: PagedKvCache
  readonly #made: Made<M>
  /** The number of heads of each layer, and the elements of its keys and values. */
  readonly #sizes: readonly LayerSizes[]
  #ended = false

  /** @internal */
  constructor(token: unknown, made: unknown) {
    checkInternal(token, 'CachedModel', 'CachedModel.of(model) instead')
    this.#made = made as Made<M>
    const { model, cache } = this.#made
    settle<CachedModel<M>, 'model' | 'cache'>(this, { model, cache })
    const sizes = cache.groups.flatMap(({ layers, numKvHeads: heads, headDim, valueHeadDim }) =>
      layers.map(layer => ({ layer, heads, dims: [headDim, valueHeadDim] as const })),
    )
    this.#sizes = sizes.toSorted((one, other) => one.layer - other.layer)
  }

  /**
   * Gives a model a cache.
   *
   * @throws KvTideError `UNSUPPORTED_GRAPH` if its decoder has unknown inputs, or states other than keys and values; `RUNTIME_UNAVAILABLE` if transformers.js
   * cannot be loaded
   */
  static async of<M extends TransformersModel>(model: M, options: CachedModelOptions = {}): Promise<CachedModel<M>> {
    const { cache: given } = known<CachedModelOptions>('options', options, OPTIONS)
    const classes = await packageOf(model)
    const { generate } = model
    const session = sessionOf(model)
    const ports = new OnnxPorts(session)
    const slid = ports.layers.flat().find(isSlid)
    if (slid !== undefined)
      throw refusedPort(
        slid.past,
        'input',
        'the graph slides it by itself, and transformers.js takes its rows for all tokens',
      )
    const isOwn = !isObject(given) || !(given instanceof PagedKvCache)
    const cache = isOwn ? cacheOf(model, ports, given) : liveCache(given)
    try {
      const carried = new CarriedPorts<OnnxTensor>(session, ports, cache, classes.Tensor as never)
      const { contextLength } = configSizes(JSON.stringify(model.config ?? {}))
      const made = { model, generate, classes, ports: carried, cache, isOwn, contextLength } satisfies Made<M>
      return new CachedModel<M>(INTERNAL, made)
    } catch (error) {
      if (isOwn) cache.dispose()
      throw error
    }
  }

  /**
   * Calls the model's own `generate`, but computes only those of `input_ids` that are not cached: in the sequence if one is given, otherwise in any prompt
   * with the same salt and extras. Afterwards all tokens are cached except the last one, which the model has not seen. After an edit of the history, only
   * tokens behind the first change are computed again. If the call fails, the sequence is unchanged. If the cache has no room, the sequence is unchanged too,
   * but the answer is returned.
   *
   * It calls the `generate` that the model had when it got its cache, so you can replace it with this one. In a pipeline:
   * `generator.model.generate = options => cached.generate(options)`.
   *
   * @param options the options of the model's `generate`, with one row of `input_ids`; and `grammar`, and `sequence`, or `salt`, `saltFrom` and `extra`
   * @throws KvTideError `CONTEXT_OVERFLOW` if the prompt is longer than the context of the model's config, `INVALID_GRAMMAR`; nothing is computed
   * then
   */
  async generate(
    options: Omit<ParametersOf<M>, keyof CachedGenerateOptions> & CachedGenerateOptions,
  ): Promise<Awaited<ReturnType<M['generate']>>> {
    CachedModel.#check(this)
    const { model, generate, cache, contextLength } = this.#made
    const { sequence, salt, saltFrom, extra, grammar, vocabulary, ...given } = fields<Record<string, unknown>>(
      'options',
      options,
    ) as Record<string, unknown>
    const ids = readInputs(given)
    checkContext(ids.length, contextLength)
    const prompt = promptOf({ salt, saltFrom, extra })
    if (sequence !== undefined) checkSequence(cache, sequence)
    if (sequence !== undefined && Object.keys(prompt).length > 0)
      throw invalid('sequence', sequence, 'no sequence together with salt, saltFrom or extra: a sequence has its own')
    // Changes nothing, but throws if a transaction is open: now rather than after the answer was computed.
    if (sequence !== undefined) (sequence as Sequence).truncate((sequence as Sequence).length)
    using constraint = await grammarOf({ grammar, vocabulary }, given, model, ids.length)
    await bringBack(cache, ids, sequence === undefined ? prompt : undefined)
    // Works on a fork, so that the sequence itself is unchanged until the call has succeeded.
    using own = sequence === undefined ? startOf(cache, ids, prompt) : (sequence as Sequence).fork()
    own.resume(ids)
    const past = this.load(own)
    underway.add(past)
    const inputs = { input_ids: this.#int64(ids), attention_mask: this.mask(ids.length), past_key_values: past }
    const call = { ...given, ...constraint?.hooks, ...inputs }
    const answer = await Reflect.apply(generate, model, [call as never])
    const sequences = tensorIn(
      'sequences',
      isTensor(answer) ? answer : (answer as { readonly sequences: unknown }).sequences,
    )
    try {
      this.store(sequence === undefined ? own : (sequence as Sequence), past, idsOf('sequences', sequences))
    } catch (error) {
      // The answer is complete, and is returned even if there is no room to cache its tokens.
      if (!isKvTideError(error) || !NO_ROOM.has(error.code)) throw error
    }
    return answer as Awaited<ReturnType<M['generate']>>
  }

  /** Returns the content of a sequence as the `past_key_values` of a model call; `generate` and `forward` also need the {@link mask}. Costs one copy. */
  load(sequence: Sequence): DynamicCache {
    CachedModel.#check(this)
    const { cache, classes, ports } = this.#made
    checkSequence(cache, sequence)
    const { length } = sequence
    // transformers.js can make empty pasts itself, but takes sizes that a graph does not declare as 0. Only a merged decoder has a separate branch for empty pasts.
    if (length === 0 && ports.ports.has('use_cache_branch')) return new classes.DynamicCache()
    const { feeds } = ports.call(readSequence(cache, sequence), length, undefined, new Uint32Array(0))
    const pasts = ports.ports.layers.flat().map(({ past }) => [past, feeds[past] as TransformersTensor] as const)
    return new classes.DynamicCache(Object.fromEntries(pasts))
  }

  /**
   * Returns the `attention_mask` of a call over a past: ones for all tokens, those of the past and those that the call computes. Without it, transformers.js
   * appends the whole prompt to the past, even if the prompt already begins with it.
   */
  mask(length: number): TransformersTensor {
    CachedModel.#check(this)
    const tokens = count('length', length, 0, ELEMENTS_MAX)
    return new this.#made.classes.Tensor('int64', new BigInt64Array(tokens).fill(1n), [1, tokens])
  }

  /**
   * Stores the content of a `DynamicCache` in a sequence. Tokens that both have from the start on stay; the rest of the sequence is replaced.
   *
   * @param tokens the ids of all its tokens. The result of `generate` has one more, which may be included
   * @throws KvTideError `SHAPE_MISMATCH`, `DTYPE_MISMATCH` or `INVALID_ARGUMENT` for a cache of another model or of several rows; `OUT_OF_BLOCKS`. The
   * sequence is then unchanged
   */
  store(sequence: Sequence, past: DynamicCache, tokens: TokenIds): void {
    CachedModel.#check(this)
    const { cache, ports } = this.#made
    checkSequence(cache, sequence)
    const ids = readTokens('tokens', tokens)
    const held = pastIn(past)
    const rows = rowsOf(held, ports.ports, this.#sizes)
    if (ids.length < rows)
      throw invalid('tokens.length', ids.length, `at least ${rows}: the ids of all tokens in the cache`)
    using before = sequence.snapshot()
    // `resume` always drops the last id, so one more id than rows is given to keep the last row.
    const kept = sequence.resume(Uint32Array.from({ length: rows + 1 }, (_, place) => ids[place] ?? 0))
    if (kept === rows) return
    const rest = (side: 0 | 1, pair: LayerPorts): HostTensor => ({
      data: held[pair[side].past] as OnnxTensor,
      range: [kept, rows],
    })
    try {
      sequence.append({
        layers: ports.ports.layers.map(pair => ({ k: rest(0, pair), v: rest(1, pair) })),
        tokens: ids.slice(kept, rows),
      })
    } catch (error) {
      sequence.restore(before)
      throw error
    }
  }

  /** Disposes of this object, and of its cache unless you passed one. The model stays usable. A second call does nothing. */
  dispose(): void {
    CachedModel.#checkThis(this)
    this.#ended = true
    if (this.#made.isOwn) this.cache.dispose()
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    CachedModel.prototype.dispose.call(this)
  }

  /** As {@link dispose}, for `await using`. Waits until the offload queue of its own cache is empty. */
  async [Symbol.asyncDispose](): Promise<void> {
    CachedModel.#checkThis(this)
    this.#ended = true
    if (this.#made.isOwn) await this.cache[Symbol.asyncDispose]()
  }

  #int64(ids: Uint32Array): TransformersTensor {
    return new this.#made.classes.Tensor('int64', BigInt64Array.from(ids, BigInt), [1, ids.length])
  }

  static #checkThis(self: unknown): void {
    checkThis(self, value => #made in value, 'a CachedModel')
  }

  /** Refuses a `this` that is not a CachedModel, or that was disposed of. */
  static #check<T extends TransformersModel>(self: CachedModel<T>): void {
    CachedModel.#checkThis(self)
    if (self.#ended) throw new KvTideError('DISPOSED', 'the CachedModel was disposed of', { object: 'CachedModel' })
  }
}

/** The pasts with which cached models have called `generate`. If a call gets one of them, `generate` has called itself. */
const underway = new WeakSet<object>()

/** The session of a model's decoder. Refused if it has states other than keys and values. */
function sessionOf(model: TransformersModel): OnnxSession {
  const session = readSession(
    'model.sessions.model',
    fields<Record<string, unknown>>('model.sessions', model.sessions)['model'],
  )
  const state = session.outputNames.find(name => /^present_(?!key|value)/.test(name) || name.includes('encoder'))
  if (state !== undefined)
    throw refusedPort(state, 'output', 'it is a state, not keys and values, and cannot be cut at a token')
  return session
}

/** A cache for the model's layers. */
function cacheOf(model: TransformersModel, ports: OnnxPorts, given: unknown): PagedKvCache {
  const options = optional(readCacheOptions, 'cache', given) ?? {}
  const type = ports.layers[0]?.[0].input.type ?? 'float32'
  const dtype = TYPES[type]
  if (dtype === undefined)
    throw refusedPort(
      ports.layers[0]?.[0].past ?? '',
      'input',
      `its type is ${type}, which arrays of JavaScript do not hold`,
    )
  const config = JSON.stringify(model.config)
  const layers = pastLayers(ports, configSizes(config))
  const namespace = createHash('sha256').update(config).digest('hex')
  const room = options.capacity === undefined ? { memoryBytes: MEMORY_BYTES, maxSequences: SEQUENCES } : {}
  return new PagedKvCache({
    namespace,
    ...room,
    ...options,
    ...rotationOf(options),
    model: { layers },
    dtype,
  } as ModelCacheOptions)
}

function liveCache(cache: unknown): PagedKvCache {
  liveArgument('cache', cache, PagedKvCache)
  return cache as PagedKvCache
}

function checkSequence(cache: PagedKvCache, sequence: unknown): void {
  const { shared } = liveArgument<SequenceHandle>('sequence', sequence, Sequence)
  if (shared !== nativeArgument<SharedCache>('cache', cache, PagedKvCache))
    throw invalid('sequence', sequence, "a sequence of this model's cache")
}

/** Restores cached blocks of a prompt from tiers, until the deadline. */
async function bringBack(cache: PagedKvCache, ids: Uint32Array, prompt: PromptOptions | undefined): Promise<void> {
  const { tiers } = liveArgument<SharedCache>('cache', cache, PagedKvCache)
  if (prompt !== undefined) await tiers?.restore(ids, readPrompt(prompt), undefined, { tiers: 'all' })
}

/** Opens a new sequence with the cached prefix of a prompt. */
function startOf(cache: PagedKvCache, ids: Uint32Array, prompt: PromptOptions): Sequence {
  const prefix = cache.match(ids, prompt)
  if (prefix.length > 0) return cache.openSequence({ prefix })
  prefix.dispose()
  return cache.openSequence(prompt)
}

/** Removes the inputs of the prompt from the options, checks them, and returns the ids. */
function readInputs(given: Record<string, unknown>): Uint32Array {
  const { inputs, input_ids, attention_mask, past_key_values, position_ids } = given
  for (const name of ['inputs', 'input_ids', 'attention_mask', 'past_key_values', 'position_ids']) delete given[name]
  if (typeof past_key_values === 'object' && past_key_values !== null && underway.has(past_key_values)) {
    throw invalid(
      'model.generate',
      'a function that calls generate of a CachedModel',
      "the model's own: make one CachedModel of a model, before its generate is replaced",
    )
  }
  if (past_key_values !== undefined && past_key_values !== null)
    throw invalid('past_key_values', past_key_values, 'undefined: load(sequence) is for calls of the model itself')
  const ids = idsOf('input_ids', tensorIn('input_ids', input_ids ?? inputs))
  if (ids.length === 0) throw invalid('input_ids.dims', [1, 0], 'at least one token')
  checkEach('attention_mask', attention_mask, ids.length, () => 1, 'a cache cannot contain padding')
  checkEach('position_ids', position_ids, ids.length, place => place, 'positions in a cache begin at 0')
  return ids
}
