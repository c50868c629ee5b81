import { type ErrorCode, isKvTideError, KvTideError } from '../border/errors.js'

/** @internal An error on its way from one thread to another. */
export interface CrossedError {
  readonly code: ErrorCode
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
  /** What the cause says. */
  readonly cause: string | undefined
}

/** @internal An error for another thread. One that is not of this package is `INTERNAL`. */
export function crossed(error: unknown): CrossedError {
  const reason = error instanceof Error ? error.message : String(error)
  if (!isKvTideError(error)) return { code: 'INTERNAL', message: `internal error: ${reason}`, details: { reason }, cause: error instanceof Error ? error.stack : undefined }
  const { code, message, details, cause } = error
  const plain = Object.fromEntries(Object.entries(details).map(([name, value]) => [name, isPlain(value) ? value : String(value)]))
  return { code, message, details: plain, cause: cause === undefined ? undefined : cause instanceof Error ? cause.message : String(cause) }
}

/** @internal The same error on this thread. */
export function uncrossed({ code, message, details, cause }: CrossedError): KvTideError {
  return new KvTideError(code, message, details as never, cause === undefined ? undefined : { cause: new Error(cause) })
}

/** Whether a value crosses as it is. */
function isPlain(value: unknown): boolean {
  if (Array.isArray(value)) return value.every(isPlain)
  return value === null || !['object', 'function', 'symbol'].includes(typeof value)
}
