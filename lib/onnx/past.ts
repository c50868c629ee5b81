// `OnnxPast`: the past of one sequence, for a session that the caller made. It prepares the feeds of a call and takes new rows from its outputs. The cache is
// read only if there are no presents to pass on.
import { invalid, isKvTideError, KvTideError } from '../errors/errors.js'
import { fields, known, type Names, optional } from '../errors/check.js'
import { checkInternal, checkThis, INTERNAL, liveArgument } from '../border/owner.js'
import type { KvSource, OnnxTensor } from '../border/tensor.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import { PROMPT, promptOf, type PromptOptions } from '../sequences/prompt.js'
import type { Sequence } from '../paged/sequence.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { type Carried, type CarriedCall, CarriedPorts, type OnnxTensorClass, readSequence } from './carried.js'
import { type OnnxNames, OnnxPorts, type OnnxSession, readNames, readSession } from './ports.js'
import { refusedPort } from './refused-node.js'
import { stateBelow } from './sequence-state.js'
import { isSameIds } from './token-log.js'

const OPTIONS: Names<OnnxPastOptions> = { ...PROMPT, session: 0, cache: 0, Tensor: 0, names: 0 }

/** Options of an {@link OnnxPast}. */
export interface OnnxPastOptions<T extends OnnxTensor = OnnxTensor> extends PromptOptions {
  /** A session of onnxruntime-node, of a decoder whose pasts are inputs. */
  readonly session: OnnxSession
  /** A cache with the session's layers, in its dtype. Layers with a window need a graph with the same window. */
  readonly cache: PagedKvCache
  /** `Tensor` of onnxruntime-node. */
  readonly Tensor: OnnxTensorClass<T>
  /** The names of pasts and presents, if they differ from those that exporters usually use. */
  readonly names?: OnnxNames
}

/** The inputs of the next call, and the tokens that it computes. */
export interface OnnxResumed<T extends OnnxTensor = OnnxTensor> {
  /** All inputs of the session. */
  readonly feeds: Record<string, T>
  /** The tokens to compute, which are in the feeds: the last of the given tokens. */
  readonly tokens: Uint32Array
}

