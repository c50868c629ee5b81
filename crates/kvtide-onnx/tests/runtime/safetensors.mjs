// Reads references of models.
import { readFileSync } from 'node:fs'

/** Tensors of a safetensors file, as floats. */
export function tensors(path) {
  const bytes = readFileSync(path)
  const head = Number(bytes.readBigUInt64LE(0))
  const entries = JSON.parse(bytes.toString('utf8', 8, 8 + head))
  return name => {
    const [start, end] = entries[name].data_offsets
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset + 8 + head + start, bytes.byteOffset + 8 + head + end))
  }
}
