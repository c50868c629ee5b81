// A router whose prompts are named differently from its workers' blocks says so once, and one that just finds nothing says nothing.
import { setImmediate } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'

import { PagedKvCache, PrefixNamer, type PrefixNamerOptions, PrefixRouter } from '../../index.js'

const FORM = {
  blockSize: 2,
  numLayers: 1,
  numKvHeads: 1,
  headDim: 1,
  namespace: 'a',
  prefixKey: new Uint8Array(32).fill(7),
}

const warnings: (Error & { code?: string })[] = []
process.on('warning', warning => warnings.push(warning))

/** The warnings of routers since the last call. */
async function warned(): Promise<readonly string[]> {
  await setImmediate()
  return warnings
    .splice(0)
    .filter(({ code }) => code === 'KVTIDE_ROUTER_MISMATCH')
    .map(({ message }) => message)
}

/** A worker in this process, whose events the router takes in at once. */
class Worker {
  readonly cache = new PagedKvCache({ ...FORM, capacity: 4096, events: 100_000 })
  readonly router = new PrefixRouter()
  readonly #events = this.cache.events()

  constructor() {
    this.router.addWorker('one')
    this.router.addWorker('idle')
  }

  async compute(tokens: readonly number[]): Promise<void> {
    const seq = this.cache.openSequence({ prefix: this.cache.match(tokens) })
    const rest = tokens.slice(seq.length)
    const rows = { data: new Float32Array(rest.length), shape: [1, 1, rest.length, 1] }
    const whole = Math.floor(tokens.length / FORM.blockSize) - Math.floor(seq.length / FORM.blockSize)
    seq.append({ tokens: rest, k: rows, v: rows })
    seq.drop()
    for (let block = 0; block < whole; block++) this.router.apply('one', [(await this.#events.next()).value!])
  }

  [Symbol.dispose](): void {
    this.#events.dispose()
    this.router.dispose()
    this.cache.dispose()
  }
}

/** Numbers below a limit that follow from a seed; `KVTIDE_SEED` repeats a run. */
function numbers(t: ExecutionContext): (limit: number) => number {
  let state = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
  t.log(`KVTIDE_SEED=${state}`)
  return limit => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * limit)
  }
}

/** A prompt with a system prompt of four tokens, and an end that no other one has. */
const prompt = (number: number): number[] => [
  1,
  2,
  3,
  4,
  ...Array.from({ length: 12 }, (_, at) => 100 + number * 12 + at),
]

const differing: readonly [string, Partial<PrefixNamerOptions>][] = [
  ['another namespace', { namespace: 'b' }],
  ['another prefixKey', { prefixKey: new Uint8Array(32) }],
  ['another block size', { blockSize: 4 }],
  ['another form of pages', { keyFormat: 'q8' }],
]

test.serial('names that differ are said once for each router, whatever makes them differ', async t => {
  await warned()
  for (const [what, difference] of differing) {
    using worker = new Worker()
    using namer = new PrefixNamer({ ...FORM, ...difference } as PrefixNamerOptions)
    for (let number = 0; number < 200; number++) {
      const keys = namer.keys(prompt(number))
      const found =
        number % 2 === 0
          ? worker.router.route(keys, number % 4 === 0 ? {} : { loadWeight: 1 })?.blocks
          : worker.router.lengths(keys).length
      t.is(found, 0)
      if (number < 63) t.deepEqual(await warned(), [], 'too few prompts')
      await worker.compute(prompt(number))
    }
    const [message, ...more] = await warned()
    t.regex(message ?? '', /PrefixRouter: .*cache\.form/, what)
    t.deepEqual(more, [])
  }
})

test.serial('a router that just finds nothing says nothing', async t => {
  await warned()
  using worker = new Worker()
  using namer = new PrefixNamer({ ...worker.cache.form, prefixKey: FORM.prefixKey })
  // Nothing is computed.
  for (let number = 0; number < 500; number++) t.is(worker.router.route(namer.keys(prompt(number)))?.blocks, 0)
  // One of the first is computed, then others alone: the names are right.
  await worker.compute(prompt(5))
  for (let number = 1000; number < 1300; number++) {
    t.is(worker.router.lengths(namer.keys(prompt(number).slice(4))).length, 0)
    await worker.compute(prompt(number + 1000))
  }
  t.deepEqual(await warned(), [])
})

test.serial('prompts that are computed after they were routed are found later, in any order', async t => {
  await warned()
  const random = numbers(t)
  for (let round = 0; round < 10; round++) {
    using worker = new Worker()
    using namer = new PrefixNamer({ ...worker.cache.form, prefixKey: FORM.prefixKey })
    const waiting: number[][] = []
    for (let number = 0; number < 150; number++) {
      const tokens = prompt(round * 1000 + number)
      worker.router.route(namer.keys(tokens))
      waiting.push(tokens)
      // Other balancers' prompts, and one of those that wait, late.
      await worker.compute(prompt(100_000 + round * 1000 + number))
      if (waiting.length > 20) await worker.compute(waiting.splice(random(waiting.length), 1)[0] as number[])
    }
  }
  t.deepEqual(await warned(), [])
})
