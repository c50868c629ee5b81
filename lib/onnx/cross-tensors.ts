// The cross cache on the session thread: for each encoding its states, its mask, and the keys and values that the decoder computes of them, in the tensors that
// the runtime returned. Each call is given these same tensors, so nothing of them is copied.
//
//     use_cache_branch   false: computes the cross cache, without a past   |   true: takes the cross cache; its outputs for it are empty
//
// A decoder of onnxruntime-genai's builder has no branches: its encoder gives the keys and values, which are the states of an encoding.
//
// Many exporters trace the second branch with a single token, and lose the causal mask there. `isWide` tells if it computes several tokens in one call: they are
// compared with those of the first branch when the model is loaded. A graph that fails there with the calls of any generation is refused.
import { KvTideError } from '../errors/errors.js'
import type { TensorData } from '../border/host-array.js'
import { binding } from '../loading/binding.js'
import type { Carried } from './carried.js'
import type { EncodedStates } from './encoding.js'
import type { CrossPort, OnnxInputName, OnnxPorts } from './ports.js'
import { elementsOf, integersOf, type OnnxRuntimeModule, type RuntimeTensor } from './runtime.js'
import type { SessionEncodings } from './sessions.js'

type Feeds = Readonly<Record<string, RuntimeTensor>>

/** One encoding. */
interface Crossed {
  readonly inputs: Feeds
  /** Its keys and values as pasts, once they are computed. */
  pasts: Feeds | undefined
}

/** The tokens of the comparison: all together, and the last of them behind a past of the others. */
const PROBE = { ids: Uint32Array.of(1, 2, 3, 4, 5, 6), frames: 4, past: 3 }
/** The largest difference of logits, as a part of the largest logit, of two ways to compute the same. */
const NEAR = 1e-4

/** @internal Runs the graph for tokens behind those of `before`, with other inputs and outputs besides. */
export type ProbeRun = (
  ids: Uint32Array,
  before: Carried<RuntimeTensor> | undefined,
  others: Feeds,
  fetches: readonly string[],
) => Promise<{ readonly outputs: Feeds; readonly carried: Carried<RuntimeTensor> }>

/** @internal The encodings of a model. */
export class CrossTensors {
  /** True if the graph computes several tokens in one call of its second branch. */
  isWide = false
  readonly #ports: OnnxPorts
  readonly #Tensor: OnnxRuntimeModule['Tensor']
  readonly #none: Feeds
  readonly #held = new Map<number, Crossed>()
  /** The outputs with keys and values of an encoding. */
  readonly fetches: readonly string[]

