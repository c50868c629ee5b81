import { PagedKvCache } from '../../../index.js'
import * as inspector from '../../../inspector.js'
import { but, count, never, optional, options, text } from './kinds.js'
import { free, Members, param, type Row, rowsOf } from './row.js'
import { ANY } from './rows-contiguous.js'

const cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 1 })
const made: inspector.Inspector[] = []

function inspected(): inspector.Inspector {
  const own = inspector.inspect(cache)
  made.push(own)
  return own
}

/** Stops the servers that calls have started. */
export async function closeAll(): Promise<void> {
  await Promise.all(made.splice(0).map(one => one.close()))
}

/** A closed inspector has no server, and may listen again. */
const always = { disposed: 'ok', foreign: 'INVALID_ARGUMENT' }
const members = new Members('Inspector', inspected)
  .special(
    'listen',
    always,
    param('port', optional(count), () => 0),
  )
  .special('metrics', always)
  .special('close', always)
  .special('[asyncDispose]', always)

/** Rows of kvtide/inspector. */
export const inspectorRows: readonly Row[] = rowsOf(inspector, [
  free(
    'new Inspector',
    param('token', never, () => undefined),
    param('cache', never, () => undefined),
    param('shared', never, () => undefined),
    param('options', never, () => undefined),
  ),
  ...members.rows,
  free(
    'inspect',
    param('cache', { legal: {} }, () => cache),
    param(
      'options',
      options(() => ({}), { name: optional(but(text, { '"3"': 'ok' })), token: optional(text) }, ANY),
      () => ({}),
    ),
  ),
])
