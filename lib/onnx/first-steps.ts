// Computes the first steps of a model while it is loaded. A runtime makes a session of a graph with a node that it cannot compute ("not implemented"), and refuses
// the node only when it runs: without these steps, such a model would load, and its first token would fail.
//
//     graph, parts   two tokens              their graphs take no past
//     plain          two tokens, then one    with and without a past
//
// The steps use a cache of their own, of a few tokens. They cost as much as two or three tokens: the runtime reads the weights that it has just loaded.
// A decoder with an encoder gets an encoding of zeros. On plain, cross-tensors makes its first calls when the session is opened.
import { isKvTideError } from '../errors/errors.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import { INTERNAL } from '../border/owner.js'
import type { Backend } from './backend.js'
import { type EncoderFacts, Encoding } from './encoding.js'
import type { CacheLayers } from './prepared.js'
import { refusalBy } from './runtime-refusal.js'

/** The tokens of the first step, and of the step behind it. */
const COUNTS = [2, 1] as const
/** The size of the cache of these steps. */
const SIZE = { capacity: 4, blockSize: 4 } as const

/** @internal The form of the steps: that of the model's own cache, and the most tokens in one step and in a sequence. */
export interface FirstSteps {
  readonly layers: CacheLayers
  readonly pages: Pick<PagedKvCache, 'keyFormat' | 'valueFormat'>
  readonly stepTokens: number
  readonly contextLength: number | undefined
  /** For a decoder with an encoder. */
  readonly encoding?: Encoding | undefined
}

/** The frames of the encoding, if a graph takes any number of them. */
const FRAMES = 4

/** @internal An encoding for the first steps of a decoder; `undefined` if the graph does not declare the width of its states. */
export function firstEncoding({ type, width, frames: declared = FRAMES, isGiven }: EncoderFacts): Encoding | undefined {
  if (width === undefined) return undefined
  // The rewritten graph has no inputs for keys and values: a few of them will do.
  const frames = isGiven ? FRAMES : declared
  const data = type === 'float32' ? new Float32Array(frames * width) : new Uint16Array(frames * width)
  return new Encoding(INTERNAL, { type, data, frames, width, mask: undefined })
}

/** @internal Computes the first steps. If the runtime refuses one, the backend is disposed of, and the error is `UNSUPPORTED_GRAPH` with the runtime's reason. */
export async function firstSteps<B extends Backend>(backend: B, form: FirstSteps): Promise<B> {
  try {
    await compute(backend, form)
    return backend
  } catch (error) {
    if (isOfToken(error)) return backend
    await backend.dispose()
    throw refusalBy(error)
  }
}

async function compute(
  backend: Backend,
  { layers, pages: { keyFormat, valueFormat }, stepTokens, contextLength = Infinity, encoding }: FirstSteps,
): Promise<void> {
  using cache = new PagedKvCache({ ...SIZE, ...layers, keyFormat, valueFormat } as ModelCacheOptions)
  using sequence = cache.openSequence()
  let length = 0
  for (const most of backend.name === 'plain' ? COUNTS : COUNTS.slice(0, 1)) {
    const count = Math.min(most, stepTokens, contextLength - length)
    if (count <= 0) return
    const ids = new Uint32Array(count)
    const offsets = Int32Array.of(0, count)
    using step = cache.beginStep({ sequences: [sequence], offsets: [...offsets], tokens: ids })
    const row = Array.from(ids, (_, place) => length + place)
    const logits = await backend.run({
      step,
      sequences: [{ sequence, before: new Uint32Array(length), encoding }],
      offsets,
      ids,
      positions: Int32Array.from(backend.positionRows === 3 ? [...row, ...row, ...row] : row),
      rows: Int32Array.of(count - 1),
    })
    logits.dispose()
    step.commit()
    length += count
  }
}

/** True for an error of the token's numbers: a state that is NaN. Another token may have numbers. */
function isOfToken(error: unknown): boolean {
  return isKvTideError(error) && error.code === 'RUNTIME_FAILED' && error.details.reason.endsWith('(NaN)')
}
