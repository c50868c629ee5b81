// Measures two real models beside onnxruntime-genai and llama.cpp, and writes docs/real-models.md:
//
//   npm run bench:models -- [--models smollm2] [--rounds 3] [--only int4] [--from results.json]
//
// Each measurement is a process of its own. The lanes take turns in each round, and the page has medians with the lowest and highest round. What cannot be
// made on this machine is SKIPPED by name.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

import { exporters, folder } from '../../scripts/onnx/python.mjs'
import { ask, root } from '../../scripts/steps.mjs'
import { llama, madeModel } from './made.mjs'
import { page } from './page.mjs'

const { values } = parseArgs({
  options: {
    models: { type: 'string', multiple: true, default: ['smollm2'] },
    rounds: { type: 'string', default: '3' },
    only: { type: 'string' },
    from: { type: 'string' },
  },
})
const here = fileURLToPath(new URL('.', import.meta.url))
/** The forms of a model: the graph, and the file with the same weights for llama.cpp. */
const FORMS = {
  int4: { graph: 'builder-int4/model.onnx', file: 'package.gguf' },
  f32: { graph: 'builder-f32/model.onnx', file: 'f32.gguf' },
  'f32, optimum': { graph: 'optimum/model.onnx' },
}

/** Prompt length, chats, tokens that are generated for each. */
const WORK = [
  [100, 1, 64],
  [500, 1, 64],
  [1000, 1, 64],
  [4000, 1, 24],
  [100, 8, 24],
  [500, 8, 24],
]

const LANES = {
  kvtide: job => [process.execPath, [join(here, 'lanes', 'kvtide.mjs'), JSON.stringify(job)]],
  'onnxruntime-genai': (job, { python }) =>
    job.form.includes('optimum') ? undefined : [python, [join(here, 'lanes', 'genai.py'), JSON.stringify(job)]],
  'llama.cpp': (job, { packages }) =>
    packages === undefined || job.file === undefined
      ? undefined
      : [process.execPath, [join(here, 'lanes', 'llama.mjs'), JSON.stringify(job)]],
}

async function measured(tools) {
  const results = []
  for (const model of values.models) {
    const at = await madeModel(model, tools)
    if (at === undefined) continue
    const { story } = JSON.parse(readFileSync(join(at, 'references.json'), 'utf8')).prompts
    for (const [form, { graph, file }] of Object.entries(FORMS)) {
      if (values.only !== undefined && form !== values.only) continue
      for (const threads of [1, 2]) {
        for (const [length, chats, count] of WORK) {
          const ids = Array.from({ length }, (_, place) => story[place % story.length])
          const job = { form, graph: join(at, graph), threads, chats, count, ids, packages: tools.packages }
          if (file !== undefined) job.file = join(at, file)
          for (let round = 0; round < Number(values.rounds); round++) {
            for (const [lane, command] of Object.entries(LANES)) {
              const [program, args] = command(job, tools) ?? []
              if (program === undefined) continue
              const line = ask(program, args, { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] })
              const result = { model, form, threads, length, chats, round, lane }
              if (line === undefined) console.log('FAILED', JSON.stringify(result))
              else results.push({ ...result, ...JSON.parse(line.trim().split('\n').at(-1)) })
            }
          }
          const last = results.filter(one => one.length === length && one.chats === chats && one.form === form)
          const token = last.filter(one => one.threads === threads).map(one => `${one.lane} ${one.token.toFixed(2)}`)
          console.log(model, form, `${threads} threads`, length, chats, token.join(', '))
        }
      }
    }
  }
  return results
}

const to = join(folder, 'real.json')
let results
if (values.from === undefined) {
  const tools = await exporters()
  if (tools === undefined) process.exit()
  results = await measured({ ...tools, packages: await llama() })
  writeFileSync(to, JSON.stringify(results))
} else results = JSON.parse(readFileSync(values.from, 'utf8'))
writeFileSync(join(root, 'docs', 'real-models.md'), page(results))
