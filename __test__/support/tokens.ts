import { Tensor, type DType, type TensorData } from '../../index.js'

/** The float types of the caches. */
export const FLOATS = ['f32', 'f16', 'bf16'] as const

/** Whole numbers up to 256, which every float type represents exactly, as elements of `dtype`. */
export function elements(dtype: DType, values: readonly number[]): TensorData {
  if (dtype === 'f32') return Float32Array.from(values)
  if (dtype === 'u8') return Uint8Array.from(values)
  return Uint16Array.from(values, value => (dtype === 'bf16' ? bf16(value) : f16(value)))
}

function bits(value: number): number {
  return new Uint32Array(new Float32Array([value]).buffer)[0] as number
}

function bf16(value: number): number {
  return bits(value) >>> 16
}

/** Half floats of numbers that need no rounding and are not subnormal. */
function f16(value: number): number {
  const float = bits(value)
  const exponent = (float >>> 23) & 0xff
  const sign = (float >>> 16) & 0x8000
  return exponent === 0 ? sign : sign | ((exponent - 127 + 15) << 10) | ((float >>> 13) & 0x3ff)
}

/** A tensor `[rows, 1, n, 1]`, each row a list of tokens. */
export function rows(dtype: DType, ...values: readonly (readonly number[])[]): Tensor {
  const length = values[0]?.length ?? 0
  return Tensor.from(elements(dtype, values.flat()), [values.length, 1, length, 1], { dtype })
}

/** The whole numbers from `start` up to `end`, excluding `end`. */
export function span(start: number, end: number): number[] {
  return Array.from({ length: end - start }, (_, place) => start + place)
}

/** A tensor `[1, 1, n, 1]` of the tokens from `start` up to `end`. */
export function tokens(start: number, end: number, dtype: DType = 'f32'): Tensor {
  return rows(dtype, span(start, end))
}

/** A tensor's elements as plain numbers; `null` for `null`. */
export function numbers(tensor: Tensor | null): number[] | null {
  return tensor === null ? null : Array.from(tensor.toFloat32Array())
}

/** A tensor's bytes. */
export function bytes(tensor: Tensor): Uint8Array {
  const { buffer, byteOffset, byteLength } = tensor.toArray()
  return new Uint8Array(buffer, byteOffset, byteLength)
}
