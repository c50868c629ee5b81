// A step that is computed apart from its cache: the bits of step.write and step.attend, what is refused meanwhile, what ends in the middle, and
// other threads.
import test from 'ava'

import {
  type AttendOptions,
  type HostTensor,
  PagedKvCache,
  type Sequence,
  type Step,
  type TensorData,
  type UniformCacheOptions,
} from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { LentRun } from '../../lib/sequences/lent-run.js'
import { StepRun } from '../../lib/sequences/step-run.js'
import { throwsCode } from '../support/throws.js'
import { startWorker } from '../support/worker.js'

const LAYERS = 2
const [HEADS, KV_HEADS, DIM] = [4, 2, 8]

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 1000, blockSize: 4, numLayers: LAYERS, numKvHeads: KV_HEADS, headDim: DIM, ...options })

/** Numbers between -1 and 1 that follow from where they stand. */
const number = (seed: number, token: number, head: number, at: number): number =>
  Math.sin(seed * 7 + token * 1.3 + head * 0.7 + at * 0.19)

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
  for (let layer = 0; layer < LAYERS; layer++)
    step.write(layer, written(layer + 20, tokens), written(layer + 30, tokens))
  step.commit()
}

/** The output of a step, layer by layer, computed by the cache. */
function here(step: Step, options: AttendOptions): TensorData[] {
  const tokens = step.length
  return Array.from({ length: LAYERS }, (_, layer) => {
    step.write(layer, written(layer, tokens), written(layer + 10, tokens))
    return step.attend(layer, rows(layer + 40, tokens, HEADS, false), options).out.toArray()
  })
}

const attend = (
  run: LentRun,
  layer: number,
  tokens: number,
  headsFirst: boolean,
  options: AttendOptions = {},
): TensorData =>
  run.attend(
    layer,
    rows(layer + 40, tokens, HEADS, headsFirst),
    rows(layer, tokens, KV_HEADS, headsFirst),
    rows(layer + 10, tokens, KV_HEADS, headsFirst),
    options,
  )

/** `[heads, tokens, dim]` as `[tokens, heads, dim]`. */
function turned(data: TensorData, tokens: number): number[] {
  const out: number[] = []
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < HEADS; head++)
      out.push(...data.subarray((head * tokens + token) * DIM, (head * tokens + token + 1) * DIM))
  }
  return out
}

const formats: Partial<UniformCacheOptions>[] = [{}, { keyFormat: 'q8', valueFormat: 'q4' }, { window: 5 }]
const settings: AttendOptions[] = [
  {},
  { scale: 0.3, softcap: 5, sinkLogits: [1, -2, 0.5, -Infinity], alibiSlopes: [0.5, 0.1, -0.2, 0] },
]

