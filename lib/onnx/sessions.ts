import type { LentRun } from '../sequences/lent-run.js'
import type { CarriedCache } from './carried.js'
import type { OnnxPackage } from './runtime.js'

/**
 * Sessions of onnxruntime-node that compute steps, on the thread that they were opened on. They hold it up for as long as a step takes, so that
 * is a thread of their own wherever possible (`session-host.ts`). What they are opened with, and what a step is, crosses in a message.
 */

/** What sessions are made of. Graphs cross by their numbers. */
export type SessionsModel = PartsModel | PlainModel

interface SessionsOptions {
  /** The package that the thread which asks has found: all threads have the same. */
  readonly runtime: OnnxPackage
  /** How many threads a step uses. */
  readonly threads: number
  /** Whether the runtime finds weights in the folder of the model's file, as it does from 1.21 on: they stay there then. */
  readonly takesFolder: boolean
}

/** @internal A rewritten graph, in parts. */
export interface PartsModel extends SessionsOptions {
  readonly kind: 'parts'
  readonly rewritten: number
  /** The model's file, if it has one. */
  readonly path: string | null
}

/** @internal A graph as it is, over a cache with its layers. */
export interface PlainModel extends SessionsOptions {
  readonly kind: 'plain'
  readonly graph: number
  readonly cache: CarriedCache
}

/** @internal A step; the fields are those of `ModelStep`. */
export interface SessionStep {
  readonly offsets: Int32Array
  readonly ids: Uint32Array
  readonly positions: Int32Array
  readonly rows: Int32Array
  /** Where pasts of sequences are, for graphs that have some. */
  readonly pasts?: SessionPasts
}

/** @internal Which presents are the pasts of a step, and under which numbers its own are kept. */
export interface SessionPasts {
  /** For each sequence: how many tokens it has, the presents that are still its rows, and the number of its next ones. */
  readonly sequences: readonly { readonly length: number; readonly from: number | undefined; readonly keep: number }[]
  /** Presents that nobody needs any longer. */
  readonly forget: readonly number[]
}

/** @internal Makes a call of onnxruntime-node. The thread must not be ended in the middle of one: the process would end. */
export type RuntimeCall = <T>(call: () => T | Promise<T>) => Promise<T>

/** @internal Computes steps, one at a time. */
export interface Sessions {
  /** Writes every layer of the run, and leaves the wanted rows of logits with it. When it is refused, nothing of the step is kept. */
  compute(run: LentRun, step: SessionStep): Promise<void>
  release(): Promise<void>
}
