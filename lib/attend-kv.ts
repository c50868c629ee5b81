import { fields, integers } from './check.js'
import { readTensor, type TensorArgument, type TokenSource } from './host-tensor.js'

/**
 * Keys and values of sequences of one length, `[batch, kvHeads, n, headDim]` each: what a cache shows, or memory of your own.
 * The head dimension of the values may be another.
 */
export interface BatchedKv {
  /** The keys. */
  readonly k: TokenSource
  /** The values. */
  readonly v: TokenSource
  /** Only where sequences lie one behind the other. */
  readonly kvOffsets?: undefined
}

/** Keys and values of sequences of any lengths, one behind the other: `[tokens, kvHeads, headDim]` each. */
export interface RaggedKv {
  /** The keys. */
  readonly k: TokenSource
  /** The values. */
  readonly v: TokenSource
  /** Where the tokens of each sequence begin, and where the last ones end. */
  readonly kvOffsets: Int32Array | readonly number[]
}

/** What attention reads. */
export type AttendKv = BatchedKv | RaggedKv

/** @internal Keys and values that were read. */
export interface KvArgument {
  readonly k: TensorArgument
  readonly v: TensorArgument
  readonly offsets: Int32Array | undefined
}

/** @internal Reads keys and values. */
export function readKv(kv: unknown): KvArgument {
  const { k, v, kvOffsets } = fields<RaggedKv>('kv', kv)
  const offsets = kvOffsets === undefined ? undefined : integers('kvOffsets', kvOffsets)
  return { k: readTensor('k', k), v: readTensor('v', v), offsets }
}
