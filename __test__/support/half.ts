import type { DType } from '../../index.js'

const buffer = new DataView(new ArrayBuffer(4))

/** The bits of the nearest bf16. */
function toBf16(value: number): number {
  buffer.setFloat32(0, value)
  const bits = buffer.getUint32(0)
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16
}

/** Converts the bits of a bf16 to a number. */
function fromBf16(bits: number): number {
  buffer.setUint32(0, bits << 16)
  return buffer.getFloat32(0)
}

/** Converts the bits of a half float to a number. */
function fromF16(bits: number): number {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >>> 10) & 31, bits & 0x3ff]
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15)
}

/** Returns the bits of a half float near a number that is neither tiny nor huge. */
function toF16(value: number): number {
  if (Math.abs(value) < 2 ** -14) return value < 0 ? 0x8000 : 0
  const exponent = Math.floor(Math.log2(Math.abs(value)))
  const fraction = Math.min(1023, Math.round((Math.abs(value) / 2 ** exponent - 1) * 1024))
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | fraction
}

/** Converts numbers to elements of a float type. */
export function narrow(dtype: DType, values: readonly number[] | Float32Array): Float32Array | Uint16Array {
  return dtype === 'f32' ? Float32Array.from(values) : Uint16Array.from(values, dtype === 'f16' ? toF16 : toBf16)
}

/** Converts elements of a float type to numbers. */
export function widen(dtype: DType, elements: ArrayLike<number>): number[] {
  return Array.from(elements, dtype === 'f32' ? value => value : dtype === 'f16' ? fromF16 : fromBf16)
}
