// Measures two real models beside onnxruntime-genai, llama.cpp, onnxruntime-node and transformers.js, and writes docs/real-models.md:
//
//   npm run bench:models -- [--models smollm2] [--rounds 3] [--only int4] [--from target/exporters/real.json]
//
// Each measurement is a process of its own. Forms and lanes take turns in each round, and the page has medians with the lowest and highest round. Results are
// written after each measurement: with --from, a run keeps the results of a file and measures those that it lacks; --rounds 0 only writes the page. What cannot
// be made on this machine is SKIPPED by name.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

import { exporters, folder } from '../../scripts/onnx/python.mjs'
import { ask, root } from '../../scripts/steps.mjs'
import { llama, madeModel } from './made.mjs'
import { type Measurement, page } from './page.js'

const { values } = parseArgs({
  options: {
    models: { type: 'string', multiple: true, default: ['smollm2'] },
    rounds: { type: 'string', default: '3' },
    only: { type: 'string', multiple: true },
    from: { type: 'string' },
  },
})
const here = fileURLToPath(new URL('.', import.meta.url))
const to = join(folder, 'real.json')

/** A form of a model: the graph, and the file with the same weights for llama.cpp. */
interface Form {
  readonly graph: string
  readonly file?: string
}

const FORMS: Readonly<Record<string, Form>> = {
  int4: { graph: 'builder-int4/model.onnx', file: 'package.gguf' },
  'int4, floats': { graph: 'builder-int4-floats/model.onnx', file: 'package.gguf' },
  // The form for GPUs: onnxruntime cannot compute attention in halves as the builder exports it for CPUs.
  f16: { graph: 'builder-cuda-f16/model.onnx', file: 'f16.gguf' },
  f32: { graph: 'builder-f32/model.onnx', file: 'f32.gguf' },
  'f32, optimum': { graph: 'optimum/model.onnx' },
}

/** Prompt length, chats, and tokens that are generated for each. */
const WORK = [
  [100, 1, 64],
  [500, 1, 64],
  [1000, 1, 64],
  [4000, 1, 24],
  [100, 8, 64],
  [500, 8, 64],
  [500, 16, 64],
] as const

/** The programs that lanes need. */
interface Tools {
  readonly python: string
  readonly builder: string
  /** The folder with node-llama-cpp. */
  readonly packages: string | undefined
}

/** A place of the page, measured in several rounds. */
type Place = Pick<Measurement, 'model' | 'form' | 'threads' | 'length' | 'chats' | 'lane'>

interface Lane {
  /** The program and its script; `undefined` if the lane does not run a form. */
  program(form: string, tools: Tools): readonly [string, string] | undefined
  /** The number of rounds at a place; as many as the arguments say if omitted. */
  rounds?(place: Place): number
}

const ROUNDS = Number(values.rounds)
/** Decoding is also measured in ten processes of the same work, whose times are compared. */
const isRepeated = ({ form, threads, length, chats }: Place): boolean =>
  form === 'int4' && threads === 1 && length === 500 && chats === 1
const repeated = (place: Place): number => (isRepeated(place) && ROUNDS > 0 ? Math.max(ROUNDS, 10) : ROUNDS)
/** Runtimes that are several times slower have one round, of one chat behind at most 1,000 tokens. */
const once = ({ chats, length }: Place): number => (chats === 1 && length <= 1000 ? Math.min(ROUNDS, 1) : 0)

const LANES: Readonly<Record<string, Lane>> = {
  kvtide: { program: () => [process.execPath, 'kvtide.mjs'], rounds: repeated },
  'onnxruntime-genai': {
    program: (form, { python }) => (form.includes('optimum') ? undefined : [python, 'genai.py']),
    rounds: repeated,
  },
  'llama.cpp': {
    program: (form, { packages }) =>
      packages === undefined || FORMS[form]?.file === undefined ? undefined : [process.execPath, 'llama.mjs'],
  },
  'onnxruntime-node': { program: () => [process.execPath, 'onnxruntime.mjs'], rounds: once },
  'transformers.js': {
    // It takes the form of optimum alone.
    program: form => (form.includes('optimum') ? [process.execPath, 'transformers.mjs'] : undefined),
    rounds: once,
  },
  'kvtide, arriving': {
    program: form => (form === 'int4' ? [process.execPath, 'arriving.mjs'] : undefined),
    rounds: ({ chats }) => (chats > 1 ? ROUNDS : 0),
  },
  'kvtide, share': {
    program: form => (form === 'int4' ? [process.execPath, 'share.mjs'] : undefined),
    rounds: ({ threads, length, chats }) => (threads === 1 && length === 100 && chats === 1 ? ROUNDS : 0),
  },
}