  /** `own` are pasts without rows of the sequence itself, whose heads count if the graph does not declare those of an encoding. */
  constructor(ports: OnnxPorts, tensor: OnnxRuntimeModule['Tensor'], own: Feeds) {
    this.#ports = ports
    this.#Tensor = tensor
    const pasts = ports.layers.flat().map(({ past }) => own[past] as RuntimeTensor)
    this.#none = Object.fromEntries(
      ports.cross.map(({ past, input: { shape } }, place) => {
        const { type, dims, data } = pasts[place] as RuntimeTensor
        const size = (axis: 1 | 3): number => (typeof shape?.[axis] === 'number' ? shape[axis] : (dims[axis] as number))
        return [past, new tensor(type, data, [1, size(1), 0, size(3)])]
      }),
    )
    this.fetches = ports.isCrossGiven ? [] : ports.cross.map(({ present }) => present)
  }

  /** Takes over the encodings of a step. */
  take({ added, forget }: SessionEncodings): void {
    for (const number of forget) this.#held.delete(number)
    for (const { number, states } of added) this.#held.set(number, this.#crossed(states))
  }

  /** True if the keys and values of an encoding are computed. */
  isHeld(number: number): boolean {
    return this.#of(number).pasts !== undefined
  }

  /** The inputs of a call for an encoding: with its keys and values, if they are computed. */
  feeds(number: number): Feeds {
    const { inputs, pasts } = this.#of(number)
    return { ...inputs, ...(pasts ?? this.#none), ...this.#branch(pasts !== undefined) }
  }

  /** Keeps the keys and values that a call without them returned. */
  keep(number: number, outputs: Feeds): void {
    this.#of(number).pasts = this.#pastsOf(outputs)
  }

  clear(): void {
    this.#held.clear()
  }

  /**
   * Finds out if the graph computes several tokens in one call of its second branch. Fails if it does not compute several tokens in the first branch, or one in
   * the second. A graph that does not declare the width of its states is not run.
   */
  async probe(run: ProbeRun): Promise<void> {
    const states = this.#probeStates()
    if (states === undefined) return
    const { inputs, pasts } = this.#crossed(states)
    const first = { ...inputs, ...(pasts ?? this.#none), ...this.#branch(false) }
    const { ids, past } = PROBE
    const whole = await run(ids, undefined, first, this.fetches)
    const second = { ...inputs, ...(pasts ?? this.#pastsOf(whole.outputs)), ...this.#branch(true) }
    await run(ids.subarray(0, 1), undefined, second, [])
    try {
      const start = await run(ids.subarray(0, past), undefined, second, [])
      const rest = await run(ids.subarray(past), start.carried, second, [])
      const [wanted, ...found] = [whole, start, rest].map(({ outputs }) =>
        elementsOf(outputs['logits'] as RuntimeTensor),
      )
      this.isWide = wanted instanceof Float32Array && isNear(wanted, found as Float32Array[])
    } catch {
      // A graph that refuses several tokens gets one at a time.
      this.isWide = false
    }
  }

  #of(number: number): Crossed {
    return this.#held.get(number) as Crossed
  }

  #branch(isSecond: boolean): Feeds {
    if (this.#ports.isCrossGiven) return {}
    return { use_cache_branch: new this.#Tensor('bool', Uint8Array.of(isSecond ? 1 : 0), [1]) }
  }

  /** An encoding whose keys and values the encoder has given, or are still to be computed. */
  #crossed(states: EncodedStates): Crossed {
    if (!this.#ports.isCrossGiven) return { inputs: this.#inputs(states), pasts: undefined }
    const { type, data, frames } = states
    let at = 0
    const pasts = this.#ports.cross.map(({ past }) => {
      const [, heads, , dim] = (this.#none[past] as RuntimeTensor).dims as readonly [number, number, number, number]
      const start = at
      at += heads * frames * dim
      return [past, new this.#Tensor(type, data.subarray(start, at), [1, heads, frames, dim])] as const
    })
    return { inputs: {}, pasts: Object.fromEntries(pasts) }
  }

  #inputs({ type, data, frames, width, mask }: EncodedStates): Feeds {
    const feeds: Record<string, RuntimeTensor> = {
      encoder_hidden_states: new this.#Tensor(type, data, [1, frames, width]),
    }
    const name: OnnxInputName = 'encoder_attention_mask'
    if (!this.#ports.has(name)) return feeds
    const numbers = mask ?? new Uint8Array(frames).fill(1)
    const kind = this.#ports.typeOf(name)
    return { ...feeds, [name]: new this.#Tensor(kind, integersOf(kind, numbers), [1, numbers.length]) }
  }

  #pastsOf(outputs: Feeds): Feeds {
    const rows = new Set(this.#ports.cross.map(({ present }) => outputs[present]?.dims[2] ?? 0))
    if (rows.size !== 1 || rows.has(0)) {
      const [{ present: node }] = this.#ports.cross as [CrossPort]
      const reason = `the keys and values of the encoder's states have ${[...rows].join(' and ')} rows`
      throw new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason, node })
    }
    return Object.fromEntries(this.#ports.cross.map(({ past, present }) => [past, outputs[present] as RuntimeTensor]))
  }

  #probeStates(): EncodedStates | undefined {
    const name: OnnxInputName = 'encoder_hidden_states'
    const [{ past, input }] = this.#ports.cross as [CrossPort]
    const { isCrossGiven } = this.#ports
    const declared = isCrossGiven ? input.shape?.[2] : this.#ports.sizeOf(name, 1)
    const frames = typeof declared === 'number' ? declared : PROBE.frames
    const elements = Object.values(this.#none).reduce((sum, { dims }) => sum + Number(dims[1]) * Number(dims[3]), 0)
    const width = isCrossGiven ? elements : this.#ports.sizeOf(name, 2)
    if (width === undefined) return undefined
    const floats = Float32Array.from({ length: frames * width }, (_, place) => Math.sin(place + 1))
    const isHalf = (isCrossGiven ? this.#none[past]?.type : this.#ports.typeOf(name)) === 'float16'
    const data: TensorData = isHalf ? binding.halves(floats) : floats
    return { type: isHalf ? 'float16' : 'float32', data, frames, width, mask: undefined }
  }
}

/** True if rows of logits are those of the whole. */
function isNear(whole: Float32Array, parts: readonly Float32Array[]): boolean {
  const limit = NEAR * whole.reduce((most, logit) => Math.max(most, Math.abs(logit)), 0)
  let at = 0
  for (const part of parts)
    for (const logit of part) if (!(Math.abs(logit - (whole[at++] as number)) <= limit)) return false
  return at === whole.length
}
