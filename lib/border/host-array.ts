// Element types, and typed arrays as arguments of the addon. An array crosses to the addon together with a description (dtype, layout, range, shape), which
// is written into `meta`, one array that all calls share. So a call allocates no object for the description.
import { binding } from '../loading/binding.js'
import { arrayKind, arrayLength, asBits, RANK_MAX, typedArray } from '../errors/check.js'
import { invalid, isKvTideError, KvTideError } from '../errors/errors.js'

/** Element types of tensors and caches. */
export type DType = 'f32' | 'f16' | 'bf16' | 'u8'

/** Arrays of elements. Half floats (f16, bf16) are stored in a `Uint16Array`, as their bits. */
export type TensorData = Float32Array | Uint16Array | Uint8Array

/** The array type for elements of a dtype. */
export type ArrayOf<D extends DType> = D extends 'f32' ? Float32Array : D extends 'u8' ? Uint8Array : Uint16Array

/** The element type of an array. For a `Uint16Array` it has to be given by name. */
export type DTypeOf<A> = A extends Float32Array ? 'f32' : A extends Uint8Array ? 'u8' : 'f16' | 'bf16'

/** `Float16Array`, if the runtime has it. */
export interface Float16ArrayLike extends ArrayBufferView {
  readonly BYTES_PER_ELEMENT: number
  readonly length: number
  readonly [Symbol.toStringTag]: 'Float16Array'
}

interface DTypeRow {
  /** The number of this dtype in calls of the addon. */
  readonly code: number
  readonly bytes: number
  /** The kinds of arrays that may hold it. */
  readonly arrays: readonly string[]
  /** Its name in onnxruntime. */
  readonly alias: string
  make(length: number): TensorData
  over(buffer: ArrayBufferLike, offset: number, length: number): TensorData
}

const codes = binding.dtypeNames()

/** @internal Allocates an array. Throws `OUT_OF_MEMORY` with its size if JavaScript cannot allocate it. */
export function room<T>(requestedBytes: number, make: () => T): T {
  try {
    return make()
  } catch (cause) {
    if (isKvTideError(cause)) throw cause
    const { usedBytes, limitBytes } = binding.memoryStats()
    const message = `cannot allocate ${requestedBytes} bytes for an array in JavaScript`
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
  names
    .flatMap(name => table[name].arrays)
    .map(kind => [kind, names.filter(name => table[name].arrays.includes(kind))]),
)

/** @internal The dtype of a number in calls of the addon. */
export function dtypeOfCode(code: number): DType {
  return codes[code] as DType
}

/** @internal */
export function dtypeRow(dtype: DType): DTypeRow {
  return table[dtype]
}

/** @internal Checks the name of a dtype, ours or onnxruntime's. */
export function checkDType(argument: string, value: unknown): DType {
  const found = names.find(name => name === value || table[name].alias === value)
  if (found === undefined) throw invalid(argument, value, `one of ${names.join(', ')}`)
  return found
}

/** @internal The dtype of data in an array of this kind. For half floats as bits, the caller has to name it. */
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
  if (fitting.length > 1) throw invalid('dtype', named, `${fitting.join(' or ')}, because a ${kind} may hold either`)
  throw invalid(argument, kind, 'a Float32Array, Uint16Array, Uint8Array or Float16Array')
}

/** The number of numbers in one description. */
export const META: number = 6 + RANK_MAX

/** The place where the addon writes the view that it returns, behind the descriptions of K and V: a kind and 10 numbers. */
export const SHOWN: number = 2 * META

/** The descriptions of K and V, and the returned view. The addon uses the array during a call only, so all calls share it. */
export const meta: Float64Array = new Float64Array(SHOWN + 11)

/** A typed array, with the description that the addon needs to read it. */
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

  /** Writes the description to `into`, starting at `at`. Returns the array, which crosses to the addon. */
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

/** Checks a typed array against a shape. Refuses a wrong kind or length. */
export function readArray(
  argument: string,
  data: unknown,
  shape: readonly number[],
  named: DType | undefined,
): HostArray {
  const kind = arrayKind(data)
  if (kind === undefined) throw invalid(argument, data, 'a Float32Array, Uint16Array, Uint8Array or Float16Array')
  const dtype = dtypeOfArray(argument, kind, named)
  const row = dtypeRow(dtype)
  const array = typedArray<TensorData | Float16ArrayLike>(argument, data, row.arrays)
  const length = arrayLength(array)
  const elements = shape.reduce((product, size) => product * size, 1)
  if (length !== elements) {
    const expected = `${length} elements, as ${argument} has`
    throw new KvTideError(
      'SHAPE_MISMATCH',
      `shape [${shape.join(', ')}] has ${elements} elements, expected ${expected}`,
      { argument: 'shape', value: shape, expected },
    )
  }
  return new HostArray(kind === 'Float16Array' ? asBits(array) : array, row.code, shape)
}
