// A step that is computed apart from its cache: the bits of step.write and step.attend, at once and in the background, what is refused
// meanwhile, and what ends in the middle.
import test, { type ExecutionContext } from 'ava'

import { type AttendOptions, type ErrorCode, type HostTensor, KvTideError, PagedKvCache, type Sequence, type Step, type TensorData, type UniformCacheOptions } from '../../index.js'
import { StepRun } from '../../lib/sequences/step-run.js'
import { throwsCode } from '../support/throws.js'

const LAYERS = 2
const [HEADS, KV_HEADS, DIM] = [4, 2, 8]

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 1000, blockSize: 4, numLayers: LAYERS, numKvHeads: KV_HEADS, headDim: DIM, ...options })

/** Numbers between -1 and 1 that follow from where they stand. */
const number = (seed: number, token: number, head: number, at: number): number => Math.sin(seed * 7 + token * 1.3 + head * 0.7 + at * 0.19)

/** Rows of tokens, `[tokens, heads, dim]` or `[1, heads, tokens, dim]`. */
function rows(seed: number, tokens: number, heads: number, headsFirst: boolean): HostTensor {
  const data = new Float32Array(tokens * heads * DIM)
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const start = (headsFirst ? head * tokens + token : token * heads + head) * DIM
      for (let at = 0; at < DIM; at++) data[start + at] = number(seed, token, head, at)
    }
  }
  return { data, shape: headsFirst ? [1, heads, tokens, DIM] : [tokens, heads, DIM] }
}

/** K and V as `step.write` takes them. */
const written = (seed: number, tokens: number): HostTensor => rows(seed, tokens, KV_HEADS, true)

function fill(seq: Sequence, cache: PagedKvCache, tokens: number): void {
  using step = cache.beginStep({ sequences: [seq], offsets: [0, tokens] })
  for (let layer = 0; layer < LAYERS; layer++) step.write(layer, written(layer + 20, tokens), written(layer + 30, tokens))
  step.commit()
}

/** What a step gives layer by layer, computed by the cache. */
function here(step: Step, options: AttendOptions): TensorData[] {
  const tokens = step.length
  return Array.from({ length: LAYERS }, (_, layer) => {
    step.write(layer, written(layer, tokens), written(layer + 10, tokens))
    return step.attend(layer, rows(layer + 40, tokens, HEADS, false), options).out.toArray()
  })
}

const attend = (run: StepRun, layer: number, tokens: number, headsFirst: boolean, options: AttendOptions = {}): Promise<TensorData> =>
  run.attend(layer, rows(layer + 40, tokens, HEADS, headsFirst), rows(layer, tokens, KV_HEADS, headsFirst), rows(layer + 10, tokens, KV_HEADS, headsFirst), options)

/** Checks that a promise is rejected with a code. */
async function rejectsCode(t: ExecutionContext, code: ErrorCode, promise: Promise<unknown>): Promise<void> {
  await t.throwsAsync(promise, { instanceOf: KvTideError, code })
}

/** `[heads, tokens, dim]` as `[tokens, heads, dim]`. */
function turned(data: TensorData, tokens: number): number[] {
  const out: number[] = []
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < HEADS; head++) out.push(...data.subarray((head * tokens + token) * DIM, (head * tokens + token + 1) * DIM))
  }
  return out
}

const formats: Partial<UniformCacheOptions>[] = [{}, { keyFormat: 'q8', valueFormat: 'q4' }, { window: 5 }]
const settings: AttendOptions[] = [{}, { scale: 0.3, softcap: 5, sinkLogits: [1, -2, 0.5, -Infinity] }]

for (const [before, tokens] of [[0, 9], [7, 1], [7, 3], [1600, 2], [1000, 70]] as const) {
  test(`a step of ${tokens} tokens behind ${before} elsewhere has the bits of one here`, async t => {
    for (const format of formats) {
      for (const options of settings) {
        for (const headsFirst of [false, true]) {
          using cache = cacheOf(format)
          const [one, other] = [cache.openSequence(), cache.openSequence()]
          if (before > 0) for (const seq of [one, other]) fill(seq, cache, before)
          using step = cache.beginStep({ sequences: [one], offsets: [0, tokens] })
          const expected = here(step, options)
          step.commit()
          using same = cache.beginStep({ sequences: [other], offsets: [0, tokens] })
          using run = StepRun.of(same)
          for (let layer = 0; layer < LAYERS; layer++) {
            const out = await attend(run, layer, tokens, headsFirst, options)
            t.deepEqual(headsFirst ? turned(out, tokens) : Array.from(out), Array.from(expected[layer] as TensorData))
          }
          t.is(other.length, before)
          run.end()
          same.commit()
          t.deepEqual(cache.gather(other, 0).k.toArray(), cache.gather(one, 0).k.toArray())
          cache.checkInvariants()
        }
      }
    }
  })
}

const bits = (...data: number[]): HostTensor => ({ data: Uint16Array.from(data), dtype: 'f16', shape: [1, 1, 2] })