/** The model of the processor, and the instructions that products of bytes may use. */
function processor(): string {
  const flags = existsSync('/proc/cpuinfo') ? readFileSync('/proc/cpuinfo', 'utf8') : ''
  const names = { avx512_vnni: 'AVX-512 VNNI', amx_int8: 'AMX' }
  const has = Object.entries(names).filter(([flag]) => new RegExp(`\\b${flag}\\b`).test(flags))
  const model = cpus()[0]?.model ?? 'an unknown processor'
  return has.length === 0 ? model : `${model}, with ${has.map(([, name]) => name).join(' and ')}`
}

type Planned = Place & { readonly round: number; readonly count: number }

/** All measurements of the arguments, in their order, with the number of tokens to generate. */
function planned(): Planned[] {
  const forms = Object.keys(FORMS).filter(name => values.only === undefined || values.only.includes(name))
  const lanes = Object.entries(LANES)
  const all: Planned[] = []
  for (const model of values.models)
    for (const threads of [1, 2])
      for (const [length, chats, count] of WORK) {
        const places = forms.flatMap(form =>
          lanes.map(([lane, { rounds = () => ROUNDS }]) => {
            const place = { model, form, threads, length, chats, lane }
            return { place, rounds: rounds(place) }
          }),
        )
        for (let round = 0; places.some(({ rounds }) => round < rounds); round++)
          for (const { place, rounds } of places) if (round < rounds) all.push({ ...place, round, count })
      }
  return all
}

const nameOf = ({ model, form, threads, length, chats, round, lane }: Omit<Planned, 'count'>): string =>
  [model, form, threads, length, chats, round, lane].join('/')

/** Measures what `results` lack, and adds it. */
async function measure(results: Measurement[]): Promise<void> {
  const known = new Set(results.map(nameOf))
  const missing = planned().filter(place => !known.has(nameOf(place)))
  if (missing.length === 0) return
  const made = await exporters()
  if (made === undefined) process.exit()
  const tools = { ...made, packages: await llama() }
  const folders = new Map<string, string | undefined>()
  for (const { count, ...place } of missing) {
    const { model, form, threads, length, chats, lane } = place
    const [program, script] = LANES[lane]?.program(form, tools) ?? []
    if (program === undefined || script === undefined) continue
    if (!folders.has(model)) folders.set(model, await madeModel(model, tools))
    const at = folders.get(model)
    if (at === undefined) continue
    const { graph, file } = FORMS[form] as Form
    const { story } = JSON.parse(readFileSync(join(at, 'references.json'), 'utf8')).prompts as { story: number[] }
    const job = {
      graph: join(at, graph),
      ...(file === undefined ? {} : { file: join(at, file) }),
      threads,
      chats,
      count,
      ids: Array.from({ length }, (_, index) => story[index % story.length]),
      packages: tools.packages,
    }
    const args = [join(here, 'lanes', script), JSON.stringify(job)]
    const line = ask(program, args, { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] })
    if (line === undefined) {
      console.log('FAILED', nameOf(place))
      continue
    }
    const result = {
      ...place,
      processor: processor(),
      ...JSON.parse(line.trim().split('\n').at(-1) ?? ''),
    } as Measurement
    results.push(result)
    writeFileSync(to, JSON.stringify(results))
    const { token } = result
    console.log(nameOf(place), token === undefined ? line.trim() : `${token.toFixed(2)} ms for a token`)
  }
}

const results: Measurement[] = values.from === undefined ? [] : JSON.parse(readFileSync(values.from, 'utf8'))
await measure(results)
writeFileSync(join(root, 'docs', 'real-models.md'), page(results))
