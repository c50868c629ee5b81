// A guided tour: each cache works on real data, and its content is compared with a plain recomputation.
//
//   npm run tour
//
// Exits with 1 if the content of a cache differs from the recomputation.
import {
  isKvTideError,
  KvCache,
  memoryStats,
  PagedKvCache,
  RollbackCache,
  RotatingKvCache,
  Tensor,
  type CacheStats,
  type HostTensor,
  type Sequence,
} from 'kvtide'

const HEADS = 8
const DIM = 64
const ROW = HEADS * DIM

let differences = 0
const table: Record<string, string | number>[] = []

/** Computes a token's vector from its number, so that the content of any cache can be recomputed. */
function element(token: number, index: number): number {
  return Math.fround(Math.sin(token * 0.37 + index * 0.011))
}

/** Returns tokens in the layout of a model: [1, heads, tokens, dim] in a new array. */
function tokens(numbers: readonly number[]): HostTensor & { readonly data: Float32Array } {
  const data = new Float32Array(ROW * numbers.length)
  for (let head = 0; head < HEADS; head++) {
    numbers.forEach((token, place) => {
      const row = (head * numbers.length + place) * DIM
      for (let d = 0; d < DIM; d++) data[row + d] = element(token, head * DIM + d)
    })
  }
  return { data, shape: [1, HEADS, numbers.length, DIM] }
}

function range(start: number, end: number): number[] {
  return Array.from({ length: end - start }, (_, place) => start + place)
}

/** Compares the content of a cache with the recomputation of the expected tokens, bit for bit. */
function check(what: string, shown: Tensor, expected: readonly number[]): void {
  const { data } = tokens(expected)
  const actual = shown.toArray()
  const same = actual.length === data.length && actual.every((value, place) => Object.is(value, data[place]))
  if (!same) differences += 1
  console.log(`   ${same ? 'as recomputed' : 'DIFFERENT    '}  ${what}`)
}

function expectCode(what: string, code: string, call: () => unknown): void {
  try {
    call()
    console.log(`   DIFFERENT      ${what}: nothing was thrown`)
    differences += 1
  } catch (error) {
    if (!isKvTideError(error) || error.code !== code) throw error
    console.log(`   refused        ${what}\n                  ${error.toString()}`)
  }
}

function timed<T>(work: () => T): [result: T, milliseconds: number] {
  const start = performance.now()
  return [work(), performance.now() - start]
}

function report(cache: string, work: string, count: number, milliseconds: number, stats: CacheStats): void {
  table.push({
    cache,
    work,
    'µs per token': Number(((milliseconds * 1000) / count).toFixed(2)),
    'buffer, KiB': Math.round(stats.bufferBytes / 1024),
    'copied, KiB': Math.round(stats.copiedBytes / 1024),
  })
}

function growing(): void {
  console.log('\nKvCache: a prompt of 100 tokens, then 412 more, one at a time')
  using cache = new KvCache({ batchSize: 1, numKvHeads: HEADS, initialCapacity: 64, maxSeqLen: 512, headDim: DIM })
  const prompt = tokens(range(0, 100))
  const steps = range(100, 512).map(token => tokens([token]))
  const [, ms] = timed(() => {
    cache.update(prompt, prompt)
    for (const step of steps) cache.update(step, step)
  })
  check('all 512 tokens, in order, after three doublings', cache.getKv().k, range(0, 512))
  expectCode('one token more than maxSeqLen', 'CACHE_OVERFLOW', () => cache.update(tokens([512]), tokens([512])))
  report('KvCache', '100 at once, then 412 singly', 512, ms, cache.stats())

  using snapshot = cache.snapshot()
  cache.truncate(300)
  cache.update(tokens(range(900, 950)), tokens(range(900, 950)))
  check('another continuation from token 300 on', cache.getKv().v, [...range(0, 300), ...range(900, 950)])
  cache.restore(snapshot)
  check('the snapshot, restored', cache.getKv().k, range(0, 512))
}

function sliding(): void {
  console.log('\nRotatingKvCache: a window of 256 tokens and 4 sinks, over 2,000 tokens')
  using cache = new RotatingKvCache({ maxSeqLen: 256, sinks: 4 })
  const steps = range(0, 2000).map(token => tokens([token]))
  const [, ms] = timed(() => {
    for (const step of steps) cache.append(step, step)
  })
  const current = cache.currentData()
  if (current === null) throw new Error('the window is empty')
  check('the four sinks and the newest 256 tokens', current.k, [...range(0, 4), ...range(1744, 2000)])
  console.log(`   positions      the two runs begin at ${current.k.keyPositions.join(' and ')}`)
  report('RotatingKvCache', '2,000 singly, window 256', 2000, ms, cache.stats())

  {
    using draft = cache.begin({ maxTokens: 8 })
    draft.append(tokens(range(7000, 7008)), tokens(range(7000, 7008)))
  }
  check('a draft of 8 that was not committed left no trace', (cache.currentData() ?? fail()).v, [
    ...range(0, 4),
    ...range(1744, 2000),
  ])
  const chunk = tokens(range(2000, 2040))
  const seen = cache.append(chunk, chunk)
  check('a chunk of 40: everything retained before, and all of it', seen.k, [...range(0, 4), ...range(1744, 2040)])
  for (const token of range(2040, 2300)) cache.append(tokens([token]), tokens([token]))
  expectCode('a view whose slots were overwritten', 'STALE_VIEW', () => current.k.toArray())
}

