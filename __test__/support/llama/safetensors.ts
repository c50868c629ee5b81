import { readFileSync } from 'node:fs'

/** A tensor of a file. */
export interface Stored {
  readonly shape: readonly number[]
  readonly data: Float32Array
}

interface Entry {
  readonly dtype: string
  readonly shape: readonly number[]
  readonly data_offsets: readonly [number, number]
}

/** The 32-bit floats of a safetensors file, by name. */
export function readSafetensors(url: URL): ReadonlyMap<string, Stored> {
  const file = readFileSync(url)
  const start = 8 + Number(file.readBigUInt64LE(0))
  const header = JSON.parse(file.toString('utf8', 8, start)) as Record<string, Entry>
  const tensors = new Map<string, Stored>()
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    if (dtype !== 'F32') continue
    const [from, to] = data_offsets
    tensors.set(name, {
      shape,
      data: new Float32Array(file.buffer.slice(file.byteOffset + start + from, file.byteOffset + start + to)),
    })
  }
  return tensors
}
