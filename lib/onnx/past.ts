import { invalid, isKvTideError, KvTideError } from '../border/errors.js'
import { fields, known, type Names, optional } from '../border/check.js'
import { checkInternal, checkThis, INTERNAL, liveArgument } from '../border/owner.js'
import type { OnnxTensor } from '../border/tensor.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import { PROMPT, promptOf, type PromptOptions } from '../sequences/prompt.js'
import type { Sequence } from '../sequences/sequence.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { type Carried, type CarriedCall, CarriedPorts, type OnnxTensorClass, readSequence } from './carried.js'
import { type OnnxNames, OnnxPorts, type OnnxSession, readNames, readSession } from './ports.js'

const OPTIONS: Names<OnnxPastOptions> = { ...PROMPT, session: 0, cache: 0, Tensor: 0, names: 0 }

/** What an {@link OnnxPast} is made of. */
export interface OnnxPastOptions<T extends OnnxTensor = OnnxTensor> extends PromptOptions {
  /** A session of onnxruntime-node, of a decoder whose pasts are inputs. */
  readonly session: OnnxSession
  /** A cache with the session's layers, in its dtype. Layers with a window need a graph that has that window as well. */
  readonly cache: PagedKvCache
  /** `Tensor` of onnxruntime-node. */
  readonly Tensor: OnnxTensorClass<T>
  /** How pasts and presents are called, unless as exporters usually call them. */
  readonly names?: OnnxNames
}

/** What to run, and for which tokens. */
export interface OnnxResumed<T extends OnnxTensor = OnnxTensor> {
  /** All inputs of the session. */
  readonly feeds: Record<string, T>
  /** The tokens to compute, which the feeds have: the last ones of those that were given. */
  readonly tokens: Uint32Array
}

/**
 * The past of one sequence, for a session that you made yourself. Prompts start with what the cache has of them; a list of tokens that was cut
 * or changed goes on from where it is still the same. Presents are the next pasts as they are; rows are read back from the cache only where there are none.
 *
 * @example
 * ```ts
 * // as in a chat that goes on: the list only grows
 * // const past = new OnnxPast({ session, cache, Tensor: ort.Tensor })
 * // for (const tokens = [...prompt]; tokens.length < 100; ) {
 * //   const { feeds } = past.resume(tokens)
 * //   const outputs = await session.run(feeds)
 * //   past.commit(outputs)
 * //   tokens.push(argmaxOfLastRow(outputs.logits))
 * // }
 * ```
 */
export class OnnxPast<T extends OnnxTensor = OnnxTensor> {
  readonly #ports: CarriedPorts<T>
  readonly #cache: PagedKvCache
  readonly #prompt: PromptOptions
  #sequence: Sequence | undefined
  #ids = new Uint32Array(0)
  #carried: Carried<T> | undefined
  #open: { readonly call: CarriedCall<T>; readonly ids: Uint32Array } | undefined
  #ended = false

  constructor(options: OnnxPastOptions<T>)
  /** @internal */
  constructor(token: unknown, from: OnnxPast<T>)
  constructor(options: unknown, from?: OnnxPast<T>) {
    if (from !== undefined) {
      checkInternal(options, 'OnnxPast', 'new OnnxPast(options) instead')
      this.#ports = from.#ports
      this.#cache = from.#cache
      this.#prompt = from.#prompt
      this.#sequence = from.#sequence?.fork()
      this.#ids = from.#ids
      this.#carried = from.#carried
      return
    }
    const { session, cache, Tensor, names, salt, saltFrom, extra } = known<OnnxPastOptions>('options', options, OPTIONS)
    const made = readSession('session', session)
    liveArgument('cache', cache, PagedKvCache)
    const pages = cache as PagedKvCache
    if (typeof Tensor !== 'function') throw invalid('Tensor', Tensor, 'the Tensor of onnxruntime-node')
    const ports = new OnnxPorts(made, optional(readNames, 'names', names))
    this.#ports = new CarriedPorts<T>(made, ports, pages, Tensor as OnnxTensorClass<T>)
    this.#cache = pages
    this.#prompt = promptOf({ salt, saltFrom, extra })
  }

  /** The tokens whose keys and values are in the cache. */
  get length(): number {
    OnnxPast.#check(this)
    return this.#ids.length
  }

