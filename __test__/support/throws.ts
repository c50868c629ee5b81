import type { ExecutionContext } from 'ava'

import { isKvTideError, KvTideError, type AnyKvTideError, type ErrorCode } from '../../index.js'

/** Returns the error that `call` throws, and checks that it is a complete error of this package. */
export function refusal(t: ExecutionContext, call: () => unknown, what = ''): AnyKvTideError | undefined {
  try {
    const returned = call()
    t.fail(`${what}: it returned ${String(Object.prototype.toString.call(returned))}`)
  } catch (error) {
    if (!isKvTideError(error)) {
      t.fail(`${what}: it threw ${String(error)}, which has no code`)
      return undefined
    }
    t.true(error instanceof KvTideError && error instanceof Error, what)
    t.not(error.message, '', what)
    t.is(typeof error.details, 'object', what)
    t.true(error.stack?.startsWith(`KvTideError [${error.code}]: `), what)
    return error
  }
  return undefined
}

/** Checks that `call` throws `code`, and these `details` if they are given. */
export function throwsCode<C extends ErrorCode>(
  t: ExecutionContext,
  code: C,
  call: () => unknown,
  details?: Extract<AnyKvTideError, { code: C }>['details'],
): Extract<AnyKvTideError, { code: C }> {
  const error = refusal(t, call, code)
  t.is(error?.code, code, error?.message)
  if (details !== undefined) t.deepEqual(error?.details, details as never)
  return error as Extract<AnyKvTideError, { code: C }>
}

/** Returns the error that a promise is rejected with, and checks its code. */
export async function rejected<C extends ErrorCode>(
  promise: Promise<unknown>,
  code: C,
): Promise<Extract<AnyKvTideError, { code: C }>> {
  try {
    await promise
  } catch (error) {
    if (isKvTideError(error) && error.code === code) return error as Extract<AnyKvTideError, { code: C }>
    throw error
  }
  throw new Error(`it was not refused with ${code}`)
}
