/** Random numbers of a seed. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  /** A whole number from 0 to below `end`. */
  below(end: number): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((this.#state / 2 ** 32) * end)
  }
}

/** A text in pieces of random lengths. */
export function split(random: Random, text: string, most = 5): string[] {
  const pieces: string[] = []
  const characters = [...text]
  for (let place = 0; place < characters.length;) {
    const length = 1 + random.below(most)
    pieces.push(characters.slice(place, place + length).join(''))
    place += length
  }
  return pieces
}
