// Rows that follow from the tenant and all tokens so far: a row that was computed for another prompt, or for another tenant, differs.

export const LAYERS = 2
export const DIM = 16

function mix(number: number): number {
  const once = Math.imul(number ^ (number >>> 15), 0x2c1b3c6d)
  const twice = Math.imul(once ^ (once >>> 12), 0x297a2d39)
  return (twice ^ (twice >>> 15)) >>> 0
}

/** A random number generator: a seed gives the same numbers everywhere. */
export class Chance {
  #state: number

  constructor(seed: number) {
    this.#state = mix(seed)
  }

  below(limit: number): number {
    this.#state = (Math.imul(this.#state, 1664525) + 1013904223) >>> 0
    return Math.floor((this.#state / 2 ** 32) * limit)
  }

  once(every: number): boolean {
    return this.below(every) === 0
  }

  of<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T
  }
}

/** K (part 0) or V (part 1) of tokens from a position on, `[layers, 1, n, dim]`. */
export function rowsOf(
  tenant: number,
  tokens: readonly number[],
  from: number,
  part: number,
): { data: Float32Array; shape: number[] } {
  let before = 1 + tenant
  const states = tokens.map(token => (before = mix(before ^ Math.imul(token + 1, 0x9e3779b1)))).slice(from)
  const data = new Float32Array(LAYERS * states.length * DIM)
  let at = 0
  for (let layer = 0; layer < LAYERS; layer++)
    for (const state of states)
      for (let place = 0; place < DIM; place++) data[at++] = mix(state ^ (layer * 64 + place * 2 + part)) >>> 12
  return { data, shape: [LAYERS, 1, states.length, DIM] }
}
