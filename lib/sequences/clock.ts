import { invalid } from '../border/errors.js'

/** A time or a duration in whole milliseconds; a fraction is cut off. */
export function milliseconds(argument: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER) return Math.floor(value)
  throw invalid(argument, value, `milliseconds from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** @internal The clock of a cache, read only while a time limit is in use. */
export class Clock {
  readonly #now: () => unknown
  #latest: number | undefined

  constructor(now: () => unknown) {
    this.#now = now
  }

  /** The time now. */
  read(): number {
    const now = this.#now
    return milliseconds('now()', now())
  }

  /** Notes a limit: until then the cache has to know the time. */
  limit(until: number): void {
    this.#latest = Math.max(this.#latest ?? 0, until)
  }

  /** The time now, if a limit needs it. */
  due(): number | undefined {
    if (this.#latest === undefined) return undefined
    const now = this.read()
    if (now >= this.#latest) this.#latest = undefined
    return now
  }
}
