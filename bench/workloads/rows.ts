// Inputs for the caches, and the same rows in plain typed arrays, as a program without a cache would write them.
import type { HostTensor } from 'kvtide'

export const HEADS = 8
export const HEAD_DIM = 128
export const TOKEN: number = HEADS * HEAD_DIM

export function tokens(count: number): HostTensor & { readonly data: Float32Array } {
  const data = Float32Array.from({ length: count * TOKEN }, (_, index) => (index * 7) % 251)
  return { data, shape: [1, HEADS, count, HEAD_DIM] }
}

/** Rows `[HEADS, slots, HEAD_DIM]` of K and of V. */
export class BareRows {
  readonly slots: number
  readonly parts: readonly [Float32Array, Float32Array]

  constructor(slots: number) {
    this.slots = slots
    this.parts = [new Float32Array(slots * TOKEN), new Float32Array(slots * TOKEN)]
  }

  /** Writes tokens from `slot` on, the same ones to K and V. */
  write(slot: number, data: Float32Array): void {
    const row = data.length / HEADS
    for (const part of this.parts) {
      for (let head = 0; head < HEADS; head++) {
        part.set(data.subarray(head * row, (head + 1) * row), (head * this.slots + slot) * HEAD_DIM)
      }
    }
  }

  shift(): void {
    for (const part of this.parts) {
      for (let head = 0; head < HEADS; head++) {
        const [start, end] = [head * this.slots * HEAD_DIM, (head + 1) * this.slots * HEAD_DIM]
        part.copyWithin(start, start + HEAD_DIM, end)
      }
    }
  }
}
