// Errors between threads: their class does not survive `postMessage`, so code, message and details are posted.
import { type ErrorCode, isKvTideError, KvTideError, messageOf } from '../errors/errors.js'

/** @internal An error in the form in which it is posted to another thread. */
export interface CrossedError {
  readonly code: ErrorCode
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
  /** The message of the cause. */
  readonly cause: string | undefined
}

/** @internal Converts an error for another thread. An error that is not of this package becomes `INTERNAL`. */
export function crossed(error: unknown): CrossedError {
  const reason = messageOf(error)
  if (!isKvTideError(error))
    return {
      code: 'INTERNAL',
      message: `internal error: ${reason}`,
      details: { reason },
      cause: error instanceof Error ? error.stack : undefined,
    }
  const { code, message, details, cause } = error
  const plain = Object.fromEntries(
    Object.entries(details).map(([name, value]) => [name, isPlain(value) ? value : String(value)]),
  )
  return { code, message, details: plain, cause: cause === undefined ? undefined : messageOf(cause) }
}

/** @internal Converts the error back on the receiving thread. */
export function uncrossed({ code, message, details, cause }: CrossedError): KvTideError {
  return new KvTideError(code, message, details as never, cause === undefined ? undefined : { cause: new Error(cause) })
}

/** True if a value can be posted unchanged. */
function isPlain(value: unknown): boolean {
  if (Array.isArray(value)) return value.every(isPlain)
  return value === null || !['object', 'function', 'symbol'].includes(typeof value)
}
