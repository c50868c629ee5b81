/** A seeded random number generator. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  /** Returns a number between 0 and 1, excluding both. */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return (((mixed ^ (mixed >>> 14)) >>> 0) + 0.5) / 2 ** 32
  }

  /** Returns a normally distributed number, of mean 0 and deviation 1. */
  normal(): number {
    return Math.sqrt(-2 * Math.log(this.uniform())) * Math.cos(2 * Math.PI * this.uniform())
  }

  /** Returns a list of them, times `deviation`. */
  normals(count: number, deviation = 1): Float32Array {
    return Float32Array.from({ length: count }, () => deviation * this.normal())
  }
}
