// Every export of kvtide/inspector and every member with every wrong value: a coded error, and nothing has changed.
import test from 'ava'

import { PagedKvCache } from '../../index.js'
import * as inspector from '../../inspector.js'
import {
  ending,
  missingArguments,
  passed,
  readOnce,
  strangeThis,
  works,
  wrongArguments,
} from '../support/arguments/checks.js'
import { everything } from '../support/arguments/row.js'
import { closeAll, inspectorRows as rows } from '../support/arguments/rows-inspector.js'

test.afterEach.always(closeAll)

test.serial('the table has a row for every export and every member, and no other', t => {
  t.deepEqual([...new Set(rows.map(row => row.name))].toSorted(), everything(inspector).toSorted())
})

test.serial('every row works with the values that it calls right', async t => {
  await works(t, rows, name => name.startsWith('new '))
})

test.serial('a wrong argument is refused with its code, and nothing has changed', async t => {
  passed(t, await wrongArguments(rows))
})

test.serial('a missing argument is a wrong one', async t => {
  passed(t, await missingArguments(rows))
})

test.serial('a member called on something else is refused', async t => {
  passed(t, await strangeThis(rows, false))
})

test.serial('every option is read once, also through a proxy', async t => {
  await readOnce(t, rows)
})

test.serial('a cache that was disposed of is refused', async t => {
  const cache = new PagedKvCache({ capacity: 8, numLayers: 1, numKvHeads: 1, headDim: 1 })
  await using own = inspector.inspect(cache)
  cache.dispose()
  t.is(await ending(() => inspector.inspect(cache)), 'DISPOSED')
  t.is(await ending(() => own.metrics()), 'DISPOSED')
})
