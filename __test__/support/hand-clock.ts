import type { ExecutionContext } from 'ava'

import { timers, type Timers } from '../../lib/border/timers.js'

interface Sleeper {
  readonly until: number
  wake(): void
}

/** A clock that only the test moves, for tests that run one at a time (`test.serial`). */
export class HandClock implements Timers {
  #now = 0
  readonly #sleepers = new Set<Sleeper>()
  #changed = (): void => {}

  /** Replaces the system's clock until the test ends. */
  static inPlace(t: ExecutionContext): HandClock {
    const clock = new HandClock()
    const system = { ...timers }
    Object.assign(timers, { now: () => clock.now(), sleep: clock.sleep.bind(clock) } satisfies Timers)
    t.teardown(() => Object.assign(timers, system))
    return clock
  }

  now(): number {
    return this.#now
  }

  sleep<T>(milliseconds: number, value: T, { signal }: { readonly signal?: AbortSignal } = {}): Promise<T> {
    return new Promise((resolve, reject) => {
      const sleeper = { until: this.#now + milliseconds, wake: () => resolve(value) }
      this.#sleepers.add(sleeper)
      signal?.addEventListener('abort', () => {
        this.#sleepers.delete(sleeper)
        reject(signal.reason as Error)
      })
      this.#changed()
    })
  }

  /** Resolves once there is one sleeper per number, each sleeping for that many milliseconds from now. */
  async asleep(...milliseconds: readonly number[]): Promise<void> {
    const expected = [...milliseconds].sort((one, other) => one - other).join()
    const sleeping = (): string =>
      [...this.#sleepers]
        .map(({ until }) => until - this.#now)
        .sort((one, other) => one - other)
        .join()
    while (sleeping() !== expected)
      await new Promise<void>(resolve => {
        this.#changed = resolve
      })
  }

  /** Moves the clock, and returns the number of sleepers that woke up. */
  advance(milliseconds: number): number {
    this.#now += milliseconds
    const due = [...this.#sleepers]
      .filter(({ until }) => until <= this.#now)
      .sort((one, other) => one.until - other.until)
    for (const sleeper of due) {
      this.#sleepers.delete(sleeper)
      sleeper.wake()
    }
    return due.length
  }
}
