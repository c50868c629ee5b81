// A router finds the blocks of a model by what the model says of itself, also in another process: `cache.form`, and the key that both have.
import { setTimeout } from 'node:timers/promises'

import test from 'ava'

import { type CacheForm, PagedKvCache, PrefixNamer, PrefixRouter, publishEvents } from '../../index.js'
import { type BackendName, OnnxModel } from '../../onnx.js'
import { references } from '../support/llama/references.js'
import { promptOf } from '../support/onnx/chat.js'
import { F16, F32, graphFile, INT4 } from '../support/onnx/paged-graph.js'

const prefixKey = new Uint8Array(32).fill(7)
const CACHE = { memoryBytes: 2 ** 23, blockSize: 4, events: 10_000, prefixKey }
const LOOPBACK = { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' }

/** The longest of the references' prompts. */
const [tokens] = Object.keys(references.prompts)
  .map(promptOf)
  .sort((one, other) => other.length - one.length) as [number[]]

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  for (const [name, cache] of [
    [F32[0] as string, CACHE],
    [F16, backend === 'plain' ? CACHE : ({ ...CACHE, keyFormat: 'q8', valueFormat: 'q8' } as const)],
    [INT4, { ...CACHE, namespace: 'mine' }],
  ] as const) {
    test(`${backend}, ${name}: what a model computes is found by its form`, async t => {
      await using model = await OnnxModel.load(graphFile(name), { threads: 2, backend, cache })
      using published = await publishEvents(model.cache, LOOPBACK)
      using router = new PrefixRouter()
      router.addWorker('idle')
      router.addWorker('model')
      router.follow('model', { endpoint: published.endpoint, replayEndpoint: published.replayEndpoint as string })
      // As a message has it.
      const form = JSON.parse(JSON.stringify(model.cache.form)) as CacheForm
      using namer = new PrefixNamer({ ...form, prefixKey })
      const keys = namer.keys(tokens, { salt: 'tenant' })
      t.deepEqual(keys, model.cache.keys(tokens, { salt: 'tenant' }))
      t.true(keys.length >= 2)
      t.is(router.route(keys)?.blocks, 0)
      using sequence = model.open({ tokens, salt: 'tenant' })
      await model.run([{ sequence }])
      for (let turn = 0; turn < 3000 && router.route(keys)?.blocks !== keys.length; turn++) await setTimeout(10)
      t.deepEqual(router.route(keys), { worker: 'model', blocks: keys.length })
      t.is(router.route(namer.keys(tokens))?.blocks, 0, 'without the salt')
      t.is(model.namespace, form.namespace)
      t.is(model.namespace === 'mine', name === INT4)
    })
  }
}

test('the namespace is of the file: the same in every load and every way to run it, and another for another file', async t => {
  const namespaces = new Map<string, Set<string>>()
  for (const name of [...F32, F16, INT4]) {
    for (const backend of ['graph', 'plain'] satisfies BackendName[]) {
      await using model = await OnnxModel.load(graphFile(name), {
        threads: 1,
        backend,
        cache: { memoryBytes: 2 ** 23 },
      })
      t.regex(model.namespace, /^\S{16,}$/)
      namespaces.set(name, (namespaces.get(name) ?? new Set()).add(model.namespace))
    }
  }
  t.true([...namespaces.values()].every(of => of.size === 1))
  t.is(new Set([...namespaces.values()].flatMap(of => [...of])).size, namespaces.size)
})

test('a cache of the same form finds the blocks of a model by the same names', async t => {
  await using model = await OnnxModel.load(graphFile(F32[0] as string), { threads: 1, cache: CACHE })
  using cache = new PagedKvCache({ ...model.cache.form, prefixKey, capacity: 8 })
  t.deepEqual(cache.keys(tokens), model.cache.keys(tokens))
  t.deepEqual(cache.form, model.cache.form)
  t.true(Object.isFrozen(cache.form) && Object.isFrozen(cache.form.model.layers))
})
