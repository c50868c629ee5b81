// Runs the models that make.py made, and prints for each graph: the backend, and whether tokens and logits are those of transformers.
//
//   node scripts/onnx/matrix/run.mjs <folder> [docs/models.md <folder of the models that take more than tokens>]
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { OnnxModel } from 'kvtide/onnx'

import { tensors } from '../../../crates/kvtide-onnx/tests/runtime/safetensors.mjs'
import { histories } from './histories.mjs'
import { withInputs } from './inputs.mjs'
import { page } from './page.mjs'

const distance = (one, other) => one.reduce((most, number, at) => Math.max(most, Math.abs(number - other[at])), 0)

/** Logits of all tokens of a prompt, and the greedy tokens after it. */
async function computed(model, prompt, count, salt) {
  const chat = model.open({ salt })
  const other = model.open({ tokens: prompt, salt: `${salt} again` })
  const [logits] = await model.run([{ sequence: chat, tokens: prompt }], { logits: 'all' })
  const tokens = []
  // The expected tokens go on behind the end of a sequence.
  const options = { maxTokens: count, ignoreEndOfSequence: true }
  for await (const token of model.generate(other, options)) tokens.push(token)
  chat.dispose()
  other.dispose()
  return { logits, tokens }
}

let sequences = 0

/** The same without a cache: every token is that of a whole pass. */
async function whole(model, prompt, count) {
  const ids = [...prompt]
  let first
  while (ids.length < prompt.length + count) {
    const chat = model.open({ salt: `whole ${(sequences += 1)}` })
    const [logits] = await model.run([{ sequence: chat, tokens: ids }], { logits: 'all' })
    chat.dispose()
    first ??= logits
    const row = logits.slice(-logits.length / ids.length)
    ids.push(row.reduce((best, number, id) => (number > row[best] ? id : best), 0))
  }
  return { logits: first, tokens: ids.slice(prompt.length) }
}

/** The number of prompts with the same tokens, and the largest difference of logits, in one step or one after the other. */
async function compared(model, { prompts, expected }, isTogether) {
  let far = 0
  const run = async (name, at) => {
    const { logits, tokens } = await computed(model, prompts[name], expected[name].tokens.length, `${isTogether}${at}`)
    far = Math.max(far, distance(logits, expected[name].logits))
    return tokens.join() === expected[name].tokens.join()
  }
  const names = Object.keys(prompts)
  const same = []
  if (isTogether) same.push(...(await Promise.all(names.map(run))))
  else for (const [at, name] of names.entries()) same.push(await run(name, at))
  return { same: same.filter(Boolean).length, of: names.length, far }
}

/** Graphs of low precision differ from transformers: they are compared with themselves, run unmodified, a prompt at a time. */
const COMPARED_WITH_ITSELF = /int4|quantised/

async function expectedOf(folder, way, options, isItself) {
  const { prompts, greedy } = JSON.parse(readFileSync(join(folder, 'references.json'), 'utf8'))
  const logits = tensors(join(folder, 'references.safetensors'))
  const expected = {}
  if (!isItself) {
    for (const name of Object.keys(prompts)) expected[name] = { tokens: greedy[name], logits: logits(`logits.${name}`) }
    return { prompts, expected }
  }
  // A graph that the runtime itself does not run is compared with its parts.
  for (const backend of ['plain', 'parts']) {
    let model
    try {
      model = await OnnxModel.load(join(folder, way, 'model.onnx'), { ...options, backend })
      // A dynamically quantised graph gives other tokens if it computes others beside them.
      const compute = way === 'quantised' ? computed : whole
      for (const name of Object.keys(prompts))
        expected[name] = await compute(model, prompts[name], greedy[name].length, name)
      break
    } catch (error) {
      if (backend === 'parts') throw error
    } finally {
      await model?.dispose()
    }
  }
  return { prompts, expected }
}

/** The layers' states in bytes, and the histories of sequences in short steps and blocks, which leave states within each prompt; undefined for a model without states. */
async function stated(folder, way, options, references) {
  const cache = { memoryBytes: 2 ** 23, blockSize: 8 }
  const model = await OnnxModel.load(join(folder, way, 'model.onnx'), { ...options, cache, maxStepTokens: 16 })
  try {
    const states = model.layers.find(({ kind }) => kind === 'state')
    return states && { bytes: states.bytes, ...(await histories(model, references)) }
  } finally {
    await model.dispose()
  }
}

/** Runs a graph, and returns the backend and the differences. */
async function tried(folder, way) {
  const config = JSON.parse(readFileSync(join(folder, 'hf', 'config.json'), 'utf8'))
  const options = { config, threads: 1, cache: { memoryBytes: 2 ** 23 } }
  let model
  try {
    model = await OnnxModel.load(join(folder, way, 'model.onnx'), options)
  } catch (error) {
    // What the runtime itself does not run, nothing can.
    const isBroken = error.details?.reason?.startsWith('onnxruntime: ') === true
    return { backend: 'refused', isBroken, reason: `${error.code}: ${error.message}` }
  }
  const [first] = model.refusals
  const reason = first === undefined ? '' : first.error.message
  try {
    const isItself = COMPARED_WITH_ITSELF.test(way)
    let references = await expectedOf(folder, way, options, isItself)
    let alone = await compared(model, references, false)
    // An exporter may have been wrong itself.
    const isOff = !isItself && alone.same < alone.of
    if (isOff) {
      references = await expectedOf(folder, way, options, true)
      alone = await compared(model, references, false)
    }
    const together = await compared(model, references, true)
    const states = await stated(folder, way, options, references)
    return { backend: model.backend, reason, alone, together, isOff, states }
  } catch (error) {
    return { backend: model.backend, reason: `fails at the first token: ${error.code}: ${error.message}` }
  } finally {
    await model.dispose()
  }
}

const shown = of => (of === undefined ? '' : `${of.same}/${of.of} ${of.far.toExponential(1)}`)

const [root, to, inputs] = process.argv.slice(2)
const found = new Map()
for (const family of readdirSync(root).toSorted()) {
  const folder = join(root, family)
  if (!existsSync(join(folder, 'references.json'))) continue
  const ways = new Map()
  for (const way of readdirSync(folder).toSorted()) {
    if (!existsSync(join(folder, way, 'model.onnx'))) continue
    const result = await tried(folder, way)
    ways.set(way, result)
    const { same, of, wrong, found: hits } = result.states ?? {}
    const told = of === undefined ? [] : [`${same}/${of} histories, ${hits} tokens found`, ...wrong]
    const parts = [family, way, result.backend, shown(result.alone), shown(result.together), ...told, result.reason]
    console.log(parts.join(' | '))
  }
  found.set(family, ways)
}
const others = inputs === undefined ? new Map() : await withInputs(inputs)
if (to !== undefined) writeFileSync(to, page(found, others))
const isWrong = ({ alone, states }) =>
  alone === undefined || alone.same < alone.of || (states !== undefined && states.same < states.of)
const wrong = [...found].flatMap(([family, ways]) =>
  [...ways].filter(([, result]) => result.backend !== 'refused' && isWrong(result)).map(([way]) => `${family}, ${way}`),
)
wrong.push(
  ...[...others].filter(([, { same, of }]) => of === 0 || same.some(count => count < of)).map(([name]) => name),
)
if (wrong.length > 0) {
  console.error(`wrong tokens, or none: ${wrong.join('; ')}`)
  process.exitCode = 1
}
