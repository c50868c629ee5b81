// Every export of kvtide/text and every member with every wrong value: a coded error, and nothing has changed.
import test from 'ava'

import * as text from '../../text.js'
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
import { offline, streamRows, textLoadRows, textRows } from '../support/arguments/rows-text.js'
import { onnxTest } from '../support/onnx/available.js'

inOwnFolder()
offline()

const rows = [...textRows, ...streamRows]

test('the table has a row for every export and every member, and no other', t => {
  const named = [...textRows, ...textLoadRows].map(row => row.name)
  t.deepEqual([...new Set(named)].toSorted(), everything(text).toSorted())
})

test('every row works with the values that it calls right', async t => {
  await works(t, rows, name => name.startsWith('new '))
})

onnxTest('a model is loaded with the values that are right', async t => {
  await works(t, textLoadRows, () => false)
})

test('a wrong argument is refused with its code, and nothing has changed', async t => {
  passed(t, await wrongArguments(rows))
})

onnxTest('a model that is loaded in a wrong way is refused with its code', async t => {
  passed(t, await wrongArguments(textLoadRows))
})

test('a missing argument is a wrong one', async t => {
  passed(t, await missingArguments([...rows, ...textLoadRows]))
})

test('a member called on something else is refused', async t => {
  passed(t, await strangeThis(rows, false))
})

test('a member called on an object that was disposed of is refused', async t => {
  passed(t, await disposedThis(rows.filter(({ name }) => !name.startsWith('TextGeneration'))))
})

test('every option is read once, also through a proxy', async t => {
  await readOnce(t, rows)
})
