// Every export of kvtide/transformers and every member with every wrong value: a coded error, and nothing has changed.
import test from 'ava'

import * as transformers from '../../transformers.js'
import {
  disposedThis,
  missingArguments,
  passed,
  readOnce,
  strangeThis,
  works,
  wrongArguments,
} from '../support/arguments/checks.js'
import { inOwnFolder } from '../support/arguments/files.js'
import { everything } from '../support/arguments/row.js'
import { transformersRows as rows } from '../support/arguments/rows-transformers.js'

inOwnFolder()

test('the table has a row for every export and every member, and no other', t => {
  t.deepEqual([...new Set(rows.map(row => row.name))].toSorted(), everything(transformers).toSorted())
})

test('every row works with the values that it calls right', async t => {
  await works(t, rows, name => name.startsWith('new '))
})

test('a wrong argument is refused with its code, and nothing has changed', async t => {
  passed(t, await wrongArguments(rows))
})

test('a missing argument is a wrong one', async t => {
  passed(t, await missingArguments(rows))
})

test('a member called on something else is refused', async t => {
  passed(t, await strangeThis(rows, false))
})

test('a member called on an object that was disposed of is refused', async t => {
  passed(t, await disposedThis(rows))
})

test('every option is read once, also through a proxy', async t => {
  await readOnce(t, rows)
})
