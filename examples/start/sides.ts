// The same requests without kvtide and with it.
import { isKvTideError } from 'kvtide'
import { OnnxModel, type OnnxSequence } from 'kvtide/onnx'
import type { Tensor as OrtTensor } from 'onnxruntime-node'

import { ANSWER, type Request } from './workload.js'

/** The answer to a request, and its cost. */
export interface Answer {
  readonly tokens: readonly number[]
  /** The number of tokens that the model computed. */
  readonly computed: number
  /** The number of cached prompt tokens. */
  readonly found: number
  /** Milliseconds to the first token, and to the last. */
  readonly first: number
  readonly all: number
}

export interface Side extends AsyncDisposable {
  readonly name: string
  answer(request: Request, prompt: readonly number[]): Promise<Answer>
  /** Returns the bytes of keys and values that this side holds now. */
  bytes(): number
}

/** onnxruntime-node by hand: each prompt is computed from its start, then each present is the next past, token by token. */
export async function plainSide(model: string): Promise<Side> {
  const { InferenceSession, Tensor } = await import('onnxruntime-node')
  const session = await InferenceSession.create(model, { intraOpNumThreads: 2, interOpNumThreads: 1 })
  const pasts = session.inputMetadata.flatMap(input =>
    input.isTensor && input.name.startsWith('past_key_values.')
      ? [{ name: input.name, empty: input.shape.map(size => (typeof size === 'number' ? size : 0)).with(0, 1) }]
      : [],
  )
  const int64 = (values: readonly number[]): OrtTensor =>
    new Tensor('int64', BigInt64Array.from(values, BigInt), [1, values.length])
  let held = 0

  async function step(
    tokens: readonly number[],
    past: Record<string, OrtTensor>,
    length: number,
  ): Promise<{ token: number; past: typeof past }> {
    const positions = tokens.map((_, place) => length + place)
    const feeds = {
      input_ids: int64(tokens),
      attention_mask: int64(Array.from({ length: length + tokens.length }, () => 1)),
      position_ids: int64(positions),
      ...past,
    }
    const outputs = await session.run(feeds)
    const { data, dims } = outputs['logits'] as OrtTensor
    const last = (data as Float32Array).subarray(-(dims[2] as number))
    const next = Object.fromEntries(
      pasts.map(({ name }) => [name, outputs[name.replace('past_key_values', 'present')] as OrtTensor]),
    )
    held = Object.values(next).reduce((sum, tensor) => sum + (tensor.data as Float32Array).byteLength, 0)
    return { token: last.reduce((best, logit, id) => (logit > (last[best] as number) ? id : best), 0), past: next }
  }

  return {
    name: 'onnxruntime-node',
    async answer(_, prompt) {
      const started = performance.now()
      const empty = Object.fromEntries(
        pasts.map(({ name, empty: dims }) => [name, new Tensor('float32', new Float32Array(0), dims)]),
      )
      let { token, past } = await step(prompt, empty, 0)
      const first = performance.now() - started
      const tokens = [token]
      while (tokens.length < ANSWER) {
        ;({ token, past } = await step([token], past, prompt.length + tokens.length - 1))
        tokens.push(token)
      }
      return { tokens, computed: prompt.length + ANSWER - 1, found: 0, first, all: performance.now() - started }
    },
    bytes: () => held,
    [Symbol.asyncDispose]: () => session.release(),
  }
}

/** The same graph with kvtide/onnx: each request starts with the cached prefix of its prompt. */
export async function cachedSide(model: string): Promise<Side> {
  const loaded = await OnnxModel.load(model, { threads: 2, cache: { memoryBytes: 2 ** 25 } })
  let chat: OnnxSequence | undefined

  /** Returns a sequence for the prompt: a new one, or the chat's, resumed or forked. */
  function begin({ way }: Request, prompt: readonly number[]): OnnxSequence {
    if (chat === undefined || way === 'question') {
      chat?.dispose()
      chat = loaded.open({ tokens: prompt })
      return chat
    }
    const sequence = way === 'fork' ? chat.fork() : chat
    sequence.resume(prompt) // keeps the common prefix, and drops the rest
    return sequence
  }

  return {
    name: 'kvtide',
    async answer(request, prompt) {
      const started = performance.now()
      const sequence = begin(request, prompt)
      const found = sequence.length
      const tokens: number[] = []
      let first = 0
      const options = { maxTokens: ANSWER, temperature: 0, ignoreEndOfSequence: true } // both sides answer as many tokens
      for await (const token of loaded.generate(sequence, options)) {
        if (tokens.length === 0) first = performance.now() - started
        tokens.push(token)
      }
      const all = performance.now() - started
      if (sequence !== chat) sequence.dispose()
      return { tokens, computed: prompt.length - found + ANSWER - 1, found, first, all }
    },
    bytes() {
      const { totalBlocks, freeBlocks } = loaded.cache.stats()
      return Math.round((totalBlocks - freeBlocks) * loaded.cache.blockSize * loaded.cache.bytesPerToken)
    },
    [Symbol.asyncDispose]: () => loaded.dispose(),
  }
}

/** Returns true if an error says that onnxruntime-node is missing or unusable. */
export function isRuntimeMissing(error: unknown): boolean {
  return isKvTideError(error)
    ? error.code === 'RUNTIME_UNAVAILABLE'
    : (error as { code?: string } | undefined)?.code === 'ERR_MODULE_NOT_FOUND'
}
