import { invalid } from '../border/errors.js'

/** A time in milliseconds, or a number of them: whole, what is behind the point is cut. */
export function milliseconds(argument: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER) return Math.floor(value)
  throw invalid(argument, value, `milliseconds from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** @internal The time of a cache, asked for only while limits are in use. */
export class Clock {
  readonly #now: () => unknown
  #latest: number | undefined

  constructor(now: () => unknown) {
    this.#now = now
  }

  /** What time it is. */
  read(): number {
    const now = this.#now
    return milliseconds('now()', now())
  }

  /** Notes a limit, up to which the time is to be told. */
  limit(until: number): void {
    this.#latest = Math.max(this.#latest ?? 0, until)
  }

  /** The time, if a limit waits for it. */
  due(): number | undefined {
    if (this.#latest === undefined) return undefined
    const now = this.read()
    if (now >= this.#latest) this.#latest = undefined
    return now
  }
}
