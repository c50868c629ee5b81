// `npm start`: the same questions to the same model, without kvtide and with it, side by side.
//
// The demo's model has a million weights, and answers questions about caches. `npm start -- --model <folder | org/name>` runs the same on another one.
// Both sides have to give the same answers.
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'

import { type DownloadProgress, TextModel } from 'kvtide/text'

import { type Given, given, USAGE } from './given.js'
import { plainSide } from './plain-side.js'
import { clear, lines, progress } from './progress.js'
import { page } from './report.js'
import { type Answer, cachedSide, isRuntimeMissing } from './sides.js'
import { type Request, requestsOf, WARM_UP } from './workload.js'

/** Returns the median and the 95th percentile. */
function quantiles(values: readonly number[]): [median: number, p95: number] {
  const sorted = values.toSorted((one, other) => one - other)
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] as number
  return [at(0.5), at(0.95)]
}

const ms = (value: number): string =>
  value < 1000 ? `${value.toFixed(value < 10 ? 2 : 1)} ms` : `${(value / 1000).toFixed(2)} s`
const number = (value: number): string => value.toLocaleString('en')
const sum = (answers: readonly Answer[], of: (answer: Answer) => number): number =>
  answers.reduce((total, answer) => total + of(answer), 0)

function downloading({ file, allLoaded, allTotal }: DownloadProgress): void {
  progress(allLoaded, allTotal, `downloading ${file}`)
}

/** Loads the model. */
async function load({ model, dtype, threads, isDemo }: Given): Promise<TextModel> {
  const text = await TextModel.load(model, {
    threads,
    onProgress: downloading,
    ...(dtype === undefined ? {} : { dtype: dtype as 'f32' }),
    ...(isDemo ? { cache: { memoryBytes: 2 ** 26 } } : {}),
  })
  clear()
  return text
}

/** Asks both sides, prints the answers, and returns them. */
async function ask(requests: readonly Request[], plain: Side, cached: Side, isDemo: boolean): Promise<Run> {
  const run: Run = { plain: [], cached: [], held: [0, 0] }
  for (const [at, request] of requests.entries()) {
    const messages = request.messages(run.plain.map(answer => answer.text))
    progress(at, requests.length, request.question)
    const pair = [await plain.answer(messages), await cached.answer(messages)] as const
    for (const [side, of] of [plain, cached].entries()) run.held[side] = Math.max(run.held[side] as number, of.bytes())
    clear()
    const [one, other] = pair
    if (request.way !== 'question') console.log(`  (${request.way})`)
    const times = `${ms(one.first)}, ${ms(other.first)}`
    console.log(lines(`${request.question}  \u203A  ${one.text}`, times))
    // Weights of four bits round differently in chunks of another size: then two tokens may be equally probable.
    if (one.text !== other.text && isDemo)
      throw new Error(`the answers to request ${at + 1} differ: ${JSON.stringify([one.text, other.text])}`)
    run.plain.push(one)
    run.cached.push(other)
  }
  return run
}

type Side = ReturnType<typeof cachedSide>
interface Run {
  readonly plain: Answer[]
  readonly cached: Answer[]
  /** The most bytes of keys and values of each side. */
  readonly held: [number, number]
}

/** Returns the rows of the table, and the sentence above them. */
function summarised({ plain, cached, held }: Run): { rows: string[][]; summary: string } {
  const [[median, p95], [ownMedian, ownP95]] = [plain, cached].map(of => quantiles(of.map(({ first }) => first))) as [
    [number, number],
    [number, number],
  ]
  const [all, own] = [plain, cached].map(of => sum(of, ({ computed }) => computed)) as [number, number]
  const found = sum(cached, answer => answer.found)
  const rows = [
    ['', 'onnxruntime-node', 'kvtide'],
    ['tokens through the model', number(all), number(own)],
    ['prompt tokens found', '0', `${number(found)} of ${number(sum(cached, answer => answer.prompt))}`],
    ['first token, median', ms(median), ms(ownMedian)],
    ['first token, 95 of 100', ms(p95), ms(ownP95)],
    ['all answers', ...[plain, cached].map(of => ms(sum(of, answer => answer.all)))],
    ['keys and values held', ...held.map(bytes => `${(bytes / 2 ** 20).toFixed(1)} MiB`)],
  ]
  const share = Math.round((1 - own / all) * 100)
  const same = plain.filter(({ text }, at) => text === cached[at]?.text).length
  const equal = same === plain.length ? 'the same answers' : `${same} of ${plain.length} times the same answer`
  const summary = `With kvtide, the model computed ${share} % less, and gave ${equal}. The first token came ${(median / ownMedian).toFixed(1)} times sooner.`
  return { rows, summary }
}

async function main(options: Given): Promise<void> {
  const text = await load(options)
  await using cached = cachedSide(text)
  await using plain = await plainSide(text, options.threads)
  const requests = requestsOf(options.questions)
  // Warm-up: the first calls take extra time.
  for (const side of [plain, cached]) await side.answer(WARM_UP)
  const tokens = text.tokenizer.encode(text.render({ messages: (requests[0] as Request).messages([]) })).length
  console.log(
    `${requests.length} requests to ${options.isDemo ? 'a model of a million weights' : text.name}, each with ${number(tokens)} tokens of notes about a village before the question.
Behind each answer: the time to its first token without kvtide, and with it (${options.threads} threads of ${availableParallelism()}).\n`,
  )
  const run = await ask(requests, plain, cached, options.isDemo)
  const { rows, summary } = summarised(run)
  const widths = [0, 1, 2].map(column => Math.max(...rows.map(row => (row[column] as string).length)))
  const table = rows.map(row =>
    row
      .map((cell, column) =>
        column === 0 ? cell.padEnd(widths[0] as number) : cell.padStart(widths[column] as number),
      )
      .join('   '),
  )
  console.log(`\n${summary}\n\n${table.join('\n')}\n`)
  const file = fileURLToPath(new URL('../../report.html', import.meta.url))
  const asked = requests.map(({ way, question }, at) => ({
    way,
    question,
    answers: [run.plain[at] as Answer, run.cached[at] as Answer] as const,
  }))
  writeFileSync(file, page({ summary, rows, requests: asked }))
  console.log(`charts and all answers: ${file}`)
}

try {
  const options = given(process.argv.slice(2))
  if (options === 'help') console.log(USAGE)
  else await main(options)
} catch (error) {
  if (error instanceof TypeError) {
    console.error(`${error.message}\n\n${USAGE}`)
    process.exitCode = 2
  } else if (isRuntimeMissing(error))
    console.log('SKIPPED: there is no onnxruntime-node for this system. `npm run tour` shows the caches by themselves.')
  else throw error
}
