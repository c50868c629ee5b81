// Every export of kvtide-serve and every member with every wrong value: a coded error, and nothing has changed.
import test from 'ava'
import { OnnxModel } from 'kvtide/onnx'

import * as serve from '../../packages/serve/index.js'
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
import { closeServers, draftRows, serveRows as rows } from '../support/arguments/rows-serve.js'
import { onnxTest } from '../support/onnx/available.js'
import { smallDecoder } from '../support/onnx/small-decoder.js'
import { ScriptedModel } from '../support/serve/scripted-model.js'
import { tinyModel } from '../support/serve/text-server.js'

test.afterEach.always(closeServers)

test.serial('the table has a row for every export and every member, and no other', t => {
  t.deepEqual([...new Set(rows.map(row => row.name))].toSorted(), everything(serve).toSorted())
})

test.serial('every row works with the values that it calls right', async t => {
  await works(t, rows, () => false)
})

test.serial('a wrong argument is refused with its code, and nothing has changed', async t => {
  passed(t, await wrongArguments(rows))
})

onnxTest('a wrong draft is refused when a server is made', async t => {
  await using model = await tinyModel()
  passed(t, await wrongArguments(draftRows(model)))
})

onnxTest('a draft model that cannot be used is refused when a server is made', async t => {
  await using model = await tinyModel()
  const ended = await tinyModel()
  await ended.dispose()
  const small = { threads: 1, cache: { capacity: 16 } }
  await using other = await OnnxModel.load(smallDecoder({ vocabulary: 2000 }), small)
  const whisper = '__test__/fixtures/encoder-decoder/whisper/decoder_model_merged.onnx'
  await using encoded = await OnnxModel.load(whisper, small)
  for (const [draft, code] of [
    [ended, 'DISPOSED'],
    [model, 'INVALID_ARGUMENT'],
    [other, 'INVALID_ARGUMENT'],
    [encoded, 'INVALID_ARGUMENT'],
  ] as const)
    for (const given of [draft, { model: draft }])
      t.is(await ending(() => serve.createServer({ model, draft: given }), rows[0]), code)
})

test.serial('a server that listens or was closed does not listen again', async t => {
  for (const [make, close] of [
    [() => serve.createServer({ model: new ScriptedModel().asModel }), 'close'],
    [() => serve.createRouter({ workers: ['http://127.0.0.1:9'] }), 'drain'],
  ] as const) {
    await using server = make()
    await server.listen({ port: 0 })
    t.is(await ending(() => server.listen({ port: 0 }), rows[0]), 'INVALID_ARGUMENT')
    await server[close]()
    t.is(await ending(() => server.listen({ port: 0 }), rows[0]), 'DISPOSED')
    t.is(await ending(() => server.close(), rows[0]), 'ok')
  }
})

test.serial('a port in use, keys and workers that are there twice, and a model that was disposed of', async t => {
  const model = new ScriptedModel().asModel
  await using first = serve.createServer({ model })
  await using second = serve.createServer({ model })
  const port = Number(new URL(await first.listen({ port: 0 })).port)
  t.is(await ending(() => second.listen({ port }), rows[0]), 'INVALID_ARGUMENT')
  t.is(
    await ending(() => serve.createServer({ model, keys: [{ key: 'k' }, { key: 'k' }] }), rows[0]),
    'INVALID_ARGUMENT',
  )
  const workers = ['http://127.0.0.1:9', new URL('http://127.0.0.1:9/v1')]
  t.is(await ending(() => serve.createRouter({ workers }), rows[0]), 'INVALID_ARGUMENT')
  t.is(await ending(() => serve.createRouter({ workers: [] }), rows[0]), 'INVALID_ARGUMENT')
  model.model.cache.dispose()
  t.is(await ending(() => serve.createServer({ model }), rows[0]), 'DISPOSED')
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
