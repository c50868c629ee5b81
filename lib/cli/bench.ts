// `kvtide bench`: measures appends, reads, lookups and attention on this machine. Each round also times a plain copy of as many bytes, so that results can be
// compared between machines and runs. Takes a few seconds.
import { cpus } from 'node:os'

import { attend } from '../paged/attend.js'
import { threads } from '../border/process.js'
import { KvCache } from '../contiguous/kv-cache.js'
import { binding } from '../loading/binding.js'
import type { PageFormat } from '../sequences/page-format.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import { type Answer, type Command, table } from './command.js'
import { lane, measure, type Contestant, type Role } from './rounds.js'
import { spreadOf } from './spread.js'

/** A measured operation, and the number of bytes that it moves. */
interface Lane {
  readonly name: string
  readonly bytes: number
  readonly run: () => void
  /** The number of calls in one run; 1 by default. */
  readonly calls?: number
  /** Prepares each run; not timed. */
  readonly before?: () => void
}

interface Measurement {
  readonly name: string
  readonly microseconds: number
  readonly p10: number
  readonly p90: number
  readonly gigabytesPerSecond: number
  /** The rate relative to a plain copy of as many bytes, in the same rounds. */
  readonly ofCopy: number
}

const [HEADS, QUERY_HEADS, DIM, LENGTH] = [8, 32, 128, 4096]
const ROUNDS = 31
/** Single-token appends in a run: one alone is too short to time. */
const TOKENS = 256

export const bench: Command = {
  usage: '[--json]',
  help: `Measures on this machine, with kvtide's number of threads: appending a token and a prompt, reading a past back, looking up a cached prompt, and attention
over 4,096 tokens in a contiguous cache and in pages of each format. 8 heads of 128 elements, 32 query heads, f32. Each is timed in rounds that alternate with a plain memory copy. It
prints the median, the 10th and 90th percentile, and the rate relative to that copy. Other load on the machine slows all results down.`,
  options: {},
  files: 0,
  run: measured,
}

const floats = (length: number): Float32Array => Float32Array.from({ length }, (_, at) => Math.sin(at))
const rows = (tokens: number): { data: Float32Array; shape: number[] } => ({
  data: floats(HEADS * tokens * DIM),
  shape: [1, HEADS, tokens, DIM],
})

/** Bytes of K and V for a number of tokens. */
const kvBytes = (tokens: number): number => 2 * HEADS * DIM * 4 * tokens

/** A cache with pages of a format, and a sequence of 4,096 tokens in it. */
function pages(format: PageFormat): PagedKvCache {
  const cache = new PagedKvCache({
    capacity: 2 * (LENGTH / 16),
    numLayers: 1,
    numKvHeads: HEADS,
    headDim: DIM,
    keyFormat: format,
    valueFormat: format,
  })
  const sequence = cache.openSequence()
  sequence.append({ k: rows(LENGTH), v: rows(LENGTH), tokens: Array.from({ length: LENGTH }, (_, id) => id) })
  return cache
}

function lanes(): Lane[] {
  const cache = new KvCache({
    batchSize: 1,
    numKvHeads: HEADS,
    initialCapacity: 2 * LENGTH,
    maxSeqLen: 2 * LENGTH,
    headDim: DIM,
  })
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
    {
      name: 'past of 4,096 tokens, read back from pages',
      bytes: kvBytes(LENGTH),
      run: () => void sequence.readInto({ k, v }),
    },
    { name: 'lookup of a cached prompt of 4,096 tokens', bytes: 4 * LENGTH, run: () => paged.match(ids).dispose() },
    {
      name: 'attention over 4,096 tokens, one query',
      bytes: kvBytes(LENGTH),
      before: back,
      run: () => void attend(q, kv),
    },
    ...(['f32', 'f16', 'q8', 'q4'] as const).map((format): Lane => {
      const of = format === 'f32' ? paged : pages(format)
      const queries = { ...q, shape: [1, QUERY_HEADS, DIM] }
      return {
        name: `the same in pages of ${format}`,
        bytes: of.bytesPerToken * LENGTH,
        run: () => void attend(queries, { cache: of, layer: 0, sequences: [0] }),
      }
    }),
  ]
}

/** Returns the number of runs in a round of some milliseconds, estimated from the first runs. */
function repeats(run: () => void): number {
  const started = performance.now()
  for (let time = 0; time < 3; time++) run()
  return Math.max(1, Math.min(1000, Math.floor(12 / Math.max(performance.now() - started, 0.001))))
}

/** Returns a lane whose rounds repeat `run` often enough for the clock's resolution. A lane with `before` runs once per round, because its run is long enough. */
function contestant(
  role: Role,
  name: string,
  { before, run, calls = 1 }: Pick<Lane, 'before' | 'run' | 'calls'>,
): Contestant {
  if (before !== undefined) return lane(role, name, calls, run, { before })
  const times = repeats(run)
  return lane(role, name, times * calls, () => {
    for (let time = 0; time < times; time++) run()
  })
}

async function besideCopy(of: Lane): Promise<Measurement> {
  const length = Math.max(1, Math.ceil(of.bytes / 4))
  const [from, to] = [new Float32Array(length).fill(1), new Float32Array(length)]
  const [own, copied] = (
    await measure([contestant('ours', of.name, of), contestant('limit', 'copy', { run: () => to.set(from) })], ROUNDS)
  ).map(({ nanoseconds }) => spreadOf(nanoseconds))
  if (own === undefined || copied === undefined) throw new RangeError('two lanes have two spreads')
  const nanoseconds = own.median * (of.calls ?? 1)
  return {
    name: of.name,
    microseconds: own.median / 1000,
    p10: own.p10 / 1000,
    p90: own.p90 / 1000,
    gigabytesPerSecond: of.bytes / nanoseconds,
    ofCopy: copied.median / nanoseconds,
  }
}

const time = (microseconds: number): string =>
  microseconds < 10
    ? microseconds.toFixed(2)
    : microseconds < 1000
      ? microseconds.toFixed(1)
      : Math.round(microseconds).toLocaleString('en')

async function measured(): Promise<Answer> {
  const found: Measurement[] = []
  for (const of of lanes()) found.push(await besideCopy(of))
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', kernels: binding.kernels(), threads: threads() }
  const cells = found.map(of => [
    of.name,
    time(of.microseconds),
    `${time(of.p10)} to ${time(of.p90)}`,
    of.gigabytesPerSecond.toFixed(1),
    of.ofCopy.toFixed(2),
  ])
  const text = [
    `${machine.cpu}, kernels ${machine.kernels}, ${machine.threads === 1 ? '1 thread' : `${machine.threads} threads`}`,
    '',
    table([['', 'µs', '10th to 90th percentile', 'GB/s', 'relative to a copy'], ...cells]),
  ].join('\n')
  return { text, json: { ...machine, lanes: found } }
}
