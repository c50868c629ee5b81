// Graphs of many families and exporters run on the fast backends, and give the tokens of transformers: alone, together in a step, drafted, and over a cached prefix.
import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import { OnnxModel } from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { read } from '../support/onnx/chat.js'
import { graphFile, referenceOf } from '../support/onnx/graphs.js'

const folder = fileURLToPath(new URL('../fixtures/families/', import.meta.url))
const folders = (path: string): string[] =>
  readdirSync(path, { withFileTypes: true })
    .filter(entry => entry.isDirectory())
    .map(({ name }) => name)
    .toSorted()

/** As exported, logits of these graphs differ from those of transformers. */
const OFF = new Map([
  ['gemma2/builder', 0.01],
  ['gpt-oss/builder', 0.2],
])

/** So do those of these, by too little to change a token; onnxruntime does not run them unmodified. */
const ROUNDED = new Map([
  ['nemotron/builder-f32', 0.001],
  ['phi/builder-f32', 0.001],
])

/** These graphs differ from transformers: products of few bits, and exporters that were wrong or rounded. They are compared with themselves, run unmodified, one prompt after the other. */
const ITSELF =
  /^(?:apertus\/dynamo|falcon-alibi\/optimum|gemma\/builder-hidden|gemma3\/(?:builder-f32|mobius)|vaultgemma\/optimum|.*\/(?:builder-int4|quantised))$/

for (const family of folders(folder)) {
  for (const exporter of folders(`${folder}${family}`)) {
    const graph = `${family}/${exporter}`
    if (ITSELF.test(graph)) {
      for (const backend of ['graph', 'parts'] as const)
        test(`${graph}, ${backend}: its logits and tokens are those of the unmodified graph`, async t => {
          const { prompts, greedy } = referenceOf(`families/${family}`)
          const options = { threads: 1, cache: { memoryBytes: 2 ** 23, blockSize: 4 } }
          await using plain = await OnnxModel.load(graphFile(`families/${graph}`), { ...options, backend: 'plain' })
          await using model = await OnnxModel.load(graphFile(`families/${graph}`), { ...options, backend })
          for (const [name, prompt] of Object.entries(prompts)) {
            const tokens = [...prompt]
            const computed = async (of: OnnxModel): Promise<[Float32Array, number[]]> => {
              using all = of.open({ salt: 'all' })
              const [logits] = await of.run([{ sequence: all, tokens }], { logits: 'all' })
              using chat = of.open({ tokens, salt: name })
              return [logits as Float32Array, await read(of, chat, greedy[name]?.length as number)]
            }
            const [expected, found] = [await computed(plain), await computed(model)]
            t.true(distance(found[0], expected[0]) < 1e-4, `${name}: ${distance(found[0], expected[0])}`)
            t.deepEqual(found[1], expected[1], name)
          }
        })
      continue
    }
    for (const backend of ['graph', 'parts'] as const) {
      test(`${graph}, ${backend}: its tokens are those of transformers, alone, together, drafted and over a cached prefix`, async t => {
        const reference = referenceOf(`families/${family}`)
        const names = Object.keys(reference.prompts)
        // Pages of graphs with quantised pasts have codes, unless the caller names formats.
        const floats = exporter.endsWith('-past') ? ({ keyFormat: 'f32', valueFormat: 'f32' } as const) : {}
        const options = { threads: 1, cache: { memoryBytes: 2 ** 23, blockSize: 4, ...floats } }
        await using model = await OnnxModel.load(graphFile(`families/${graph}`), { ...options, backend })
        const limit = OFF.get(graph) ?? ROUNDED.get(graph) ?? (exporter.includes('f16') ? 0.05 : 1e-4)
        const entries = names.map(name => ({
          sequence: model.open({ salt: 'all' }),
          tokens: [...(reference.prompts[name] as readonly number[])],
        }))
        const all = (await model.run(entries, { logits: 'all' })) as Float32Array[]
        for (const [place, name] of names.entries()) {
          const far = distance(all[place] as Float32Array, reference.logits(`logits.${name}`))
          t.true(far < limit, `${name}: ${far}`)
          entries[place]?.sequence.dispose()
        }
        if (OFF.has(graph)) return
        for (const draft of [undefined, 'lookup'] as const) {
          for (const round of ['first', 'cached']) {
            const chats = entries.map(({ tokens }) => model.open({ tokens, salt: `${draft}` }))
            const found = await Promise.all(
              chats.map((chat, place) =>
                read(
                  model,
                  chat,
                  reference.greedy[names[place] as string]?.length as number,
                  draft === undefined ? {} : { draft },
                ),
              ),
            )
            t.deepEqual(
              found,
              names.map(name => reference.greedy[name] as number[]),
              `${draft}, ${round}`,
            )
            for (const chat of chats) chat.dispose()
          }
        }
        t.true(model.cache.stats().hitTokens > 0)
      })
    }
  }
}
