import type { NativeStop } from '#binding'

import { binding } from '../loading/binding.js'
import { invalid, isKvTideError, KvTideError } from './errors.js'

/** Options of calls that work off the main thread. */
export interface AsyncOptions {
  /** Ends the work early: the promise is then rejected with `ABORTED`, and the signal's reason as its cause. */
  readonly signal?: AbortSignal
}

const isAborted = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'aborted')?.get as (this: unknown) => boolean
const { addEventListener, removeEventListener } = EventTarget.prototype

/** True when a signal was aborted; nothing for a value that is no signal. */
function aborted(signal: unknown): boolean | undefined {
  try {
    return Reflect.apply(isAborted, signal, [])
  } catch {
    return undefined
  }
}

/** @internal Whether a value is a signal. */
export function isAbortSignal(value: unknown): value is AbortSignal {
  return aborted(value) !== undefined
}

/** @internal The caller's signal, and how the addon hears of it. */
export class StopSignal {
  readonly #signal: AbortSignal
  readonly #native: NativeStop = new binding.NativeStop()
  readonly #listener = (): void => this.#native.stop()

  private constructor(signal: AbortSignal) {
    this.#signal = signal
    Reflect.apply(addEventListener, signal, ['abort', this.#listener, { once: true }])
  }

  /** Does work that a signal may end, and rejects with `ABORTED` when it did. A signal that was aborted before is refused at once. */
  static async guard<T>(signal: unknown, work: (stop: StopSignal | undefined) => Promise<T>): Promise<T> {
    const stop = StopSignal.#of(signal)
    try {
      return await work(stop)
    } catch (error) {
      throw stop !== undefined && isKvTideError(error) && error.code === 'ABORTED' ? refusal(stop.#signal) : error
    } finally {
      if (stop !== undefined) Reflect.apply(removeEventListener, stop.#signal, ['abort', stop.#listener])
    }
  }

  static #of(signal: unknown): StopSignal | undefined {
    if (signal === undefined) return undefined
    const ended = aborted(signal)
    if (ended === undefined) throw invalid('signal', signal, 'an AbortSignal')
    if (ended) throw refusal(signal as AbortSignal)
    return new StopSignal(signal as AbortSignal)
  }

  /** What the addon polls. */
  get native(): NativeStop {
    return this.#native
  }

  /** Refuses to go on once the signal was aborted. */
  check(): void {
    if (aborted(this.#signal) === true) throw refusal(this.#signal)
  }
}

function refusal(signal: AbortSignal): KvTideError<'ABORTED'> {
  return new KvTideError('ABORTED', 'aborted by its signal', {}, { cause: signal.reason })
}
