// Measures the masks of a JSON schema with the tokenizer of a real model, and the share of a step that they take.
//
//   npx tsx bench/models/grammar.ts --tokenizer <folder or tokenizer.json> [--model <model.onnx>] [--threads <n>] [--llama <file.gguf> --packages <folder with node-llama-cpp>]
//
// Masks: sixteen documents are matched token by token, on one thread; each time is the processor time of a token and of the mask behind it, applied to a row of
// logits.
// Steps: sixteen sequences generate with and without the grammar, in turn, and with an `allowed` function that returns a mask made before. llama.cpp generates
// one text with its own grammar and without.
import { createRequire } from 'node:module'
import { availableParallelism } from 'node:os'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { pathToFileURL } from 'node:url'

import type { NativeGrammar } from '#binding'

import { compile } from '../../lib/sampling/vocabulary.js'
import { type GenerateOptions, OnnxModel, Vocabulary } from '../../onnx.js'

const SEQUENCES = 16
const TOKENS = 64
const ROUNDS = 3

/** A schema as applications have it: strings, numbers, enums, lists of objects, optional fields. */
const SCHEMA = {
  type: 'object',
  properties: {
    id: { type: 'integer', minimum: 1 },
    title: { type: 'string', maxLength: 120 },
    status: { enum: ['open', 'in progress', 'closed'] },
    labels: { type: 'array', items: { type: 'string' }, maxItems: 8 },
    author: {
      type: 'object',
      properties: { name: { type: 'string' }, email: { type: 'string', format: 'email' } },
      required: ['name'],
      additionalProperties: false,
    },
    comments: {
      type: 'array',
      items: {
        type: 'object',
        properties: {
          text: { type: 'string' },
          votes: { type: 'integer' },
          created: { type: 'string', format: 'date-time' },
        },
        required: ['text', 'votes'],
        additionalProperties: false,
      },
    },
    score: { type: ['number', 'null'] },
  },
  required: ['id', 'title', 'status', 'labels', 'author', 'comments'],
  additionalProperties: false,
} as const

const document = (seed: number): string =>
  JSON.stringify({
    id: 100 + seed,
    title: `The cache grows without bound after ${seed} restarts`,
    status: (['open', 'in progress', 'closed'] as const)[seed % 3],
    labels: ['bug', 'memory', `version ${seed}`],
    author: { name: 'Ada Löwe', email: `ada${seed}@example.com` },
    comments: Array.from({ length: 3 }, (_, place) => ({
      text: `It happens on ${place + 2} machines, with "large" prompts; see line ${seed * 7}.`,
      votes: place - 1,
      created: `2026-0${1 + place}-12T10:2${place}:00Z`,
    })),
    score: seed / 4,
  })

/** The longest tokens that a text begins with, one after the other. */
function tokenise(vocabulary: Vocabulary, text: string): number[] {
  const ids = new Map<string, number>()
  let longest = 0
  for (let id = 0; id < vocabulary.size; id++) {
    const bytes = Buffer.from(vocabulary.bytesOf(id)).toString('latin1')
    if (bytes === '' || vocabulary.isSpecial(id)) continue
    ids.set(bytes, id)
    longest = Math.max(longest, bytes.length)
  }
  const tokens: number[] = []
  let rest = Buffer.from(text).toString('latin1')
  while (rest !== '') {
    let length = Math.min(longest, rest.length)
    while (!ids.has(rest.slice(0, length))) length -= 1
    tokens.push(ids.get(rest.slice(0, length)) as number)
    rest = rest.slice(length)
  }
  return tokens
}

const quantile = (sorted: readonly number[], share: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] as number

function shown(what: string, milliseconds: readonly number[]): void {
  const sorted = milliseconds.toSorted((one, other) => one - other)
  const mean = sorted.reduce((sum, time) => sum + time, 0) / sorted.length
  const [p50, p99] = [quantile(sorted, 0.5), quantile(sorted, 0.99)]
  const numbers = { mean, p50, p99, most: sorted.at(-1) as number }
  console.log(
    `${what}: ${Object.entries(numbers)
      .map(([name, time]) => `${name} ${time.toFixed(3)} ms`)
      .join(', ')} (${sorted.length} masks)`,
  )
}

/** Matches the documents in turn, as in a batch. Returns the milliseconds of processor time of each token and its mask. */
function masks(grammar: NativeGrammar, documents: readonly number[][], size: number): number[] {
  const logits = new Float32Array(size)
  const times: number[] = []
  const matchers = documents.map(() => grammar.matcher(Uint32Array.of(0)))
  const most = Math.max(...documents.map(tokens => tokens.length))
  for (let place = 0; place <= most; place++) {
    for (const [at, tokens] of documents.entries()) {
      if (place > tokens.length) continue
      const begun = process.cpuUsage()
      if (place > 0) matchers[at]?.push(Uint32Array.of(tokens[place - 1] as number))
      matchers[at]?.apply(logits)
      const { user, system } = process.cpuUsage(begun)
      times.push((user + system) / 1000)
    }
  }
  return times
}