  /**
   * What to run so that the session has seen all of `tokens`: those from the start of the sequence on. What is the same as before, or is found
   * in the cache, is not computed again; the last token always is, since its logits are needed. What the sequence has
   * beyond that is dropped.
   *
   * For a long prompt in pieces, give ever longer starts of it.
   */
  resume(tokens: TokenIds): OnnxResumed<T> {
    OnnxPast.#check(this)
    const ids = readTokens('tokens', tokens)
    if (ids.length === 0) throw invalid('tokens.length', 0, 'at least 1')
    this.#open = undefined
    const length = this.#settle(ids)
    const rest = ids.slice(length)
    const call = this.#ports.call(readSequence(this.#cache, this.#sequence), length, this.#carried, rest)
    this.#open = { call, ids }
    return { feeds: { ...call.feeds }, tokens: rest }
  }

  /**
   * Puts what the session answered into the cache.
   *
   * @param outputs what `session.run(feeds)` gave
   * @param tokens those that count, where it is not all that were computed: a start of them
   * @throws KvTideError `OUT_OF_BLOCKS`; the sequence is as it was then, and `commit` may be called again
   */
  commit(outputs: Readonly<Record<string, T>>, tokens?: TokenIds): void {
    OnnxPast.#check(this)
    if (this.#open === undefined) throw invalid('outputs', outputs, 'those of a call that resume(tokens) has prepared')
    const { call, ids } = this.#open
    const computed = ids.subarray(call.length)
    const taken = optional(readTokens, 'tokens', tokens) ?? computed
    const given = fields<Record<string, T>>('outputs', outputs) as Record<string, T>
    if (taken.length > computed.length || taken.some((id, place) => id !== computed[place])) {
      throw invalid('tokens', tokens, 'the start of the tokens that were computed')
    }
    const sequence = this.#own(call.length)
    const layers = this.#ports.newRows(given, call, taken.length)
    if (taken.length > 0) sequence.append({ layers, tokens: taken })
    this.#ids = ids.slice(0, call.length + taken.length)
    this.#carried = taken.length === call.count ? this.#ports.carry(given, call) : this.#carried
    this.#open = undefined
  }

  /** Another past with the same tokens. They share blocks and presents; nothing is copied. */
  fork(): OnnxPast<T> {
    OnnxPast.#check(this)
    return new OnnxPast<T>(INTERNAL, this)
  }

  /** Ends it, and gives its blocks back; prompts still find them. A second time does nothing. */
  dispose(): void {
    OnnxPast.#checkThis(this)
    this.#ended = true
    this.#sequence?.dispose()
    this.#sequence = undefined
    this.#carried = undefined
    this.#open = undefined
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    OnnxPast.prototype.dispose.call(this)
  }

  static #checkThis(self: unknown): void {
    checkThis(self, value => #ports in value, 'an OnnxPast')
  }

  /** Refuses a `this` that is none, or that was disposed of. */
  static #check<U extends OnnxTensor>(self: OnnxPast<U>): void {
    OnnxPast.#checkThis(self)
    if (self.#ended) throw new KvTideError('DISPOSED', 'the OnnxPast was disposed of', { object: 'OnnxPast' })
  }

  /** The sequence, which nobody else may have changed. */
  #own(length: number): Sequence {
    this.#sequence ??= this.#cache.openSequence(this.#prompt)
    if (this.#sequence.length !== length) throw invalid('sequence.length', this.#sequence.length, `${length}: only this object may change its sequence`)
    return this.#sequence
  }

  /** Keeps what the sequence has of a list of tokens, or takes over what the cache has, and says how many tokens that are. */
  #settle(ids: Uint32Array): number {
    const own = this.#ids
    const most = Math.min(own.length, ids.length - 1)
    let same = 0
    while (same < most && own[same] === ids[same]) same += 1
    const sequence = this.#own(own.length)
    // One token more than before is the usual step, for which no prompt has to be looked up.
    if (ids.length - 1 > same) {
      const prefix = this.#cache.match(ids, this.#prompt)
      if (prefix.length > same) return this.#start(ids, this.#cache.openSequence({ prefix }), prefix.length)
      prefix.dispose()
    }
    if (same === own.length) return same
    try {
      sequence.truncate(same)
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
      // A window has dropped what would be seen again: it is computed anew.
      return this.#start(ids, this.#cache.openSequence(this.#prompt), 0)
    }
    this.#ids = own.slice(0, same)
    return same
  }

  #start(ids: Uint32Array, sequence: Sequence, length: number): number {
    this.#sequence?.dispose()
    this.#sequence = sequence
    this.#ids = ids.slice(0, length)
    this.#carried = undefined
    return length
  }
}

