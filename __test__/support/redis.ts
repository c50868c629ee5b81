import test from 'ava'

import { missing } from '../../bench/workloads/redis.js'

export { freePort, Redis, signal } from '../../bench/workloads/redis.js'

/** A test that needs Redis or Valkey: SKIPPED by name where neither is installed. */
export const withRedis: typeof test = missing === undefined ? test : (test.skip as typeof test)
if (missing !== undefined) console.warn(`SKIPPED: ${missing}`)
