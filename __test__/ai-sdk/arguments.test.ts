// Every export of kvtide-ai-sdk and every member with every wrong value: an error of the AI SDK, whose cause is a coded error.
import test from 'ava'

import * as sdk from '../../packages/ai-sdk/index.js'
import { missingArguments, passed, readOnce, strangeThis, works, wrongArguments } from '../support/arguments/checks.js'
import { everything } from '../support/arguments/row.js'
import { aiSdkRows, callRows, disposeModels } from '../support/arguments/rows-ai-sdk.js'
import { onnxTest } from '../support/onnx/available.js'

test.after.always(disposeModels)

test('the table has a row for every export and every member, and no other', t => {
  const names = [...aiSdkRows, ...callRows].map(row => row.name)
  t.deepEqual([...new Set(names)].toSorted(), everything(sdk).toSorted())
})

test('every row works with the values that it calls right', async t => {
  await works(t, aiSdkRows, name => name.startsWith('new '))
})

onnxTest('every call works with the values that are right', async t => {
  await works(t, callRows, () => false)
})

test('a wrong argument is refused with its code, and nothing has changed', async t => {
  passed(t, await wrongArguments(aiSdkRows))
})

onnxTest('a call with a wrong option is refused with its code', async t => {
  passed(t, await wrongArguments(callRows))
})

test('a missing argument is a wrong one', async t => {
  passed(t, await missingArguments([...aiSdkRows, ...callRows]))
})

test('a member called on something else is refused', async t => {
  passed(t, await strangeThis(callRows, false))
})

onnxTest('every option is read once, also through a proxy', async t => {
  await readOnce(t, callRows)
})
