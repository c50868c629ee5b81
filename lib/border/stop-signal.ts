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

/** True when a signal has ended what it belongs to; nothing for what is no signal. */
function aborted(signal: unknown): boolean | undefined {
  try {
    return Reflect.apply(isAborted, signal, [])
  } catch {
    return undefined
  }
}

/** The caller's signal, and how the addon hears of it. */
export class StopSignal {
  readonly #signal: AbortSignal
  readonly #native: NativeStop = new binding.NativeStop()
  readonly #listener = (): void => this.#native.stop()

  private constructor(signal: AbortSignal) {
    this.#signal = signal
    Reflect.apply(addEventListener, signal, ['abort', this.#listener, { once: true }])
  }

  /** Listens to a signal, unless it has ended things already. */
  static of(argument: string, signal: unknown): StopSignal | undefined {
    if (signal === undefined) return undefined
    const ended = aborted(signal)
    if (ended === undefined) throw invalid(argument, signal, 'an AbortSignal')
    if (ended) throw refusal(signal as AbortSignal)
    return new StopSignal(signal as AbortSignal)
  }

  /** What the addon polls. */
  get native(): NativeStop {
    return this.#native
  }

  /** Refuses to go on once the signal has ended the work. */
  check(): void {
    if (aborted(this.#signal) === true) throw refusal(this.#signal)
  }

  /** The error to throw for `error`: with the signal's reason, when that is why. */
  explain(error: unknown): unknown {
    return isKvTideError(error) && error.code === 'ABORTED' ? refusal(this.#signal) : error
  }

  /** Listens no more. */
  release(): void {
    Reflect.apply(removeEventListener, this.#signal, ['abort', this.#listener])
  }
}

function refusal(signal: AbortSignal): KvTideError<'ABORTED'> {
  return new KvTideError('ABORTED', 'aborted by its signal', {}, { cause: signal.reason })
}
