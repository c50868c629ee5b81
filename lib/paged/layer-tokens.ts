// Keys and values of one layer outside of steps: tokens are written and read by their positions, or all of a sequence's are copied.
import { arrayKind, arrayLength, count } from '../errors/check.js'
import { type DType, dtypeRow, meta, readArray, type TensorData } from '../border/host-array.js'
import { type Kv, kvOfViews, put, readTensor, type TensorArgument } from '../border/tensor.js'
import type { LayerGroup } from '../sequences/layer-group.js'
import { type PageFormat, readDType, roomIn } from '../sequences/page-format.js'
import { seqOf } from '../sequences/sequence-batch.js'
import type { SharedCache } from '../sequences/shared-cache.js'

/** A sequence, a layer and a position as given, not checked yet. */
type GivenPlace = readonly [seq: unknown, layer: unknown, pos: unknown]

function readPlace(shared: SharedCache, [seq, layer, pos]: GivenPlace): [seq: number, layer: number, pos: number] {
  return [seqOf(shared, 'seq', seq), count('layer', layer), count('pos', pos)]
}

/** Reads one token's key or value. A bare array has the cache's dtype. */
function readVector(argument: string, value: unknown, dtype: DType): TensorArgument {
  if (arrayKind(value) === undefined) return readTensor(argument, value)
  return readArray(argument, value, [arrayLength(value as TensorData)], dtype)
}

/** @internal Writes one token. */
export function writeKv(shared: SharedCache, at: GivenPlace, key: unknown, value: unknown, dtype: DType): void {
  const place = readPlace(shared, at)
  const [k, v] = [readVector('key', key, dtype), readVector('value', value, dtype)]
  shared.change(native => native.writeKv(...place, put(k, 0), put(v, 1), meta))
}

/** @internal Writes neighbouring tokens. */
export function writeTokens(shared: SharedCache, at: GivenPlace, k: unknown, v: unknown): void {
  const place = readPlace(shared, at)
  const [keys, values] = [readTensor('k', k), readTensor('v', v)]
  shared.change(native => native.writeTokens(...place, put(keys, 0), put(values, 1), meta))
}

/** @internal Returns copies of all tokens. */
export function gather(shared: SharedCache, seq: unknown, layer: unknown): Kv {
  return kvOfViews(shared.native.gather(seqOf(shared, 'seq', seq), count('layer', layer)))
}

/** @internal Copies all tokens into the caller's arrays. */
export function gatherInto<T>(shared: SharedCache, seq: unknown, layer: unknown, k: T, v: T): { k: T; v: T } {
  const [keyFormat, valueFormat] = shared.formats
  const at = [seqOf(shared, 'seq', seq), count('layer', layer)] as const
  shared.native.gatherInto(...at, roomIn('k', k, keyFormat), roomIn('v', v, valueFormat))
  return { k, v }
}

/** @internal Reads one token into new arrays. */
export function readKv(
  shared: SharedCache,
  groups: readonly LayerGroup[],
  at: GivenPlace,
): { key: TensorData; value: TensorData } {
  const { numKvHeads, headDim, valueHeadDim } = groups[shared.groupOf(at[1])] as LayerGroup
  const [keyFormat, valueFormat] = shared.formats
  const made = (format: PageFormat, dim: number): TensorData => dtypeRow(readDType(format)).make(numKvHeads * dim)
  return readKvInto(shared, at, made(keyFormat, headDim), made(valueFormat, valueHeadDim))
}

/** @internal Reads one token into the caller's arrays. */
export function readKvInto<T>(shared: SharedCache, at: GivenPlace, key: T, value: T): { key: T; value: T } {
  const [keyFormat, valueFormat] = shared.formats
  const place = readPlace(shared, at)
  shared.native.readKvInto(...place, roomIn('key', key, keyFormat), roomIn('value', value, valueFormat))
  return { key, value }
}