async function generated(model: OnnxModel, options: GenerateOptions): Promise<{ seconds: number; tokens: number }> {
  const chats = Array.from({ length: SEQUENCES }, (_, seed) =>
    model.open({ tokens: [10 + seed, 20, 30 + seed, 40, 50] }),
  )
  // The prompts are computed before.
  await model.run(chats.map(sequence => ({ sequence })))
  const begun = performance.now()
  const counts = await Promise.all(
    chats.map(async (chat, seed) => {
      let count = 0
      for await (const _ of model.generate(chat, { maxTokens: TOKENS, seed, temperature: 1, ...options })) count += 1
      return count
    }),
  )
  const seconds = (performance.now() - begun) / 1000
  for (const chat of chats) chat.dispose()
  return { seconds, tokens: counts.reduce((sum, count) => sum + count, 0) }
}

async function steps(path: string, vocabulary: Vocabulary, threads: number): Promise<void> {
  await using model = await OnnxModel.load(path, { threads })
  // Any text in quotes, so that every sequence generates all tokens; its masks are as large as those of any string of a schema.
  const endless = { json: { type: 'array', items: SCHEMA, minItems: 50 } }
  const words = Math.ceil((model.vocabularySize ?? vocabulary.size) / 32)
  const all = new Uint32Array(words).fill(2 ** 32 - 1)
  const lanes: Record<string, GenerateOptions> = {
    'without a grammar': {},
    'a JSON schema': { grammar: endless, vocabulary },
    'allowed, a mask made before': { allowed: () => all },
  }
  const found: Record<string, number[]> = {}
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, options] of Object.entries(lanes)) {
      const { seconds, tokens } = await generated(model, options)
      if (round > 0) (found[name] ??= []).push((1000 * seconds * SEQUENCES) / tokens)
    }
  }
  for (const [name, times] of Object.entries(found))
    console.log(
      `${name}: ${times.map(time => time.toFixed(2)).join(', ')} ms a step of ${SEQUENCES} sequences (${model.backend}, ${threads} threads)`,
    )
}

interface Llama {
  loadModel(options: object): Promise<{ createContext(options: object): Promise<{ getSequence(): object }> }>
  createGrammarForJsonSchema(schema: object): Promise<object>
}

async function llamaCpp(file: string, packages: string, threads: number): Promise<void> {
  const { getLlama, LlamaCompletion } = (await import(
    pathToFileURL(createRequire(`${resolve(packages)}/`).resolve('node-llama-cpp')).href
  )) as {
    getLlama(options: object): Promise<Llama>
    LlamaCompletion: new (options: object) => { generateCompletion(prompt: string, options: object): Promise<string> }
  }
  const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: threads })
  const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 })
  const context = await model.createContext({ contextSize: 512, threads })
  const completion = new LlamaCompletion({ contextSequence: context.getSequence() })
  const grammar = await llama.createGrammarForJsonSchema(SCHEMA)
  for (const [name, options] of Object.entries({ 'without a grammar': {}, 'a JSON schema': { grammar } })) {
    let tokens = 0
    let first = 0
    const onToken = (given: readonly unknown[]): void => {
      tokens += given.length
      if (first === 0) [first, tokens] = [performance.now(), 0]
    }
    await completion.generateCompletion('An issue as JSON: ', {
      maxTokens: TOKENS,
      temperature: 1,
      seed: 1,
      onToken,
      ...options,
    })
    console.log(`llama.cpp, ${name}: ${((performance.now() - first) / tokens).toFixed(2)} ms a token of one sequence`)
  }
}

const { values } = parseArgs({
  options: {
    tokenizer: { type: 'string' },
    model: { type: 'string' },
    threads: { type: 'string' },
    llama: { type: 'string' },
    packages: { type: 'string' },
  },
})
const { tokenizer, model, llama, packages } = values
const threads = Number(values.threads ?? availableParallelism())
if (tokenizer === undefined) throw new Error('expected --tokenizer <folder or tokenizer.json>')
let begun = performance.now()
const vocabulary = await Vocabulary.load(tokenizer)
console.log(
  `a vocabulary of ${vocabulary.size} tokens: ${(performance.now() - begun).toFixed(0)} ms, ${(process.memoryUsage().rss / 2 ** 20).toFixed(0)} MiB resident`,
)
begun = performance.now()
const grammar = await compile(vocabulary, { kind: 'json', text: JSON.stringify(SCHEMA) })
console.log(`the schema compiled: ${(performance.now() - begun).toFixed(1)} ms`)
const documents = Array.from({ length: SEQUENCES }, (_, seed) => tokenise(vocabulary, document(seed)))
shown('masks, the first texts of a grammar', masks(grammar, documents, vocabulary.size))
shown('masks, later texts', masks(grammar, documents, vocabulary.size))
if (model !== undefined) await steps(model, vocabulary, threads)
if (llama !== undefined && packages !== undefined) await llamaCpp(llama, packages, threads)
