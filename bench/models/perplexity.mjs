// Measures the perplexity of two real models with each format of pages, and with the KV cache of llama.cpp:
//
//   npm run bench:perplexity -- [--models smollm2] [--contexts 20] [--only q4] [--resume]
//
// A model reads contexts of a text, each from a start of its own, and predicts each token of their later halves from the real tokens before it. Each measurement
// is a process of its own, and its losses stay in target/perplexity: `--resume` reuses them, also those of another version. The increase of the perplexity over that
// of f32 in the same runtime stands beside its standard error. What cannot be made on this machine is SKIPPED by name.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

import { exporters } from '../../scripts/onnx/python.mjs'
import { ask, root } from '../../scripts/steps.mjs'
import { llama, madeModel } from './made.mjs'

const { values } = parseArgs({
  options: {
    models: { type: 'string', multiple: true, default: ['smollm2', 'gemma3'] },
    contexts: { type: 'string', default: '20' },
    length: { type: 'string', default: '1024' },
    only: { type: 'string', multiple: true },
    resume: { type: 'boolean', default: false },
  },
})
const here = fileURLToPath(new URL('.', import.meta.url))
const folder = join(root, 'target', 'perplexity', `${values.contexts} of ${values.length}`)

/** The first id of a context: Gemma reads its text behind `<bos>`. */
const FIRST = { smollm2: -1, gemma3: 2 }

const pages = (keyFormat, valueFormat, rotated = {}) => ({ keyFormat, valueFormat, ...rotated })

/** The cache options of each form. A model rotates V of `q4` unless told otherwise. */
const FORMS = {
  f32: {},
  f8e4m3: pages('f8e4m3', 'f8e4m3'),
  q8: pages('q8', 'q8'),
  'q8, hadamard': pages('q8', 'q8', { hadamard: true }),
  'q8, valueHadamard': pages('q8', 'q8', { valueHadamard: true }),
  'K q8, V q4': pages('q8', 'q4'),
  'K q8, V q4, valueHadamard: false': pages('q8', 'q4', { valueHadamard: false }),
  'K q4, V q8': pages('q4', 'q8'),
  q4: pages('q4', 'q4'),
  'q4, hadamard': pages('q4', 'q4', { hadamard: true }),
  'q4, valueHadamard: false': pages('q4', 'q4', { valueHadamard: false }),
}

const types = (keyType, valueType) => ({ keyType, valueType })

/** The types of llama.cpp's cache. */
const LLAMA_FORMS = {
  'llama.cpp, F32': types('F32', 'F32'),
  'llama.cpp, Q8_0': types('Q8_0', 'Q8_0'),
  'llama.cpp, K Q8_0, V Q4_0': types('Q8_0', 'Q4_0'),
  'llama.cpp, Q4_0': types('Q4_0', 'Q4_0'),
}

/** The runtimes: their programs, and their forms. The first form of each is exact: the others are compared with it. */
const RUNTIMES = [
  { script: 'losses.mjs', forms: FORMS },
  { script: 'llama-losses.mjs', forms: LLAMA_FORMS },
]

/** The losses of a form, and the tokens that the model puts first; undefined if the process fails. */
function lossesOf(name, script, job) {
  const [file, losses] = ['job', 'losses'].map(kind => join(folder, `${name}.${kind}.json`))
  if (values.resume && existsSync(losses)) return JSON.parse(readFileSync(losses, 'utf8'))
  writeFileSync(file, JSON.stringify(job))
  const line = ask(process.execPath, [join(here, 'lanes', script), file], { stdio: ['ignore', 'pipe', 'inherit'] })
  if (line === undefined) return undefined
  writeFileSync(losses, line.trim().split('\n').at(-1))
  return JSON.parse(readFileSync(losses, 'utf8'))
}

const meanOf = numbers => numbers.reduce((sum, number) => sum + number, 0) / numbers.length

/** The perplexity, its increase over that of the exact form, the standard error of the increase, and the share of first tokens that stay the same. */
function compared({ losses, firsts }, exact) {
  const differences = losses.map((loss, place) => loss - exact.losses[place])
  const mean = meanOf(differences)
  const deviation = Math.sqrt(meanOf(differences.map(difference => (difference - mean) ** 2)))
  return {
    perplexity: Math.exp(meanOf(losses)),
    increase: Math.expm1(mean),
    error: deviation / Math.sqrt(losses.length),
    same: meanOf(firsts.map((first, place) => (first === exact.firsts[place] ? 1 : 0))),
  }
}

function show(model, form, found, exact) {
  const { perplexity, increase, error, same } = compared(found, exact)
  const [more, within, alike] = [increase, error, same].map(share => `${(100 * share).toFixed(2)} %`)
  const bits = `${found.bits.toFixed(2)} bits`
  console.log(
    `${model}, ${form}: ${bits}, perplexity ${perplexity.toFixed(4)}, ${more} (${within}) more, ${alike} same first`,
  )
}

/** Measures the forms of a runtime, and shows each. */
function measureRuntime(model, { script, forms }, job) {
  const chosen = Object.keys(forms).filter(form => values.only === undefined || values.only.includes(form))
  if (chosen.length === 0) return
  let exact
  for (const form of new Set([Object.keys(forms)[0], ...chosen])) {
    const found = lossesOf(`${model} ${form}`, script, { ...job, cache: forms[form] })
    exact ??= found
    if (found !== undefined) {
      show(model, form, found, exact)
      continue
    }
    console.log(`FAILED: ${model}, ${form}`)
    process.exitCode = 1
    if (exact === undefined) return
  }
}

/** Measures a model in all runtimes. */
function measure(model, at, { python, packages }) {
  const tokenizer = join(at, 'hf', 'tokenizer.json')
  const sizes = [values.contexts, values.length, String(FIRST[model])]
  const text = ask(python, [join(here, 'lanes', 'text.py'), tokenizer, ...sizes])
  if (text === undefined) return console.log(`SKIPPED: ${model}, whose text cannot be read`)
  const graph = join(at, 'builder-f32', 'model.onnx')
  const job = { contexts: JSON.parse(text), graph, file: join(at, 'f32.gguf'), packages }
  for (const runtime of RUNTIMES)
    if (packages !== undefined || runtime.forms === FORMS) measureRuntime(model, runtime, job)
  return undefined
}

mkdirSync(folder, { recursive: true })
const made = await exporters()
if (made === undefined) process.exit()
const tools = { ...made, packages: await llama() }
for (const model of values.models) {
  const at = await madeModel(model, tools)
  if (at !== undefined) measure(model, at, tools)
}
