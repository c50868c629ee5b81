// Abort signals: connects an AbortSignal to a flag that native work polls. Its getters are called through the prototype, which a caller cannot override.
import type { NativeStop } from '#binding'

import { binding } from '../loading/binding.js'
import { abortedBy, invalid, isKvTideError } from '../errors/errors.js'

/** Options of calls that run off the main thread. */
export interface AsyncOptions {
  /** Aborts the call: its promise is rejected with `ABORTED`, and the signal's reason as the cause. */
  readonly signal?: AbortSignal
}

const isAborted = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'aborted')?.get as (this: unknown) => boolean
const { addEventListener, removeEventListener } = EventTarget.prototype

/** True if a signal was aborted; `undefined` for a value that is not a signal. */
function aborted(signal: unknown): boolean | undefined {
  try {
    return Reflect.apply(isAborted, signal, [])
  } catch {
    return undefined
  }
}

/** @internal True if a value is an AbortSignal. */
export function isAbortSignal(value: unknown): value is AbortSignal {
  return aborted(value) !== undefined
}

/** @internal The caller's signal, connected to a native flag that the addon polls. */
export class StopSignal {
  readonly #signal: AbortSignal
  readonly #native: NativeStop = new binding.NativeStop()
  /** Functions that are called when the signal is aborted. */
  readonly listeners: Set<() => void> = new Set()
  readonly #listener = (): void => {
    this.#native.stop()
    for (const listener of this.listeners) listener()
  }

  private constructor(signal: AbortSignal) {
    this.#signal = signal
    Reflect.apply(addEventListener, signal, ['abort', this.#listener, { once: true }])
  }

  /** Runs work that a signal may abort, and rejects with `ABORTED` if it did. An already aborted signal is refused at once. */
  static async guard<T>(signal: unknown, work: (stop: StopSignal | undefined) => Promise<T>): Promise<T> {
    const stop = StopSignal.#of(signal)
    try {
      return await work(stop)
    } catch (error) {
      throw stop !== undefined && isKvTideError(error) && error.code === 'ABORTED' ? abortedBy(stop.#signal) : error
    } finally {
      if (stop !== undefined) Reflect.apply(removeEventListener, stop.#signal, ['abort', stop.#listener])
    }
  }

  static #of(signal: unknown): StopSignal | undefined {
    if (signal === undefined) return undefined
    const ended = aborted(signal)
    if (ended === undefined) throw invalid('signal', signal, 'an AbortSignal')
    if (ended) throw abortedBy(signal as AbortSignal)
    return new StopSignal(signal as AbortSignal)
  }

  /** The native flag that the addon polls. */
  get native(): NativeStop {
    return this.#native
  }

  /** True if the signal was aborted. */
  isAborted(): boolean {
    return aborted(this.#signal) === true
  }

  /** Throws `ABORTED` if the signal was aborted. */
  check(): void {
    if (this.isAborted()) throw abortedBy(this.#signal)
  }
}
