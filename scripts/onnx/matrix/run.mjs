// Runs the models that make.py made, and prints for each graph: the backend, and whether tokens and logits are those of transformers.
//
//   node scripts/onnx/matrix/run.mjs <folder> [family ..]
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { OnnxModel } from 'kvtide/onnx'

/** Tensors of a safetensors file, as floats. */
function tensors(path) {
  const bytes = readFileSync(path)
  const head = Number(bytes.readBigUInt64LE(0))
  const entries = JSON.parse(bytes.toString('utf8', 8, 8 + head))
  return name => {
    const [start, end] = entries[name].data_offsets
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset + 8 + head + start, bytes.byteOffset + 8 + head + end))
  }
}

const distance = (one, other) => one.reduce((most, number, at) => Math.max(most, Math.abs(number - other[at])), 0)

/** The tokens and the largest difference of logits of all prompts, in one step or one after the other. */
async function compared(model, { prompts, greedy }, logits, isTogether) {
  const names = Object.keys(prompts)
  let far = 0
  const run = async (name, at) => {
    const chat = model.open({ salt: `${isTogether}${at}` })
    const other = model.open({ tokens: prompts[name], salt: `${isTogether}${at} again` })
    const [all] = await model.run([{ sequence: chat, tokens: prompts[name] }], { logits: 'all' })
    far = Math.max(far, distance(all, logits(`logits.${name}`)))
    const tokens = []
    for await (const token of model.generate(other, { maxTokens: greedy[name].length })) tokens.push(token)
    chat.dispose()
    other.dispose()
    return tokens.join() === greedy[name].join()
  }
  const same = []
  if (isTogether) same.push(...(await Promise.all(names.map(run))))
  else for (const [at, name] of names.entries()) same.push(await run(name, at))
  return { same: same.filter(Boolean).length, of: names.length, far }
}

/** What happened with a graph: a line of the table. */
export async function tried(folder, way) {
  const references = JSON.parse(readFileSync(join(folder, 'references.json'), 'utf8'))
  const logits = tensors(join(folder, 'references.safetensors'))
  const config = JSON.parse(readFileSync(join(folder, 'hf', 'config.json'), 'utf8'))
  let model
  try {
    model = await OnnxModel.load(join(folder, way, 'model.onnx'), { config, threads: 1, cache: { memoryBytes: 2 ** 23 } })
  } catch (error) {
    return { backend: 'refused', reason: `${error.code}: ${error.message}` }
  }
  const [first] = model.refusals
  const reason = first === undefined ? '' : first.error.message
  try {
    const alone = await compared(model, references, logits, false)
    const together = await compared(model, references, logits, true)
    return { backend: model.backend, reason, alone, together }
  } catch (error) {
    return { backend: model.backend, reason: `fails at the first token: ${error.code}: ${error.message}` }
  } finally {
    await model.dispose()
  }
}

process.on('warning', () => undefined)
const [root, ...only] = process.argv.slice(2)
for (const family of only.length > 0 ? only : readdirSync(root).toSorted()) {
  const folder = join(root, family)
  if (!existsSync(join(folder, 'references.json'))) continue
  for (const way of readdirSync(folder).toSorted()) {
    if (!existsSync(join(folder, way, 'model.onnx'))) continue
    const { backend, reason, alone, together } = await tried(folder, way)
    const shown = of => (of === undefined ? '' : `${of.same}/${of.of} ${of.far.toExponential(1)}`)
    console.log([family, way, backend, shown(alone), shown(together), reason.slice(0, 260)].join(' | '))
  }
}
