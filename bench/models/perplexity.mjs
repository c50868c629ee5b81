// Measures the perplexity of two real models with each format of pages:
//
//   npm run bench:perplexity -- [--models smollm2] [--contexts 20] [--only q4] [--resume]
//
// A model reads contexts of a text, each from a start of its own, and predicts each token of their later halves from the real tokens before it. Each measurement
// is a process of its own, and its losses stay in target/perplexity: `--resume` reuses them, also those of another version. The increase of the perplexity over that
// of f32 pages stands beside its standard error. What cannot be made on this machine is SKIPPED by name.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

import { exporters } from '../../scripts/onnx/python.mjs'
import { ask, root } from '../../scripts/steps.mjs'
import { madeModel } from './made.mjs'

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

/** The form that the others are compared with. */
const EXACT = 'f32'

/** The cache options of each form. A model rotates V of `q4` unless told otherwise. */
const FORMS = {
  [EXACT]: {},
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

/** The losses of a form, and the tokens that the model puts first; undefined if the process fails. */
function lossesOf(model, form, job) {
  const [file, losses] = ['job', 'losses'].map(kind => join(folder, `${model} ${form}.${kind}.json`))
  if (values.resume && existsSync(losses)) return JSON.parse(readFileSync(losses, 'utf8'))
  writeFileSync(file, JSON.stringify({ ...job, cache: FORMS[form] }))
  const program = join(here, 'lanes', 'losses.mjs')
  const line = ask(process.execPath, [program, file], { stdio: ['ignore', 'pipe', 'inherit'] })
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

/** Measures the forms of a model, and shows each. */
function measure(model, at, python) {
  const tokenizer = join(at, 'hf', 'tokenizer.json')
  const sizes = [values.contexts, values.length, String(FIRST[model])]
  const text = ask(python, [join(here, 'lanes', 'text.py'), tokenizer, ...sizes])
  if (text === undefined) return console.log(`SKIPPED: ${model}, whose text cannot be read`)
  const job = { contexts: JSON.parse(text), graph: join(at, 'builder-f32', 'model.onnx') }
  const chosen = Object.keys(FORMS).filter(form => values.only === undefined || values.only.includes(form))
  let exact
  for (const form of new Set([EXACT, ...chosen])) {
    const found = lossesOf(model, form, job)
    exact ??= found
    if (found === undefined || exact === undefined) {
      console.log(`FAILED: ${model}, ${form}`)
      process.exitCode = 1
      if (exact === undefined) return undefined
      continue
    }
    const { perplexity, increase, error, same } = compared(found, exact)
    const [more, within, alike] = [increase, error, same].map(share => `${(100 * share).toFixed(2)} %`)
    const bits = `${found.bits.toFixed(2)} bits`
    console.log(
      `${model}, ${form}: ${bits}, perplexity ${perplexity.toFixed(4)}, ${more} (${within}) more, ${alike} same first`,
    )
  }
  return undefined
}

mkdirSync(folder, { recursive: true })
const tools = await exporters()
if (tools === undefined) process.exit()
for (const model of values.models) {
  const at = await madeModel(model, tools)
  if (at !== undefined) measure(model, at, tools.python)
}
