import test from 'ava'

/** Returns `test`, or a form of it that is reported as SKIPPED if a server is missing; `missing` is the reason. */
export function needing(missing: string | undefined): typeof test {
  if (missing === undefined) return test
  console.warn(`SKIPPED: ${missing}`)
  return Object.assign((...given: Parameters<typeof test.skip>) => test.skip(...given), {
    serial: test.serial.skip,
  }) as unknown as typeof test
}