function drafting(): void {
  console.log('\nRollbackCache: a prompt of 32 tokens, then drafts of 5 of which 2 are kept, 50 times')
  using cache = new RollbackCache()
  cache.append(tokens(range(0, 32)), tokens(range(0, 32)))
  cache.commit()
  const drafts = range(0, 50).map(round => tokens(range(32 + round * 2, 37 + round * 2)))
  const [, ms] = timed(() => {
    for (const draft of drafts) {
      cache.append(draft, draft)
      cache.acceptPath([0, 1])
    }
  })
  check('the prompt and the 100 accepted tokens', (cache.current() ?? fail()).k, range(0, 132))
  report('RollbackCache', '50 drafts of 5, 2 kept', 250, ms, cache.stats())

  const mark = cache.snapshot()
  const tree = tokens([132, 700, 133, 701, 134])
  cache.append(tree, tree, { parents: [-1, -1, 0, 1, 2] })
  cache.acceptPath([0, 2, 4])
  check('the accepted path of a draft tree', (cache.current() ?? fail()).v, range(0, 135))
  cache.rollback(mark)
  check('and back to the mark before it', (cache.current() ?? fail()).k, range(0, 132))
}

function paging(): void {
  console.log('\nPagedKvCache: three sequences in one pool of 48 blocks of 16 tokens, 2 layers')
  using cache = new PagedKvCache({ capacity: 48, numLayers: 2, numKvHeads: HEADS, headDim: DIM })
  const sequences = [cache.createSequence(), cache.createSequence(), cache.createSequence()]
  const vectors = range(0, 200).map(token => tokens([token]).data)
  const [, ms] = timed(() => {
    for (const [place, seq] of sequences.entries()) {
      for (let pos = 0; pos < 100; pos++) {
        const vector = vectors[pos + place * 50] as Float32Array
        cache.writeKv(seq, 0, pos, vector, vector)
        cache.writeKv(seq, 1, pos, vector, vector)
      }
    }
  })
  for (const [place, seq] of sequences.entries()) {
    const { key } = cache.readKv(seq, 1, 99)
    check(`the last token of sequence ${seq}`, Tensor.from(key, [1, HEADS, 1, DIM]), [99 + place * 50])
  }
  console.log(`   blocks         ${cache.totalCount - cache.freeCount} of ${cache.totalCount} in use`)
  expectCode('more than the pool has left', 'OUT_OF_BLOCKS', () => cache.ensureCapacity(sequences[0] as number, 2000))
  report('PagedKvCache', '3 sequences of 100, 2 layers', 600, ms, cache.stats())
  for (const seq of sequences) cache.dropSequence(seq)
  console.log(`   blocks         ${cache.totalCount - cache.freeCount} in use after all were dropped`)
}

/** Returns tokens of both layers: [2, heads, tokens, dim]. */
function layers(numbers: readonly number[]): HostTensor {
  const { data } = tokens(numbers)
  const both = new Float32Array(2 * data.length)
  both.set(data)
  both.set(data, data.length)
  return { data: both, shape: [2, HEADS, numbers.length, DIM] }
}

function sharing(): void {
  console.log('\nPagedKvCache: a prompt of 100 tokens with a cache hit, two beams, and a draft')
  using cache = new PagedKvCache({ capacity: 48, numLayers: 2, numKvHeads: HEADS, headDim: DIM })
  const shown = (seq: Sequence): Tensor => cache.gather(seq, 1).k.reshape([1, HEADS, seq.length, DIM])
  const prompt = range(0, 100)
  const first = cache.openSequence({ salt: 'tenant 1' })
  const [, ms] = timed(() => first.append({ tokens: prompt, k: layers(prompt), v: layers(prompt) }))
  report('PagedKvCache', 'a prompt of 100, 2 layers', 100, ms, cache.stats())
  first.drop()

  const [match, found] = timed(() => cache.match(prompt, { salt: 'tenant 1' }))
  using stranger = cache.match(prompt, { salt: 'tenant 2' })
  console.log(
    `   found          ${match.length} of 100 tokens in ${Math.round(found * 1000)} µs; ${stranger.length} by another tenant`,
  )
  using chat = cache.openSequence({ prefix: match })
  check('the cached prefix of a sequence that was dropped', shown(chat), range(0, 96))
  chat.append({ tokens: range(96, 100), k: layers(range(96, 100)), v: layers(range(96, 100)) })

  using beam = chat.fork()
  beam.append({ tokens: [500], k: layers([500]), v: layers([500]) })
  check('a beam, which shares all blocks except the last', shown(beam), [...prompt, 500])
  {
    using draft = chat.begin()
    const drafted = layers([100, 700, 101])
    draft.append({ k: drafted, v: drafted, parents: [-1, -1, 0], tokens: [100, 700, 101] })
    expectCode('another change while a draft is open', 'TRANSACTION_OPEN', () => chat.truncate(0))
    draft.commitPath([0, 2])
  }
  check('the accepted path of a draft, and nothing of the beam', shown(chat), range(0, 102))
  const { copiesOnWrite, hitTokens } = cache.stats()
  console.log(`   blocks         ${copiesOnWrite} copied on write; ${hitTokens} tokens were cache hits`)
}

function fail(): never {
  throw new Error('the cache is empty')
}

console.log(`kvtide, a tour: K and V of ${HEADS} heads and ${DIM} dimensions in f32, ${(ROW * 8) / 1024} KiB a token`)
growing()
sliding()
drafting()
paging()
sharing()

console.log('\nCost, including the calls from TypeScript:')
console.table(table)
console.log(`native memory in use: ${Math.round(memoryStats().usedBytes / 1024)} KiB`)
console.log(differences === 0 ? 'everything as recomputed' : `${differences} differences`)
process.exitCode = differences === 0 ? 0 : 1