/**
 * The past of one sequence, for a session that you made yourself. Cached prefixes of prompts are reused, and after a list of tokens was cut or
 * changed, only tokens behind the first change are computed again. Presents become the next pasts without a copy; rows are read from the cache only if
 * there are no presents.
 *
 * @example
 * ```ts
 * // a chat that continues: the list only grows
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
  /** Presents, and the ids of their tokens. */
  #carried: { readonly ids: Uint32Array; readonly presents: Carried<T> } | undefined
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
    if (ports.cross.length > 0)
      throw refusedPort(
        'encoder_hidden_states',
        'input',
        'a decoder with an encoder runs as an OnnxModel only',
        'encoder',
      )
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
   * Prepares a call after which the session has seen all of `tokens`, which begin at the start of the sequence. Tokens that are the same as before, or
   * that are cached, are not computed again; the last token always is, since its logits are needed. Tokens of the sequence behind the first
   * difference are dropped.
   *
   * To compute a long prompt in pieces, pass longer and longer prefixes of it.
   */
  resume(tokens: TokenIds): OnnxResumed<T> {
    OnnxPast.#check(this)
    // A copy: it must still be the same at the commit, even if the caller changes the array.
    const ids = readTokens('tokens', tokens).slice()
    if (ids.length === 0) throw invalid('tokens.length', 0, 'at least 1')
    this.#open = undefined
    const length = this.#settle(ids)
    const rest = ids.slice(length)
    const carried =
      this.#carried !== undefined && isSameIds(this.#carried.ids, this.#ids) ? this.#carried.presents : undefined
    const call = this.#ports.call(readSequence(this.#cache, this.#sequence), length, carried, rest)
    this.#open = { call, ids }
    return { feeds: { ...call.feeds }, tokens: rest }
  }

  /**
   * Stores the outputs of a call in the cache.
   *
   * @param outputs the result of `session.run(feeds)`
   * @param tokens the tokens to keep, a prefix of those that were computed; all by default. The caller decides which drafted tokens to keep, from the rows of
   * logits that the graph returns; a pruned head returns only that of the last token. If layers keep states, there is no state between two tokens of a call:
   * then either all tokens are kept or none, and the next `resume` computes the tokens behind `length`
   * @throws KvTideError `OUT_OF_BLOCKS`; the sequence is then unchanged, and `commit` may be called again
   */
  commit(outputs: Readonly<Record<string, T>>, tokens?: TokenIds): void {
    OnnxPast.#check(this)
    if (this.#open === undefined)
      throw invalid('outputs', outputs, 'the outputs of a call that resume(tokens) prepared')
    const { call, ids } = this.#open
    const computed = ids.subarray(call.length)
    const taken = optional(readTokens, 'tokens', tokens) ?? computed
    const given = fields<Record<string, T>>('outputs', outputs) as Record<string, T>
    if (taken.length > computed.length || taken.some((id, place) => id !== computed[place])) {
      throw invalid('tokens', tokens, 'a prefix of the computed tokens')
    }
    const sequence = this.#own(call.length)
    const layers = this.#ports.newRows(given, call, taken.length)
    const presents = taken.length === call.count ? this.#ports.carry(given, call) : undefined
    if (this.#ports.hasStates) {
      if (presents !== undefined) this.#appendStates(sequence, layers, taken, this.#ports.slot(presents))
    } else if (taken.length > 0) sequence.append({ layers, tokens: taken })
    if (presents !== undefined || !this.#ports.hasStates) this.#ids = ids.slice(0, call.length + taken.length)
    if (presents !== undefined) this.#carried = { ids: this.#ids, presents }
    this.#open = undefined
  }

  /** Appends tokens with the states after them. */
  #appendStates(sequence: Sequence, layers: readonly KvSource[], tokens: Uint32Array, states: Uint8Array): void {
    using step = this.#cache.beginStep({ sequences: [sequence], offsets: [0, tokens.length], tokens })
    const numbers = this.#ports.layers
    for (const [place, { k, v }] of layers.entries()) step.write(numbers[place] as number, k, v)
    step.writeStates(0, states)
    step.commit()
  }

  /** Returns another past with the same tokens. Both share blocks and presents; nothing is copied. */
  fork(): OnnxPast<T> {
    OnnxPast.#check(this)
    return new OnnxPast<T>(INTERNAL, this)
  }

  /** Disposes of the past and releases its blocks, which stay in the prefix cache. A second call does nothing. */
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

  /** Refuses a `this` that is not an OnnxPast, or that was disposed of. */
  static #check<U extends OnnxTensor>(self: OnnxPast<U>): void {
    OnnxPast.#checkThis(self)
    if (self.#ended) throw new KvTideError('DISPOSED', 'the OnnxPast was disposed of', { object: 'OnnxPast' })
  }

  /** The sequence. Refused if other code has changed it. */
  #own(length: number): Sequence {
    this.#sequence ??= this.#cache.openSequence(this.#prompt)
    if (this.#sequence.length !== length)
      throw invalid('sequence.length', this.#sequence.length, `${length}: only this object may change its sequence`)
    return this.#sequence
  }

  /** Keeps the longest prefix of `ids` that the sequence or the cache has, and returns its length. */
  #settle(ids: Uint32Array): number {
    const own = this.#ids
    const most = Math.min(own.length, ids.length - 1)
    let same = 0
    while (same < most && own[same] === ids[same]) same += 1
    const sequence = this.#own(own.length)
    // Usually there is one token more than before, and then no prompt is looked up.
    if (ids.length - 1 > same) {
      const prefix = this.#cache.match(ids, this.#prompt)
      if (prefix.length > same) return this.#start(ids, this.#cache.openSequence({ prefix }), prefix.length)
      prefix.dispose()
    }
    if (same === own.length) return same
    let length = same
    try {
      sequence.truncate(same)
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
      const below = stateBelow(error)
      // A window has dropped tokens that would become visible again, so they are all computed again.
      if (below === undefined) return this.#start(ids, this.#cache.openSequence(this.#prompt), 0)
      const prefix = this.#cache.match(ids, this.#prompt)
      if (prefix.length > below) return this.#start(ids, this.#cache.openSequence({ prefix }), prefix.length)
      prefix.dispose()
      sequence.truncate(below)
      length = below
    }
    this.#ids = own.slice(0, length)
    return length
  }

  #start(ids: Uint32Array, sequence: Sequence, length: number): number {
    this.#sequence?.dispose()
    this.#sequence = sequence
    this.#ids = ids.slice(0, length)
    this.#carried = undefined
    return length
  }
}
