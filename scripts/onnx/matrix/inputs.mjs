// Runs the models that take more than tokens: decoders with an encoder (encoder_decoder.py) and decoders of images (vision.py). Each prompt runs alone, and beside the others.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { OnnxModel } from 'kvtide/onnx'

import { arrays } from '../../../crates/kvtide-onnx/tests/runtime/safetensors.mjs'

const TOKENS = 12
/** Inputs of encoders that are token ids. */
const IDS = new Set(['input_ids', 'attention_mask'])

const json = (...path) => JSON.parse(readFileSync(join(...path), 'utf8'))

async function read(model, options) {
  const sequence = model.open(options)
  const tokens = []
  // The expected tokens go on behind the end of a sequence.
  const settings = { maxTokens: TOKENS, ignoreEndOfSequence: true }
  for await (const token of model.generate(sequence, settings)) tokens.push(token)
  sequence.dispose()
  return tokens.join()
}

/** Each input and each prompt of a model with an encoder. */
async function encodedPrompts(model, folder) {
  const { prompts, greedy } = json(folder, 'references.json')
  const stored = arrays(join(folder, 'references.safetensors'))
  const inputs = [...stored.keys()].filter(key => key.startsWith('encoded.')).map(key => key.slice('encoded.'.length))
  const made = []
  for (const input of inputs) {
    const given = [...stored].flatMap(([key, { data, shape }]) => {
      const [kind, of] = key.split('.')
      if (of !== input || kind === 'encoded' || kind === 'logits') return []
      return [[kind, IDS.has(kind) ? [...data] : { data, dims: shape }]]
    })
    const encoded = await model.encode(Object.fromEntries(given))
    for (const [name, tokens] of Object.entries(prompts))
      made.push({ options: { tokens, encoded }, greedy: greedy[`${input}.${name}`] })
  }
  return made
}

/** Each prompt with its images. An image of a model with three rows of positions has a grid. */
function imagePrompts(folder) {
  const stored = arrays(join(folder, 'references.safetensors'))
  return Object.values(json(folder, 'references.json')).map(({ ids, images, greedy, positions }) => {
    const embeds = images.map(({ image, start, grid }) => {
      const span = { start, data: stored.get(image).data, key: image }
      return positions === null ? span : { ...span, grid }
    })
    return { options: { tokens: ids, embeds }, greedy }
  })
}

async function tried(folder, file, backend) {
  const model = await OnnxModel.load(join(folder, file), {
    threads: 1,
    cache: { memoryBytes: 2 ** 22, blockSize: 4 },
    ...(backend === undefined ? {} : { backend }),
  })
  try {
    const hasEncoder = ['encoder_model.onnx', 'encoder.onnx'].some(name => existsSync(join(folder, name)))
    const prompts = hasEncoder ? await encodedPrompts(model, folder) : imagePrompts(folder)
    const isRight = (found, at) => found === prompts[at].greedy.join()
    const alone = []
    for (const [at, { options }] of prompts.entries()) alone.push(await read(model, { ...options, salt: `${at}` }))
    const together = await Promise.all(prompts.map(({ options }) => read(model, { ...options, salt: 'together' })))
    // Prompts that begin alike, over what the cache has kept of them.
    const again = await Promise.all(prompts.map(({ options }) => read(model, { ...options, salt: 'together' })))
    const [first] = model.refusals
    return {
      backend: model.backend,
      of: prompts.length,
      same: [alone, together, again].map(found => found.filter(isRight).length),
      reason: first?.error.message ?? '',
    }
  } finally {
    await model.dispose()
  }
}

/** Runs all models of a folder with the first backend that takes them; returns results by their names, and tells them. */
export async function withInputs(folder) {
  const found = new Map()
  const families = existsSync(folder) ? readdirSync(folder).toSorted() : []
  for (const family of families) {
    const file = ['decoder_model_merged.onnx', 'decoder.onnx', 'model.onnx'].find(name =>
      existsSync(join(folder, family, name)),
    )
    if (file === undefined || !existsSync(join(folder, family, 'references.json'))) continue
    const result = await tried(join(folder, family), file).catch(error => ({
      backend: 'refused',
      of: 0,
      same: [0, 0, 0],
      reason: `${error.code}: ${error.message}`,
    }))
    found.set(family, result)
    console.log([family, result.backend, `${result.same.join(', ')} of ${result.of}`, result.reason].join(' | '))
  }
  return found
}