for (const [before, tokens] of [
  [0, 9],
  [7, 1],
  [7, 3],
  [1600, 2],
  [1000, 70],
] as const) {
  test(`a step of ${tokens} tokens behind ${before} elsewhere has the bits of one here`, t => {
    for (const format of formats) {
      for (const options of settings) {
        for (const headsFirst of [false, true]) {
          using cache = cacheOf(format)
          const [one, other] = [cache.openSequence(), cache.openSequence()]
          if (before > 0) for (const seq of [one, other]) fill(seq, cache, before)
          using step = cache.beginStep({ sequences: [one], offsets: [0, tokens] })
          const expected = here(step, options)
          step.commit()
          const held = Array.from({ length: LAYERS }, (_, layer) => cache.gather(other, layer)).map(({ k, v }) => ({
            k: k.toArray(),
            v: v.toArray(),
          }))
          using same = cache.beginStep({ sequences: [other], offsets: [0, tokens] })
          using run = StepRun.of(same)
          using lent = LentRun.taken(run.share())
          for (let layer = 0; layer < LAYERS; layer++) {
            t.deepEqual(lent.gather(layer, 0, true), held[layer])
            const out = attend(lent, layer, tokens, headsFirst, options)
            t.deepEqual(headsFirst ? turned(out, tokens) : Array.from(out), Array.from(expected[layer] as TensorData))
          }
          t.is(other.length, before)
          throwsCode(t, 'BUSY', () => run.end())
          lent.dispose()
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

test('half floats come out as their bits', t => {
  using cache = cacheOf({ dtype: 'f16', numKvHeads: 1, headDim: 2, numLayers: 1 })
  const one = cache.openSequence()
  using step = cache.beginStep({ sequences: [one], offsets: [0, 1] })
  using run = StepRun.of(step)
  using lent = LentRun.taken(run.share())
  const out = lent.attend(0, bits(0x3c00, 0), bits(0x3c00, 0x4000), bits(0x4000, 0xc200))
  t.deepEqual(out, Uint16Array.of(0x4000, 0xc200))
  throwsCode(t, 'DTYPE_MISMATCH', () =>
    lent.attend(0, bits(0, 0), { data: new Float32Array(2), shape: [1, 1, 2] }, bits(0, 0)),
  )
  lent.dispose()
  run.end()
  step.commit()
  using next = cache.beginStep({ sequences: [one], offsets: [0, 1] })
  using again = StepRun.of(next)
  using reader = LentRun.taken(again.share())
  t.deepEqual(reader.gather(0, 0, false).v, Uint16Array.of(0x4000, 0xc200))
  t.deepEqual(reader.gather(0, 0, true).v, Float32Array.of(2, -3))
})

test('while it is out nothing touches pages, and the rest goes on', t => {
  using cache = cacheOf()
  const [one, other] = [cache.openSequence(), cache.openSequence()]
  fill(other, cache, 10)
  using step = cache.beginStep({ sequences: [one], offsets: [0, 3] })
  using run = StepRun.of(step)
  const token = {
    k: { data: new Float32Array(LAYERS * KV_HEADS * DIM), shape: [LAYERS, KV_HEADS, 1, DIM] },
    v: { data: new Float32Array(LAYERS * KV_HEADS * DIM), shape: [LAYERS, KV_HEADS, 1, DIM] },
  }
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
  const lent = LentRun.taken(run.share())
  for (let layer = 0; layer < LAYERS; layer++) attend(lent, layer, 3, false)
  lent.dispose()
  throwsCode(t, 'DISPOSED', () => attend(lent, 0, 3, false))
  run.end()
  throwsCode(t, 'DISPOSED', () => run.end())
  throwsCode(t, 'DISPOSED', () => run.share())
  step.commit()
  other.append(token)
  t.deepEqual([one.length, other.length], [3, 11])
})

test('one has it at a time, and it ends when that one gives it back', t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  using step = cache.beginStep({ sequences: [one], offsets: [0, 3] })
  using run = StepRun.of(step)
  const left = run.share()
  throwsCode(t, 'BUSY', () => run.share())
  throwsCode(t, 'BUSY', () => run.end())
  binding.unshare(left)
  binding.unshare(left)
  throwsCode(t, 'INVALID_ARGUMENT', () => LentRun.taken(left))
  for (const wrong of [-1, 0.5, NaN, 1e300]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => LentRun.taken(wrong))
    binding.unshare(wrong)
  }
  const again = run.share()
  throwsCode(t, 'INVALID_ARGUMENT', () => binding.NativeOnnxGraph.taken(again))
  using lent = LentRun.taken(again)
  throwsCode(t, 'INVALID_ARGUMENT', () => LentRun.taken(again))
  for (let layer = 0; layer < LAYERS; layer++) attend(lent, layer, 3, false)
  throwsCode(t, 'INVALID_ARGUMENT', () => run.logits())
  throwsCode(t, 'INVALID_ARGUMENT', () => lent.logits(new Float32Array(5), 'f32', 2, 3))
  lent.logits(Float32Array.of(1, 2, 3, 4, 5, 6), 'f32', 2, 3)
  lent.dispose()
  run.end()
  const logits = run.logits()
  t.deepEqual([logits.row(0), logits.row(1)], [Float32Array.of(1, 2, 3), Float32Array.of(4, 5, 6)])
  throwsCode(t, 'INVALID_ARGUMENT', () => run.logits())
  step.commit()
  t.is(one.length, 3)
})

test('another thread computes it, and gives it back also where it just ends', async t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  const lentRun = new URL('../../lib/sequences/lent-run.ts', import.meta.url).href
  for (const disposes of [true, false]) {
    using step = cache.beginStep({ sequences: [one], offsets: [0, 3] })
    using run = StepRun.of(step)
    const worker = startWorker(
      `const { LentRun } = await import(${JSON.stringify(lentRun)})
      const run = LentRun.taken(workerData.number)
      for (const layer of [0, 1]) run.write(layer, workerData.rows, workerData.rows)
      if (workerData.disposes) run.dispose()
      globalThis.kept = run`,
      { number: run.share(), rows: written(1, 3), disposes },
    )
    t.is(await new Promise((resolve, reject) => worker.once('exit', resolve).once('error', reject)), 0)
    run.end()
    step.commit()
  }
  t.is(one.length, 6)
  t.deepEqual(cache.gather(one, 1).k.narrow(1, 0, 3).toArray(), written(1, 3).data)
})

test('what ends in the middle leaves nothing behind', t => {
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
    const lent = LentRun.taken(run.share())
    attend(lent, 0, 300, false)
    end(cache, one, step, run)
    t.is(attend(lent, 1, 300, false).length, 300 * HEADS * DIM, `${place}`)
    lent.dispose()
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

test('a call that is refused leaves the run as it was', t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  using step = cache.beginStep({ sequences: [one], offsets: [0, 2] })
  using run = StepRun.of(step)
  using lent = LentRun.taken(run.share())
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(lent, LAYERS, 2, false))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(lent, 0, 3, false))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(lent, -1, 2, false))
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(lent, 0, 2, false, { scale: NaN }))
  throwsCode(t, 'INVALID_ARGUMENT', () =>
    lent.attend(0, null as never, rows(0, 2, KV_HEADS, false), rows(0, 2, KV_HEADS, false)),
  )
  throwsCode(t, 'INVALID_ARGUMENT', () => lent.write(LAYERS, written(0, 2), written(0, 2)))
  throwsCode(t, 'INVALID_ARGUMENT', () => lent.gather(0, 1, true))
  throwsCode(t, 'INVALID_ARGUMENT', () => lent.gather(LAYERS, 0, true))
  throwsCode(t, 'INVALID_ARGUMENT', () => StepRun.of({} as Step))
  lent.dispose()
  run.end()
  throwsCode(t, 'STEP_INCOMPLETE', () => step.commit(), { layers: [0, 1] })
})
