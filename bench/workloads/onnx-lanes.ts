// The lanes of onnx.ts that run in separate processes: the speed of a session varies by a tenth with the address of its weights, and so with
// everything that was loaded before it in the same process.
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

import { OnnxModel } from 'kvtide/onnx'
import * as onnxruntime from 'onnxruntime-node'

import type { Apart } from '../run/apart.js'
import { DECODER } from './decoder.js'

const { layers, kvHeads, headDim, vocabulary } = DECODER
const { InferenceSession, Tensor } = onnxruntime

/** The work of a lane, and the way to do it. */
export interface LaneOf {
  readonly what: 'decode' | 'prefill'
  readonly way: 'graph' | 'parts' | 'sharing' | 'copying'
  readonly path: string
  readonly length: number
  readonly rows: number
  readonly threads: number
}

type Feeds = Record<string, onnxruntime.Tensor>

const int64 = (values: readonly number[], dims: readonly number[]): onnxruntime.Tensor =>
  new Tensor('int64', BigInt64Array.from(values, BigInt), dims)

const ones = (rows: number, length: number): onnxruntime.Tensor =>
  new Tensor('int64', new BigInt64Array(rows * length).fill(1n), [rows, length])

/** Returns token ids that are the same in each run and depend on the seed. */
export function ids(count: number, seed: number): Uint32Array {
  let state = seed * 2_654_435_761 + 1
  return Uint32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return 3 + (state % (vocabulary - 3))
  })
}

function noise(count: number): Float32Array {
  let state = 0x2545f491
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32 - 0.5
  })
}

const names = (side: 'past_key_values' | 'present'): string[] =>
  Array.from({ length: layers }, (_, layer) => ['key', 'value'].map(part => `${side}.${layer}.${part}`)).flat()

/** Collects the garbage of a round, so that the next round does not pay for it. */
function collect(): void {
  setFlagsFromString('--expose-gc')
  ;(runInNewContext('gc') as () => void)()
}

/** Tokens of a round, one after the other. One token before them is not timed, because another lane has used caches and threads before it. */
export const STEPS = 8

/** A way to compute tokens after a past of fixed length: `reset` returns to that length. */
interface Decoding {
  readonly reset: () => void
  readonly step: () => Promise<void>
}

/** Passes the past in, and takes the present out. */
function copying(session: onnxruntime.InferenceSession, length: number, rows: number): Decoding {
  const data = noise(rows * kvHeads * length * headDim)
  const first = names('past_key_values').map(
    () => new Tensor('float32', data, [rows, kvHeads, length, headDim]) as onnxruntime.Tensor,
  )
  let [past, total] = [first, length]
  return {
    reset: () => void ([past, total] = [first, length]),
    step: async () => {
      total += 1
      const feeds: Feeds = {
        input_ids: int64(
          Array.from({ length: rows }, () => 5),
          [rows, 1],
        ),
        attention_mask: ones(rows, total),
      }
      names('past_key_values').forEach((name, index) => (feeds[name] = past[index] as onnxruntime.Tensor))
      const outputs = await session.run(feeds)
      past = names('present').map(name => outputs[name] as onnxruntime.Tensor)
    },
  }
}

/** Uses one buffer as past and present, with room for the tokens of a round. */
function sharing(session: onnxruntime.InferenceSession, length: number, rows: number): Decoding {
  const room = length + 1 + STEPS
  const held = names('past_key_values').map(
    () => new Tensor('float32', noise(rows * kvHeads * room * headDim), [rows, kvHeads, room, headDim]),
  )
  const fetches: Record<string, onnxruntime.Tensor> = {
    logits: new Tensor('float32', new Float32Array(rows * vocabulary), [rows, 1, vocabulary]),
  }
  names('present').forEach((name, index) => (fetches[name] = held[index] as onnxruntime.Tensor))
  let total = length
  return {
    reset: () => void (total = length),
    step: async () => {
      total += 1
      const feeds: Feeds = {
        input_ids: int64(
          Array.from({ length: rows }, () => 5),
          [rows, 1],
        ),
        attention_mask: ones(rows, total),
      }
      names('past_key_values').forEach((name, index) => (feeds[name] = held[index] as onnxruntime.Tensor))
      await session.run(feeds, fetches)
    },
  }
}

const sessionOf = (path: string, threads: number): Promise<onnxruntime.InferenceSession> =>
  InferenceSession.create(path, {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    graphOptimizationLevel: 'all',
    logSeverityLevel: 3,
  })

async function modelOf({ way, path, length, rows, threads }: LaneOf): Promise<OnnxModel> {
  const memoryBytes = (rows * (length + 600) + 3 * length) * 2 * layers * kvHeads * headDim * 4
  return OnnxModel.load(path, { backend: way as 'graph' | 'parts', threads, cache: { memoryBytes, maxSequences: 32 } })
}

/** Decodes in kvtide, for sequences that are computed already. */
async function ours(of: LaneOf): Promise<Decoding> {
  const model = await modelOf(of)
  const sequences = Array.from({ length: of.rows }, (_, row) =>
    model.open({ tokens: ids(of.length, row + 1), salt: `row ${row}` }),
  )
  for (const sequence of sequences) await model.run([{ sequence }])
  const items = sequences.map(sequence => ({ sequence, tokens: [5] }))
  return {
    reset: () => sequences.forEach(sequence => sequence.truncate(of.length)),
    step: async () => void (await model.run(items)),
  }
}

async function decoding(of: LaneOf): Promise<Apart> {
  const { way, path, length, rows, threads } = of
  const { reset, step } =
    way === 'sharing'
      ? sharing(await sessionOf(path, threads), length, rows)
      : way === 'copying'
        ? copying(await sessionOf(path, threads), length, rows)
        : await ours(of)
  return {
    before: async () => {
      reset()
      collect()
      await step()
    },
    round: async () => {
      for (let done = 0; done < STEPS; done++) await step()
    },
  }
}

/** Returns the inputs for a prompt without a past. */
function whole(tokens: Uint32Array): Feeds {
  const nothing = names('past_key_values').map(
    name => [name, new Tensor('float32', new Float32Array(0), [1, kvHeads, 0, headDim])] as const,
  )
  return {
    input_ids: int64([...tokens], [1, tokens.length]),
    attention_mask: ones(1, tokens.length),
    ...Object.fromEntries(nothing),
  }
}

/** Returns the most probable token after a prompt, as onnxruntime-node computes it. */
export async function likeliest(path: string, tokens: Uint32Array, threads: number): Promise<number> {
  const session = await sessionOf(path, threads)
  const { logits } = (await session.run(whole(tokens))) as { logits: onnxruntime.Tensor }
  const last = (logits.data as Float32Array).subarray(-vocabulary)
  await session.release()
  return last.reduce((best, logit, token) => (logit > (last[best] as number) ? token : best), 0)
}

async function filling(of: LaneOf): Promise<Apart> {
  const { way, path, length, threads } = of
  const tokens = ids(length, 1)
  if (way === 'copying') {
    const session = await sessionOf(path, threads)
    const feeds = whole(tokens)
    return { before: collect, round: async () => void (await session.run(feeds)) }
  }
  const model = await modelOf(of)
  let salt = 0
  return {
    before: collect,
    round: async () => {
      // Another salt, so there is no cache hit.
      using sequence = model.open({ tokens, salt: `${salt++}` })
      await model.run([{ sequence }])
    },
  }
}

/** Makes the lane; the child process calls it. */
export const start = (of: LaneOf): Promise<Apart> => (of.what === 'decode' ? decoding(of) : filling(of))
