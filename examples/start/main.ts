// `npm start`: the same questions to the same model, without kvtide and with it, side by side.
//
// The model is the smallest one of the tests: it has random weights, so its answers are nonsense. Both sides have to give the same answers.
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'

import { page } from './report.js'
import { type Answer, cachedSide, isRuntimeMissing, plainSide } from './sides.js'
import { progress } from './progress.js'
import { requests } from './workload.js'

const model = fileURLToPath(new URL('../../__test__/fixtures/llama/onnx/model.onnx', import.meta.url))

/** Returns the median and the 95th percentile. */
function quantiles(values: readonly number[]): [median: number, p95: number] {
  const sorted = values.toSorted((one, other) => one - other)
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] as number
  return [at(0.5), at(0.95)]
}

const ms = (value: number): string => `${value.toFixed(value < 10 ? 2 : 1)} ms`
const sum = (answers: readonly Answer[], of: (answer: Answer) => number): number =>
  answers.reduce((total, answer) => total + of(answer), 0)

async function main(): Promise<void> {
  await using plain = await plainSide(model)
  await using cached = await cachedSide(model)
  const sides = [plain, cached]
  console.log(
    `${requests.length} requests to a model of 3 layers, 2 threads of ${availableParallelism()}: without kvtide, and with it\n`,
  )

  const answers: [Answer[], Answer[]] = [[], []]
  const held = [0, 0]
  // Warm-up: loading and the first calls take extra time.
  for (const side of sides) await side.answer({ way: 'question', prompt: () => [] }, [3, 4, 5])
  for (const [at, request] of requests.entries()) {
    const given = (answers[0] as Answer[]).map(answer => answer.tokens)
    for (const [place, side] of sides.entries()) {
      answers[place as 0 | 1].push(await side.answer(request, request.prompt(given)))
      held[place] = Math.max(held[place] as number, side.bytes())
    }
    const [one, other] = [answers[0][at] as Answer, answers[1][at] as Answer]
    if (one.tokens.join() !== other.tokens.join())
      throw new Error(`the answers to request ${at + 1} differ: ${one.tokens.join(' ')} and ${other.tokens.join(' ')}`)
    progress(
      at + 1,
      requests.length,
      `${request.way.padEnd(9)}  first token after ${ms(one.first)} and ${ms(other.first)}, ${other.found} tokens found`,
    )
  }

  const [ours, theirs] = [answers[1], answers[0]]
  const prompts = sum(theirs, answer => answer.computed - answer.tokens.length + 1)
  const [[median, p95], [ownMedian, ownP95]] = [theirs, ours].map(of => quantiles(of.map(answer => answer.first))) as [
    [number, number],
    [number, number],
  ]
  const rows = [
    ['', ...sides.map(side => side.name)],
    ['tokens through the model', ...answers.map(of => sum(of, answer => answer.computed).toLocaleString('en'))],
    [
      'prompt tokens found',
      '0',
      `${sum(ours, answer => answer.found).toLocaleString('en')} of ${prompts.toLocaleString('en')}`,
    ],
    ['first token, median', ms(median), ms(ownMedian)],
    ['first token, 95 of 100', ms(p95), ms(ownP95)],
    ['all answers', ...answers.map(of => ms(sum(of, answer => answer.all)))],
    ['keys and values held', ...held.map(bytes => `${(bytes / 2 ** 20).toFixed(1)} MiB`)],
  ] as [string, string, string][]
  const widths = [0, 1, 2].map(column => Math.max(...rows.map(row => (row[column] as string).length)))
  console.log(
    `\n${rows.map(row => row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0] as number) : cell.padStart(widths[column] as number))).join('   ')).join('\n')}`,
  )
  const times = median / ownMedian
  const share = 1 - sum(ours, answer => answer.computed) / sum(theirs, answer => answer.computed)
  const summary = `All tokens are the same. With kvtide the first one came ${times.toFixed(1)} times sooner, and the model computed ${Math.round(share * 100)} % less.`
  console.log(`\n${summary}`)
  const file = fileURLToPath(new URL('../../report.html', import.meta.url))
  writeFileSync(
    file,
    page({
      summary,
      rows,
      requests: requests.map(({ way }, at) => ({ way, answers: [theirs[at] as Answer, ours[at] as Answer] })),
    }),
  )
  console.log(`charts of it: ${file}`)
}

try {
  await main()
} catch (error) {
  if (!isRuntimeMissing(error)) throw error
  console.log('SKIPPED: there is no onnxruntime-node for this system. `npm run tour` shows the caches by themselves.')
}
