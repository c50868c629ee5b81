// Layers that attend over the keys and values of another layer: all backends give the same tokens as the unmodified graph, and the cache has pages of the other layer
// only.
import { readFileSync } from 'node:fs'

import { type BackendName, OnnxModel } from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { sharing } from '../support/onnx/changed.js'
import { read } from '../support/onnx/chat.js'
import { graphFile, referenceOf } from '../support/onnx/graphs.js'

const BACKENDS: readonly BackendName[] = ['plain', 'graph', 'parts']
const { prompts } = referenceOf('families/stablelm')

test('layers with the keys and values of another layer give what the unmodified graph gives, in all backends', async t => {
  const whole = readFileSync(graphFile('families/stablelm/optimum'))
  const found: unknown[] = []
  const logits: Float32Array[][] = []
  for (const backend of BACKENDS) {
    await using model = await OnnxModel.load(sharing(whole), {
      backend,
      threads: 1,
      cache: { memoryBytes: 2 ** 22, blockSize: 4 },
    })
    t.is(model.layers.flatMap(({ layers }) => layers).length, 1, `${backend} has pages of one layer`)
    const tokens = Object.values(prompts)
    const all = tokens.map(ids => ({ sequence: model.open({ salt: 'all' }), tokens: ids }))
    logits.push(await model.run(all, { logits: 'all' }))
    for (const { sequence } of all) sequence.dispose()
    const says: number[][] = []
    for (const draft of [undefined, 'lookup'] as const) {
      const chats = tokens.map(ids => model.open({ tokens: ids }))
      const options = draft === undefined ? {} : { draft }
      says.push(...(await Promise.all(chats.map(chat => read(model, chat, 12, options)))))
      const [chat] = chats as [(typeof chats)[number]]
      using fork = chat.fork()
      fork.truncate(3)
      says.push(await read(model, fork, 12, { tokens: [9, 12] }))
      for (const one of chats) one.dispose()
    }
    t.true(model.cache.stats().hitTokens > 0)
    found.push(says)
  }
  t.deepEqual(found[1], found[0])
  t.deepEqual(found[2], found[0])
  for (const [place, rows] of (logits[0] as Float32Array[]).entries())
    for (const other of logits.slice(1)) t.true(distance(other[place] as Float32Array, rows) < 1e-4)
  // The graph as it was has other numbers.
  await using model = await OnnxModel.load(whole, { backend: 'graph', threads: 1, cache: { memoryBytes: 2 ** 22 } })
  const sequence = model.open()
  const [rows] = await model.run([{ sequence, tokens: prompts['p7'] as number[] }], { logits: 'all' })
  t.true(distance(rows as Float32Array, (logits[0] as Float32Array[])[1] as Float32Array) > 0.1)
})
