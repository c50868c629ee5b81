// The interface of backends, which compute the steps of a model. There are three: `graph` runs one graph with kvtide's attention in it, `parts` runs its
// subgraphs with attention between them, `plain` runs the unmodified graph with past and present.
//
//     step = cache.beginStep(...)                 by the scheduler
//     logits = await backend.run({ step, ... })   writes every layer of the step
//     step.commit()  or  step.rollback()          by the scheduler: a backend never ends a step
//
// A backend computes one step at a time. Until `run` has returned its result, the step's sequences do not change. Others may be opened, forked, truncated and
// disposed of. If the cache itself is disposed of, the step is refused, and none of its tokens count.
import type { NativeLogits } from '#binding'

import type { Sequence } from '../paged/sequence.js'
import type { Step } from '../sequences/step.js'
import type { Embeddings } from './embeddings.js'
import type { Encoding } from './encoding.js'
import type { SentTensor } from './sessions.js'
import type { StepEmbeds } from './spans.js'

/** The names of the backends. */
export type BackendName = 'graph' | 'parts' | 'plain'

/** @internal The backends in the order in which they are tried. */
export const BACKENDS: readonly BackendName[] = ['graph', 'parts', 'plain']

/** @internal One sequence of a step. */
export interface StepSequence {
  readonly sequence: Sequence
  /**
   * The ids of all tokens of the sequence before the step, including those of its open transaction. The array is as long as the sequence, and
   * valid until `run` has returned its result: keep a copy. Data that a backend keeps of a sequence is valid as far as these ids are the same.
   */
  readonly before: Uint32Array
  /** The encoding that it attends to, for a decoder with an encoder. */
  readonly encoding?: Encoding | undefined
}

/** @internal A step that has begun, and the logits that are wanted. */
export interface ModelStep {
  readonly step: Step
  readonly sequences: readonly StepSequence[]
  /** Sequence i has the tokens from `offsets[i]` to `offsets[i + 1]`, at least one. */
  readonly offsets: Int32Array
  /** The ids of the new tokens of all sequences, concatenated. */
  readonly ids: Uint32Array
  /** The position of each new token in its sequence; for a model with three rows of positions, one row after the other. */
  readonly positions: Int32Array
  /** Rows of embeddings that are given in place of those of the ids. */
  readonly embeds?: StepEmbeds | undefined
  /** The tokens whose logits are wanted, ascending; at least one. */
  readonly rows: Int32Array
}

/** @internal Properties of a model, with which its backend is made. */
export interface BackendForm {
  /** The number of threads that a step uses, including the one that it runs on. */
  readonly threads: number
  /** The model of its embeddings, if it takes these. */
  readonly embeddings?: Embeddings | undefined
  readonly positionRows?: 1 | 3
}

/** @internal A way to run a model. */
export interface Backend {
  readonly name: BackendName
  /** True if a step is known to give only the logits of each sequence's last token: logits of other tokens then cost a call each. */
  readonly isPruned?: boolean
  /** The rows of positions that the model takes: 1, or 3 for time, height and width. */
  readonly positionRows?: 1 | 3
  /**
   * Computes a step, off the main thread except for `parts` and `plain` before onnxruntime-node 1.22. When the promise is fulfilled, every
   * layer of `step` is written, and the result has one row of logits for each of `rows`, in the same order. If the promise is rejected, the step
   * is still open and the caller rolls it back; the backend keeps nothing of it. A backend is not told about commits: if it keeps data of
   * sequences, it has to compare `before`.
   */
  run(step: ModelStep): Promise<NativeLogits>
  /** Runs the model's encoder, if it has one. */
  encode?(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor>
  /** Disposes of the backend, once no step is being computed. A second call does nothing. */
  dispose(): Promise<void>
}
