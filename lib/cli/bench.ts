import { cpus } from 'node:os'

import { attend } from '../attention/attend.js'
import { threads } from '../border/process.js'
import { KvCache } from '../contiguous/kv-cache.js'
import { binding } from '../loading/binding.js'
import type { PageFormat } from '../sequences/page-format.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import { type Answer, type Command, table } from './command.js'

/** What is measured: a call that moves so many bytes. */
interface Lane {
  readonly name: string
  readonly bytes: number
  readonly run: () => void
  /** How many calls a run is; one, where it is not said. */
  readonly calls?: number
  /** Makes ready what a run needs, before each; not measured. */
  readonly before?: () => void
}

interface Measured {
  readonly name: string
  readonly microseconds: number
  readonly p10: number
  readonly p90: number
  readonly gigabytesPerSecond: number
  /** Against a plain copy of as many bytes, in the same rounds. */
  readonly ofCopy: number
}

const [HEADS, QUERY_HEADS, DIM, LENGTH] = [8, 32, 128, 4096]
const ROUNDS = 31
/** Appends of single tokens in a run: one alone is too short for a clock. */
const TOKENS = 256

export const bench: Command = {
  usage: '[--json]',
  help: `Measures on this machine, with as many threads as kvtide uses: a token and a prompt that are appended, a past that is read back, a prompt that is found again, and attention
over 4,096 tokens in a cache and in pages of each format. 8 heads of 128 elements, 32 query heads, f32. Each is measured in rounds that take turns with a plain copy of memory; what is
printed is the median, the 10th and 90th percentile, and the rate against that copy. Other work on the machine makes all of it slower.`,
  options: {},
  files: 0,
  run: () => measure(),
}

const floats = (length: number): Float32Array => Float32Array.from({ length }, (_, at) => Math.sin(at))
const rows = (tokens: number): { data: Float32Array; shape: number[] } => ({ data: floats(HEADS * tokens * DIM), shape: [1, HEADS, tokens, DIM] })

/** Bytes of K and V of so many tokens. */
const kvBytes = (tokens: number): number => 2 * HEADS * DIM * 4 * tokens

/** Pages of a format with a sequence of 4,096 tokens. */
function pages(format: PageFormat): PagedKvCache {
  const cache = new PagedKvCache({ capacity: 2 * (LENGTH / 16), numLayers: 1, numKvHeads: HEADS, headDim: DIM, keyFormat: format, valueFormat: format })
  const sequence = cache.openSequence()
  sequence.append({ k: rows(LENGTH), v: rows(LENGTH), tokens: Array.from({ length: LENGTH }, (_, id) => id) })
  return cache
}

function lanes(): Lane[] {
  const cache = new KvCache({ batchSize: 1, numKvHeads: HEADS, initialCapacity: 2 * LENGTH, maxSeqLen: 2 * LENGTH, headDim: DIM })
  const [token, prompt] = [rows(1), rows(512)]
  cache.update(rows(LENGTH), rows(LENGTH))
  const q = { data: floats(QUERY_HEADS * DIM), shape: [1, QUERY_HEADS, 1, DIM] }
  const paged = pages('f32')
  const sequence = paged.sequence(0)
  const [k, v] = [new Float32Array(HEADS * LENGTH * DIM), new Float32Array(HEADS * LENGTH * DIM)]
  const ids = Array.from({ length: LENGTH + 1 }, (_, id) => id)
  const back = (): void => cache.truncate(LENGTH)
  const kv = cache.getKv()
  return [
    {
      name: 'append of a token',
      bytes: kvBytes(TOKENS),
      calls: TOKENS,
      before: back,
      run: () => {
        for (let at = 0; at < TOKENS; at++) cache.update(token, token)
      },
    },
    { name: 'append of 512 tokens', bytes: kvBytes(512), before: back, run: () => void cache.update(prompt, prompt) },
    { name: 'past of 4,096 tokens, read back from pages', bytes: kvBytes(LENGTH), run: () => void sequence.readInto({ k, v }) },
    { name: 'prompt of 4,096 tokens, found again', bytes: 4 * LENGTH, run: () => paged.match(ids).dispose() },
    { name: 'attention over 4,096 tokens, one query', bytes: kvBytes(LENGTH), before: back, run: () => void attend(q, kv) },
    ...(['f32', 'f16', 'q8', 'q4'] as const).map((format): Lane => {
      const of = format === 'f32' ? paged : pages(format)
      const queries = { ...q, shape: [1, QUERY_HEADS, DIM] }
      return { name: `the same in pages of ${format}`, bytes: of.bytesPerToken * LENGTH, run: () => void attend(queries, { cache: of, layer: 0, sequences: [0] }) }
    }),
  ]
}

/** Milliseconds of a call, repeated so often that the clock can tell. */
function timed(times: number, { before, run }: Pick<Lane, 'before' | 'run'>): number {
  let all = 0
  for (let time = 0; time < times; time++) {
    before?.()
    const started = performance.now()
    run()
    all += performance.now() - started
  }
  return all / times
}

function quantile(values: readonly number[], share: number): number {
  return values.toSorted((one, other) => one - other)[Math.floor(share * (values.length - 1))] as number
}

function measured(of: Lane): Measured {
  const bytes = Math.max(4, Math.ceil(of.bytes / 4) * 4)
  const [from, to] = [new Float32Array(bytes / 4).fill(1), new Float32Array(bytes / 4)]
  const copy = { run: () => void to.set(from) }
  const first = timed(3, of)
  const times = Math.max(1, Math.min(1000, Math.floor(4 / Math.max(first, 0.001))))
  const rounds = Array.from({ length: ROUNDS }, () => [timed(times, of), timed(times, copy)] as const).slice(1)
  const own = rounds.map(([time]) => time)
  const [median, copied] = [quantile(own, 0.5), quantile(rounds.map(([, time]) => time), 0.5)]
  const each = 1000 / (of.calls ?? 1)
  return { name: of.name, microseconds: each * median, p10: each * quantile(own, 0.1), p90: each * quantile(own, 0.9), gigabytesPerSecond: of.bytes / median / 1e6, ofCopy: copied / median }
}

const time = (microseconds: number): string => (microseconds < 10 ? microseconds.toFixed(2) : microseconds < 1000 ? microseconds.toFixed(1) : Math.round(microseconds).toLocaleString('en'))

function measure(): Answer {
  const found = lanes().map(measured)
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', kernels: binding.kernels(), threads: threads() }
  const cells = found.map(of => [of.name, time(of.microseconds), `${time(of.p10)} to ${time(of.p90)}`, of.gigabytesPerSecond.toFixed(1), of.ofCopy.toFixed(2)])
  const text = [`${machine.cpu}, kernels ${machine.kernels}, ${machine.threads === 1 ? '1 thread' : `${machine.threads} threads`}`, '', table([['', 'µs', '10 to 90 of 100', 'GB/s', 'of a copy'], ...cells])].join('\n')
  return { text, json: { ...machine, lanes: found } }
}
