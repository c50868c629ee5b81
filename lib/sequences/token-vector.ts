import { arrayKind, arrayLength, typedArray } from '../border/check.js'
import { dtypeRow, type DType, type Float16ArrayLike, type TensorData } from '../border/dtype.js'
import { readArray } from '../border/host-array.js'
import { readTensor, type TensorArgument, type TokenSource } from '../border/host-tensor.js'
import { readDType, type PageFormat } from './page-format.js'

/** One token's key or value: its elements, or a tensor that holds as many. */
export type TokenVector = TensorData | Float16ArrayLike | TokenSource

/** @internal One token's key or value; a bare array is of the cache's dtype. */
export function vector(argument: string, value: unknown, dtype: DType): TensorArgument {
  if (arrayKind(value) === undefined) return readTensor(argument, value)
  return readArray(argument, value, [arrayLength(value as TensorData)], dtype)
}

/** @internal An array of the caller's in which K or V of this form are read. */
export function room(argument: string, value: unknown, format: PageFormat, dtype: DType): TensorData {
  const kinds = dtypeRow(readDType(format, dtype)).arrays.filter(kind => kind !== 'Float16Array')
  return typedArray<TensorData>(argument, value, kinds)
}
