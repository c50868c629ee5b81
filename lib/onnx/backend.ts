import type { NativeLogits } from '#binding'

import type { Sequence } from '../sequences/sequence.js'
import type { Step } from '../sequences/step.js'

/**
 * Who computes steps of a model. There are three: one graph with kvtide's attention in it, its parts with attention between them, and the
 * graph as it is, with past and present.
 *
 * ```text
 * step = cache.beginStep(...)          by the scheduler
 * logits = await backend.run({ step, ... })   writes every layer of the step
 * step.commit()  or  step.rollback()   by the scheduler: a backend never ends a step
 * ```
 * One step at a time. Between `run` and its answer the step's sequences do not change; others may be opened, forked, cut and disposed of, and
 * the cache itself may be disposed of: the step is refused then, and nothing of it counts.
 */

/** The ways in which a model is run. */
export type BackendName = 'graph' | 'parts' | 'plain'

/** @internal The same in the order in which they are tried. */
export const BACKENDS: readonly BackendName[] = ['graph', 'parts', 'plain']

/** @internal One sequence of a step. */
export interface StepSequence {
  readonly sequence: Sequence
  /**
   * The ids of all tokens of the sequence before the step, those of its open transaction too. It is as long as the sequence, and valid
   * until `run` has answered: keep a copy. What a backend has kept of a sequence is right as far as these ids are the same.
   */
  readonly before: Uint32Array
}

/** @internal A step that has begun, and what of it is wanted. */
export interface ModelStep {
  readonly step: Step
  readonly sequences: readonly StepSequence[]
  /** Sequence i has the tokens from `offsets[i]` to `offsets[i + 1]`, at least one. */
  readonly offsets: Int32Array
  /** The ids of the new tokens, those of all sequences one behind the other. */
  readonly ids: Uint32Array
  /** The position of each new token in its sequence. */
  readonly positions: Int32Array
  /** The tokens whose logits are wanted, ascending; at least one. */
  readonly rows: Int32Array
}

/** @internal One of the ways in which a model is run. */
export interface Backend {
  readonly name: BackendName
  /**
   * Computes a step off the main thread: every layer of `step` is written when the promise is fulfilled, and there is a row of logits for
   * each of `rows`, in their order. When it is rejected the step is still open, and the caller undoes it: a backend keeps nothing of it
   * then. A backend that keeps something of sequences hears nothing of commits: it compares `before`.
   */
  run(step: ModelStep): Promise<NativeLogits>
  /** Ends it, once nothing is computed. A second time does nothing. */
  dispose(): Promise<void>
}
