// Functions that run between two steps of a scheduler.
//
//     step | function, function | step          no step begins before the functions have ended
//
// A call inside such a function that waits for a step would wait forever. It is recognised by its async context, so that calls from elsewhere merely wait. A function
// that calls `between` of another model and waits for it passes its context on.
import { AsyncLocalStorage } from 'node:async_hooks'

import { KvTideError } from '../errors/errors.js'

/** A function that is running. */
interface Running {
  /** The functions that it belongs to; `undefined` once it has ended: promises that it left pending may use the model again. */
  owner: Between | undefined
  /** The function that has called `between`, if one has. */
  readonly outer: Running | undefined
}

const running = new AsyncLocalStorage<Running>()
let calls = 0

/** @internal The functions that wait for the end of a scheduler's step, and those that run. */
export class Between {
  #waiting: (() => Promise<void>)[] = []
  #isRunning = false

  get isEmpty(): boolean {
    return this.#waiting.length === 0
  }

  /** True while a function runs: no step is being computed, and none begins. */
  get isRunning(): boolean {
    return this.#isRunning
  }

  /** True inside a function of this scheduler. */
  get isInside(): boolean {
    for (let at = running.getStore(); at !== undefined; at = at.outer) if (at.owner === this) return true
    return false
  }

  /** Refuses a call that waits for a step, inside a function of this scheduler. */
  check(call: string): void {
    if (!this.isInside) return
    throw new KvTideError(
      'BUSY',
      `a function passed to \`between\` cannot ${call} of the same model, because no step begins before it ends`,
      {},
    )
  }

  /** Adds a function. Returns its result once {@link run} has called it. */
  add<R>(call: () => R | Promise<R>): Promise<R> {
    const outer = active()
    return new Promise((resolve, reject) => {
      this.#waiting.push(async () => {
        const store: Running = { owner: this, outer }
        calls += 1
        try {
          resolve(await running.run(store, call))
        } catch (error) {
          reject(error)
        } finally {
          store.owner = undefined
          calls -= 1
          // While AsyncLocalStorage is in use, all promises cost more.
          if (calls === 0) running.disable()
        }
      })
    })
  }

  /** Runs all functions that wait, one after the other. */
  async run(): Promise<void> {
    this.#isRunning = true
    for (const call of this.#waiting.splice(0)) await call()
    this.#isRunning = false
  }
}

/** @internal Makes a call that belongs to none of these functions, even if one of them causes it. */
export function outside<R>(call: () => R): R {
  return running.exit(call)
}

/** The innermost function that has not ended. */
function active(): Running | undefined {
  let at = running.getStore()
  while (at !== undefined && at.owner === undefined) at = at.outer
  return at
}