test('half floats come out as their bits', async t => {
  using cache = cacheOf({ dtype: 'f16', numKvHeads: 1, headDim: 2, numLayers: 1 })
  const one = cache.openSequence()
  using step = cache.beginStep({ sequences: [one], offsets: [0, 1] })
  using run = StepRun.of(step)
  const out = await run.attend(0, bits(0x3c00, 0), bits(0x3c00, 0x4000), bits(0x4000, 0xc200))
  t.deepEqual(out, Uint16Array.of(0x4000, 0xc200))
  await rejectsCode(t, 'DTYPE_MISMATCH', run.attend(0, bits(0, 0), { data: new Float32Array(2), shape: [1, 1, 2] }, bits(0, 0)))
})

test('while it is out nothing touches pages, and the rest goes on', async t => {
  using cache = cacheOf()
  const [one, other] = [cache.openSequence(), cache.openSequence()]
  fill(other, cache, 10)
  using step = cache.beginStep({ sequences: [one], offsets: [0, 3] })
  using run = StepRun.of(step)
  const token = { k: { data: new Float32Array(LAYERS * KV_HEADS * DIM), shape: [LAYERS, KV_HEADS, 1, DIM] }, v: { data: new Float32Array(LAYERS * KV_HEADS * DIM), shape: [LAYERS, KV_HEADS, 1, DIM] } }
  const writes: (() => unknown)[] = [
    () => other.append(token),
    () => cache.beginStep({ sequences: [other] }),
    () => step.write(0, written(0, 3), written(0, 3)),
    () => step.attend(0, rows(0, 3, HEADS, false)),
    () => step.commit(),
    () => StepRun.of(step),
  ]
  for (const call of writes) throwsCode(t, 'BUSY', call)
  throwsCode(t, 'TRANSACTION_OPEN', () => one.truncate(0))
  const forked = other.fork()
  using snapshot = other.snapshot()
  other.truncate(6)
  other.restore(snapshot)
  using draft = forked.begin()
  draft.rollback()
  forked.dispose()
  cache.match([1, 2, 3]).dispose()
  cache.openSequence().dispose()
  t.is(cache.gather(other, 1).k.shape[1], 10)
  cache.checkInvariants()
  for (let layer = 0; layer < LAYERS; layer++) await attend(run, layer, 3, false)
  run.end()
  throwsCode(t, 'DISPOSED', () => run.end())
  await rejectsCode(t, 'DISPOSED', attend(run, 0, 3, false))
  step.commit()
  other.append(token)
  t.deepEqual([one.length, other.length], [3, 11])
})

test('it has one call at a time, and ends when that has', async t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  using step = cache.beginStep({ sequences: [one], offsets: [0, 300] })
  using run = StepRun.of(step)
  const first = attend(run, 0, 300, false)
  await rejectsCode(t, 'BUSY', attend(run, 1, 300, false))
  throwsCode(t, 'BUSY', () => run.end())
  t.is((await first).length, 300 * HEADS * DIM)
  await attend(run, 1, 300, false)
  run.end()
  step.commit()
  t.is(one.length, 300)
})

test('what ends in the middle leaves nothing behind', async t => {
  const ends: ((cache: PagedKvCache, one: Sequence, step: Step, run: StepRun) => void)[] = [
    (_, one) => one.dispose(),
    (_, __, step) => step.dispose(),
    (_, __, ___, run) => run.dispose(),
    cache => cache.dispose(),
  ]
  for (const [place, end] of ends.entries()) {
    const cache = cacheOf()
    const [one, other] = [cache.openSequence(), cache.openSequence()]
    const step = cache.beginStep({ sequences: [one], offsets: [0, 300] })
    const run = StepRun.of(step)
    const working = attend(run, 0, 300, false)
    end(cache, one, step, run)
    t.is((await working).length, 300 * HEADS * DIM, `${place}`)
    if (place === 2) throwsCode(t, 'DISPOSED', () => run.end())
    else if (place === 3) throwsCode(t, 'DISPOSED', () => step.commit())
    else throwsCode(t, place === 0 ? 'STALE_STEP' : 'TRANSACTION_CLOSED', () => run.end())
    run.dispose()
    if (place < 3) {
      fill(other, cache, 5)
      t.is(other.length, 5)
      cache.checkInvariants()
    }
    step.dispose()
    cache.dispose()
  }
})

test('a call that is refused leaves the run as it was', async t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  using step = cache.beginStep({ sequences: [one], offsets: [0, 2] })
  using run = StepRun.of(step)
  await rejectsCode(t, 'INVALID_ARGUMENT', attend(run, LAYERS, 2, false))
  await rejectsCode(t, 'INVALID_ARGUMENT', attend(run, 0, 3, false))
  await rejectsCode(t, 'INVALID_ARGUMENT', attend(run, -1, 2, false))
  await rejectsCode(t, 'INVALID_ARGUMENT', attend(run, 0, 2, false, { scale: NaN }))
  await rejectsCode(t, 'INVALID_ARGUMENT', run.attend(0, null as never, rows(0, 2, KV_HEADS, false), rows(0, 2, KV_HEADS, false)))
  throwsCode(t, 'INVALID_ARGUMENT', () => StepRun.of({} as Step))
  run.end()
  throwsCode(t, 'STEP_INCOMPLETE', () => step.commit(), { layers: [0, 1] })
})
