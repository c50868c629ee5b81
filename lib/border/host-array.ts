import { binding } from '../loading/binding.js'
import { arrayKind, arrayLength, asBits, RANK_MAX, typedArray } from './check.js'
import { invalid, isKvTideError, KvTideError } from './errors.js'

/** Element types of tensors and caches. */
export type DType = 'f32' | 'f16' | 'bf16' | 'u8'

/** The arrays that hold elements. Half floats (f16, bf16) are in a `Uint16Array`, as their bits. */
export type TensorData = Float32Array | Uint16Array | Uint8Array

/** The array that holds elements of a type. */
export type ArrayOf<D extends DType> = D extends 'f32' ? Float32Array : D extends 'u8' ? Uint8Array : Uint16Array

/** The type of the elements of an array; of a `Uint16Array` it is said by name. */
export type DTypeOf<A> = A extends Float32Array ? 'f32' : A extends Uint8Array ? 'u8' : 'f16' | 'bf16'

/** `Float16Array`, where the runtime has it. */
export interface Float16ArrayLike extends ArrayBufferView {
  readonly BYTES_PER_ELEMENT: number
  readonly length: number
  readonly [Symbol.toStringTag]: 'Float16Array'
}

interface DTypeRow {
  /** Its number at the border with the addon. */
  readonly code: number
  readonly bytes: number
  /** The arrays that may hold it. */
  readonly arrays: readonly string[]
  /** Its name in onnxruntime. */
  readonly alias: string
  make(length: number): TensorData
  over(buffer: ArrayBufferLike, offset: number, length: number): TensorData
}

const codes = binding.dtypeNames()

/** @internal Makes an array; `OUT_OF_MEMORY` with its size when JavaScript cannot. */
export function room<T>(requestedBytes: number, make: () => T): T {
  try {
    return make()
  } catch (cause) {
    if (isKvTideError(cause)) throw cause
    const { usedBytes, limitBytes } = binding.memoryStats()
    const message = `cannot take ${requestedBytes} bytes for an array: it is more than JavaScript can have`
    throw new KvTideError('OUT_OF_MEMORY', message, { requestedBytes, usedBytes, limitBytes }, { cause })
  }
}

const table: Readonly<Record<DType, DTypeRow>> = {
  f32: {
    code: codes.indexOf('f32'),
    bytes: 4,
    arrays: ['Float32Array'],
    alias: 'float32',
    make: length => room(4 * length, () => new Float32Array(length)),
    over: (buffer, offset, length) => new Float32Array(buffer, offset, length),
  },
  f16: {
    code: codes.indexOf('f16'),
    bytes: 2,
    arrays: ['Uint16Array', 'Float16Array'],
    alias: 'float16',
    make: length => room(2 * length, () => new Uint16Array(length)),
    over: (buffer, offset, length) => new Uint16Array(buffer, offset, length),
  },
  bf16: {
    code: codes.indexOf('bf16'),
    bytes: 2,
    arrays: ['Uint16Array'],
    alias: 'bfloat16',
    make: length => room(2 * length, () => new Uint16Array(length)),
    over: (buffer, offset, length) => new Uint16Array(buffer, offset, length),
  },
  u8: {
    code: codes.indexOf('u8'),
    bytes: 1,
    arrays: ['Uint8Array'],
    alias: 'uint8',
    make: length => room(length, () => new Uint8Array(length)),
    over: (buffer, offset, length) => new Uint8Array(buffer, offset, length),
  },
}

const names = Object.keys(table) as DType[]

/** The dtypes that each kind of array may hold. */
const namesByArray: ReadonlyMap<string, readonly DType[]> = new Map(
  names.flatMap(name => table[name].arrays).map(kind => [kind, names.filter(name => table[name].arrays.includes(kind))]),
)

/** @internal The dtype of a number at the border with the addon. */
export function dtypeOfCode(code: number): DType {
  return codes[code] as DType
}

/** @internal */
export function dtypeRow(dtype: DType): DTypeRow {
  return table[dtype]
}

/** @internal A dtype by its name, or by onnxruntime's. */
export function checkDType(argument: string, value: unknown): DType {
  const found = names.find(name => name === value || table[name].alias === value)
  if (found === undefined) throw invalid(argument, value, `one of ${names.join(', ')}`)
  return found
}

/** @internal The dtype of data in an array of this kind. Half floats as bits have to be named. */
export function dtypeOfArray(argument: string, kind: string, named: DType | undefined): DType {
  if (named !== undefined) {
    if (table[named].arrays.includes(kind)) return named
    const expected = table[named].arrays.join(' or ')
    throw new KvTideError('DTYPE_MISMATCH', `${argument} is a ${kind}, expected ${expected} for ${named}`, {
      argument,
      value: kind,
      expected,
    })
  }
  const fitting = namesByArray.get(kind) ?? []
  if (fitting.length === 1) return fitting[0] as DType
  if (kind === 'Float16Array') return 'f16'
  if (fitting.length > 1) throw invalid('dtype', named, `${fitting.join(' or ')}, which a ${kind} may hold both`)
  throw invalid(argument, kind, 'a Float32Array, Uint16Array, Uint8Array or Float16Array')
}

/** Numbers of one description at the border with the addon. */
export const META: number = 6 + RANK_MAX

/** Where the addon writes what it shows, behind the descriptions of K and V: a kind and 10 numbers. */
export const SHOWN: number = 2 * META

/** The descriptions of K and V, and what the addon shows. The addon reads it within a call, so one array serves all calls. */
export const meta: Float64Array = new Float64Array(SHOWN + 11)

/** A typed array, and how the addon is to read it. */
export class HostArray {
  readonly array: object
  readonly dtype: number
  readonly dims: readonly number[]
  bshd = false
  range: readonly [start: number, end: number] | undefined

  constructor(array: object, dtype: number, dims: readonly number[]) {
    this.array = array
    this.dtype = dtype
    this.dims = dims
  }

  /** Writes its description to `into` from `at` on. Returns the array, which crosses to the addon. */
  describe(into: Float64Array, at: number): object {
    into[at] = this.dtype
    into[at + 1] = this.bshd ? 1 : 0
    into[at + 2] = this.range === undefined ? 0 : 1
    into[at + 3] = this.range?.[0] ?? 0
    into[at + 4] = this.range?.[1] ?? 0
    into[at + 5] = this.dims.length
    for (let axis = 0; axis < this.dims.length; axis++) into[at + 6 + axis] = this.dims[axis] as number
    return this.array
  }
}

/** A typed array of this shape, refused where its kind or its length does not fit. */
export function readArray(argument: string, data: unknown, shape: readonly number[], named: DType | undefined): HostArray {
  const kind = arrayKind(data)
  if (kind === undefined) throw invalid(argument, data, 'a Float32Array, Uint16Array, Uint8Array or Float16Array')
  const dtype = dtypeOfArray(argument, kind, named)
  const row = dtypeRow(dtype)
  const array = typedArray<TensorData | Float16ArrayLike>(argument, data, row.arrays)
  const length = arrayLength(array)
  const elements = shape.reduce((product, size) => product * size, 1)
  if (length !== elements) {
    const expected = `${length} elements, as ${argument} has`
    throw new KvTideError('SHAPE_MISMATCH', `shape [${shape.join(', ')}] has ${elements} elements, expected ${expected}`, {
      argument: 'shape',
      value: shape,
      expected,
    })
  }
  return new HostArray(kind === 'Float16Array' ? asBits(array) : array, row.code, shape)
}
