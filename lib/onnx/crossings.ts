// The encodings of a backend. The cross cache decides which of them it keeps, under numbers. Attentions of `graph` and `parts` read the keys and values of each
// encoding; `plain` gets the states, and its graph computes these keys and values itself.
//
//     states of an encoder    ->  the graph that computes keys and values of them  ->  keys and values
//     keys and values of an encoder of onnxruntime-genai's builder                 ->  the same
import type { NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { invalid, KvTideError } from '../errors/errors.js'
import type { BackendForm, StepSequence } from './backend.js'
import type { CrossCache, StepEncodings } from './cross-cache.js'
import { EncoderHost } from './encoder-host.js'
import type { EncodedStates } from './encoding.js'
import { integersOf } from './runtime.js'
import type { SentTensor, SessionEncodings } from './sessions.js'

/** @internal The encoder of a model, and the cache of its encodings. */
export interface EncoderBeside {
  readonly cross: CrossCache
  readonly encoder: NativeOnnxGraph | undefined
}

/** @internal The encodings of a backend. */
export class Crossings {
  /** For each layer: the heads, the elements of keys, and those of values. */
  readonly sizes: Uint32Array
  readonly #cross: CrossCache
  readonly #encoder: EncoderHost | undefined
  readonly #crossing: EncoderHost | undefined
  /** The distance of the numbers of a mask that belong to neighbouring states; `undefined` if a decoder takes none. */
  readonly #maskStride: number | undefined
  /** True if the backend takes states as they are. */
  readonly #takesStates: boolean

  /** `rewritten` is the graph of `graph` and `parts`. */
  constructor({ cross, encoder }: EncoderBeside, form: BackendForm, rewritten?: NativeOnnxRewritten) {
    const layers = rewritten?.crossed() ?? []
    this.#takesStates = rewritten === undefined
    this.sizes = Uint32Array.from(
      layers.flatMap(({ numKvHeads, headDim, valueHeadDim }) => [numKvHeads, headDim, valueHeadDim]),
    )
    this.#cross = cross
    this.#encoder = encoder === undefined ? undefined : new EncoderHost(encoder, form)
    const crossing = rewritten?.crossing() ?? undefined
    this.#crossing = crossing === undefined ? undefined : new EncoderHost(crossing, form, true)
    this.#maskStride = rewritten?.maskStride() ?? undefined
  }

  /** The encodings of a step. */
  of(sequences: readonly StepSequence[]): StepEncodings {
    return this.#cross.of(sequences)
  }

  /** The numbers of encodings that are no longer needed. */
  forgotten(): number[] {
    return this.#cross.forgotten()
  }

  /** The encodings that a step adds, as the backend takes them: with their keys and values in place of states, except on `plain`. */
  async rowsOf({ added }: SessionEncodings): Promise<SessionEncodings['added']> {
    if (this.#takesStates) return added
    const all: SessionEncodings['added'][number][] = []
    for (const { number, states } of added) all.push({ number, states: await this.#rowsOf(states) })
    return all
  }

  /** Runs the encoder. */
  encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    return (this.#encoder as EncoderHost).encode(inputs)
  }

  async end(): Promise<void> {
    await this.#encoder?.end()
    await this.#crossing?.end()
  }

  /** The keys and values of states: layer by layer, keys before values, each `[heads, frames, elements]`. */
  async #rowsOf(states: EncodedStates): Promise<EncodedStates> {
    const mask = this.#maskOf(states)
    const crossing = this.#crossing
    if (crossing === undefined) return { ...states, mask }
    const { type, data, frames, width } = states
    const given = (name: string): SentTensor => {
      if (name === 'encoder_hidden_states') return { type, data, dims: [1, frames, width] }
      // No numbers of tokens make a difference.
      const numbers = name === 'encoder_attention_mask' ? (states.mask ?? new Uint8Array(frames).fill(1)) : [0]
      const kind = crossing.typeOf(name)
      return { type: kind, data: integersOf(kind, numbers), dims: [1, numbers.length] }
    }
    const rows = await crossing.encode(Object.fromEntries(crossing.inputs.map(name => [name, given(name)])))
    const [, found = 0, elements = 0] = rows.dims
    if (found !== frames) throw failed(`the keys and values of ${frames} states have ${found} rows`)
    return {
      type: rows.type as EncodedStates['type'],
      data: rows.data as EncodedStates['data'],
      frames,
      width: elements,
      mask,
    }
  }

  /** 1 for each state to attend to; `undefined` for all of them. */
  #maskOf({ frames, mask }: EncodedStates): Uint8Array | undefined {
    const stride = this.#maskStride
    if (stride === undefined || mask === undefined || !mask.includes(0)) return undefined
    const [least, most] = stride === 1 ? [frames, frames] : [(frames - 1) * stride + 1, Infinity]
    if (mask.length < least || mask.length > most)
      throw invalid(
        'encoded.mask.length',
        mask.length,
        `${most === least ? '' : 'at least '}${least}, for ${frames} states`,
      )
    const own = Uint8Array.from({ length: frames }, (_, frame) => mask[frame * stride] as number)
    if (!own.includes(1)) throw invalid('encoded.mask', mask, 'a 1 at one of the states')
    return own
  }
}

function failed(reason: string): KvTideError<'RUNTIME_FAILED'> {
  return new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason })
}
