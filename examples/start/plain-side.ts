// onnxruntime-node by hand: each prompt is computed from its start, then each present is the next past, token by token.
import type { InferenceSession as Session, Tensor as OrtTensor, TensorConstructor } from 'onnxruntime-node'
import type { TextModel } from 'kvtide/text'

import type { Side } from './sides.js'
import { ANSWER } from './workload.js'

type Feeds = Record<string, OrtTensor>

/** Returns the side without kvtide. It borrows the tokenizer, the template and the graph's path of a model that kvtide has loaded. */
export async function plainSide(text: TextModel, threads: number): Promise<Side> {
  const { InferenceSession, Tensor } = await import('onnxruntime-node')
  const { path, endOfSequence, cache } = text.model
  const options = { intraOpNumThreads: threads, interOpNumThreads: 1 }
  const graph = new Graph(await InferenceSession.create(path as string, options), Tensor, cache.headDim)
  return {
    name: 'onnxruntime-node',
    async answer(messages) {
      const started = performance.now()
      const prompt = [...text.tokenizer.encode(text.render({ messages }), { addSpecialTokens: false })]
      let { token, past } = await graph.step(prompt, graph.empty(), 0)
      const first = performance.now() - started
      const tokens: number[] = []
      while (!endOfSequence.includes(token)) {
        tokens.push(token)
        if (tokens.length === ANSWER) break
        ;({ token, past } = await graph.step([token], past, prompt.length + tokens.length - 1))
      }
      const all = performance.now() - started
      const computed = prompt.length + Math.min(tokens.length, ANSWER - 1)
      return { text: text.tokenizer.decode(tokens), prompt: prompt.length, found: 0, computed, first, all }
    },
    bytes: () => graph.held,
    [Symbol.asyncDispose]: () => graph.session.release(),
  }
}

/** A decoder graph with past and present, as exporters make it. */
class Graph {
  readonly session: Session
  readonly #Tensor: TensorConstructor
  readonly #headDim: number
  /** The bytes of keys and values after the last step. */
  held = 0

  constructor(session: Session, tensor: TensorConstructor, headDim: number) {
    this.session = session
    this.#Tensor = tensor
    this.#headDim = headDim
  }

  /** Returns pasts of no token. */
  empty(): Feeds {
    return Object.fromEntries(
      this.session.inputMetadata.flatMap(input => {
        if (!input.isTensor || !input.name.startsWith('past')) return []
        const named = input.shape.map(size => (typeof size === 'number' ? size : 0)).with(0, 1)
        // Some exporters give the head dimension a name.
        const dims = named.at(-1) === 0 ? [...named.slice(0, -1), this.#headDim] : named
        const data = input.type === 'float16' ? new Uint16Array(0) : new Float32Array(0)
        return [[input.name, new this.#Tensor(input.type as 'float32', data as Float32Array, dims)]]
      }),
    )
  }

  async step(tokens: readonly number[], past: Feeds, length: number): Promise<{ token: number; past: Feeds }> {
    const outputs = await this.session.run({ ...this.#feeds(tokens, length), ...past })
    const { data, dims } = outputs['logits'] as OrtTensor
    const last = (data as Float32Array | Uint16Array).subarray(-(dims[2] as number))
    const next = Object.fromEntries(
      Object.keys(past).map(name => [name, outputs[name.replace(/^past(_key_values)?/, 'present')] as OrtTensor]),
    )
    this.held = Object.values(next).reduce((sum, tensor) => sum + (tensor.data as Float32Array).byteLength, 0)
    return { token: largest(last), past: next }
  }

  #feeds(tokens: readonly number[], length: number): Feeds {
    const int64 = (values: readonly number[], dims: readonly number[] = [1, values.length]): OrtTensor =>
      new this.#Tensor('int64', BigInt64Array.from(values, BigInt), dims)
    const known: Record<string, () => OrtTensor> = {
      input_ids: () => int64(tokens),
      attention_mask: () => int64(Array.from({ length: length + tokens.length }, () => 1)),
      position_ids: () => int64(tokens.map((_, place) => length + place)),
      num_logits_to_keep: () => int64([1], []),
    }
    const feeds: Feeds = {}
    for (const name of this.session.inputNames) {
      if (name.startsWith('past')) continue
      const made = known[name]
      if (made === undefined)
        throw new Error(`the graph's input ${name} is not known to this loop; try another --dtype`)
      feeds[name] = made()
    }
    return feeds
  }
}

/** Returns the place of the largest logit. Half floats compare like whole numbers with a sign. */
function largest(logits: Float32Array | Uint16Array): number {
  const value = (at: number): number => {
    const logit = logits[at] as number
    return logits instanceof Uint16Array && logit >= 0x8000 ? 0x8000 - logit : logit
  }
  let best = 0
  for (let at = 1; at < logits.length; at++) if (value(at) > value(best)) best = at
  return best
}
