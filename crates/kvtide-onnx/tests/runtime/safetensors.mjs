// Reads references of models.
import { readFileSync } from 'node:fs'

/** Tensors of a safetensors file by name: their floats and shapes. */
export function arrays(path) {
  const bytes = readFileSync(path)
  const head = Number(bytes.readBigUInt64LE(0))
  const entries = JSON.parse(bytes.toString('utf8', 8, 8 + head))
  const first = bytes.byteOffset + 8 + head
  const read = ([start, end]) => new Float32Array(bytes.buffer.slice(first + start, first + end))
  return new Map(
    Object.entries(entries).map(([name, { data_offsets, shape }]) => [name, { data: read(data_offsets), shape }]),
  )
}

/** A function that returns the floats of a tensor. */
export function tensors(path) {
  const found = arrays(path)
  return name => found.get(name).data
}
