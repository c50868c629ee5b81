import type test from 'ava'

import { missing } from '../../scripts/servers/dynamo.js'
import { needing } from './needing.js'

export { Indexer } from '../../scripts/servers/dynamo.js'

/** A test that needs Dynamo's indexer: reported as SKIPPED if it is not installed. */
export const withDynamo: typeof test = needing(missing)
