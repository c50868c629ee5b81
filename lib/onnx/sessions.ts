// Sessions of onnxruntime-node that compute steps, on the thread on which they were opened. They block it for the duration of a step, so it is a worker thread if
// possible (session-host.ts). The arguments of opening sessions and of a step are posted in messages.
import type { LentRun } from '../sequences/lent-run.js'
import type { CarriedCache } from './carried.js'
import type { EncodedStates } from './encoding.js'
import type { Place } from './graph-session.js'
import type { OnnxPackage } from './runtime.js'
import type { StepEmbeds } from './spans.js'

/** The model of sessions. Graphs are passed to the thread by number. */
export type SessionsModel = PartsModel | PlainModel | EncoderModel

/** @internal */
export interface SessionsOptions {
  /** The package that the requesting thread has found, so that all threads use the same one. */
  readonly runtime: OnnxPackage
  /** The number of threads that a step uses. */
  readonly threads: number
  /** True if the runtime accepts a folder for weights, which it does since 1.21: the weights then stay in the files there. */
  readonly takesFolder: boolean
  /** The model of the decoder's embeddings, if it takes these. */
  readonly embeddings?: EmbeddingsModel | undefined
}

/** @internal The model of a decoder's embeddings. */
export interface EmbeddingsModel {
  readonly graph: number
  readonly width: number
  /** The decoder's inputs that it gives. */
  readonly names: readonly string[]
}

/** @internal A rewritten graph, to run as subgraphs. */
export interface PartsModel extends SessionsOptions {
  readonly kind: 'parts'
  readonly rewritten: number
  /** The place of the model's weights, if they can stay in its files. */
  readonly at: Place | undefined
}

/** @internal An unmodified graph, over a cache with its layers. */
export interface PlainModel extends SessionsOptions {
  readonly kind: 'plain'
  readonly graph: number
  readonly cache: CarriedCache
}

/** @internal The graph of an encoder, or the one that computes keys and values of its states. */
export interface EncoderModel extends SessionsOptions {
  readonly kind: 'encoder'
  readonly graph: number
  /** True if all of its outputs are keys and values: keys before values, layer by layer. */
  readonly isCrossing: boolean
}

/** @internal A tensor in a message. */
export interface SentTensor {
  readonly type: string
  readonly data: Float32Array | Uint16Array | BigInt64Array | Int32Array | Uint8Array
  readonly dims: readonly number[]
}

/** @internal A step. The fields are those of `ModelStep`. */
export interface SessionStep {
  readonly offsets: Int32Array
  readonly ids: Uint32Array
  readonly positions: Int32Array
  readonly rows: Int32Array
  readonly embeds?: StepEmbeds | undefined
  /** The pasts of the sequences, for graphs that have pasts. */
  readonly pasts?: SessionPasts
  /** The encodings of the sequences, for a decoder with an encoder. */
  readonly encodings?: SessionEncodings
}

/** @internal The presents that are the pasts of a step, and the numbers under which its own presents are kept. */
export interface SessionPasts {
  /** For each sequence: its number of tokens, the presents that are still its rows, and the number of its next presents. */
  readonly sequences: readonly { readonly length: number; readonly from: number | undefined; readonly keep: number }[]
  /** Presents that are no longer needed. */
  readonly forget: readonly number[]
}

/** @internal The encodings of a step, as a backend takes them. */
export interface SessionEncodings {
  /** The number of each sequence's encoding. */
  readonly numbers: readonly number[]
  /** Encodings that the thread does not have yet. */
  readonly added: readonly { readonly number: number; readonly states: EncodedStates }[]
  /** Encodings that are no longer needed. */
  readonly forget: readonly number[]
}

/** @internal Makes a call of onnxruntime-node. The thread must not be terminated during the call: the process would crash. */
export type RuntimeCall = <T>(call: () => T | Promise<T>) => Promise<T>

/** @internal Computes steps, one at a time, or the states of an encoder. */
export interface Sessions {
  /** True if a call is known to give only the logits of its last token. */
  readonly isPruned?: boolean
  /** Writes every layer of the run, and passes the wanted rows of logits to it. If it is refused, nothing of the step is kept. */
  compute?(run: LentRun, step: SessionStep): Promise<void>
  /** The result has memory of its own. */
  encode?(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor>
  release(): Promise<void>
}
