import type test from 'ava'

import { missing } from '../../scripts/servers/redis.js'
import { needing } from './needing.js'

export { freePort, Redis, signal } from '../../scripts/servers/redis.js'

/** A test that needs Redis or Valkey: reported as SKIPPED if neither is installed. */
export const withRedis: typeof test = needing(missing)
