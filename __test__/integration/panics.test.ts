// A panic in any native call of an operation: its error is INTERNAL, the object of the call says POISONED from then on if it may have changed, and others of
// its kind go on. Only the addon of `npm run test:asan` panics on demand; with another one, these tests are reported as SKIPPED.

import {
  BlockPool,
  BlockTable,
  isKvTideError,
  KvCache,
  PagedKvCache,
  PrefixNamer,
  PrefixRouter,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
} from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { layered, LAYERED } from '../support/layered.js'
import { needing } from '../support/needing.js'
import { span } from '../support/tokens.js'

const panicAfter = Reflect.get(binding, 'panicAfter') as ((calls?: number) => void) | undefined
const panicking = needing(panicAfter === undefined ? 'this addon cannot panic on demand' : undefined)

const row = { data: Float32Array.of(1, 2), shape: [1, 1, 1, 2] }

/** An object, an operation on it, and its end. */
interface Subject {
  readonly use: () => unknown
  readonly dispose: () => void
}

const paged = (): Subject => {
  const cache = new PagedKvCache(LAYERED)
  const [k, v] = layered(span(0, 9))
  const use = (): void => {
    using match = cache.match(span(0, 9))
    using sequence = cache.openSequence({ prefix: match })
    if (sequence.length === 0) sequence.append({ k, v, tokens: span(0, 9) })
    using fork = sequence.fork()
    fork.truncate(3)
    cache.gather(fork, 0).k.dispose()
  }
  return { use, dispose: () => cache.dispose() }
}

const KINDS: Readonly<Record<string, () => Subject>> = {
  KvCache: () => {
    const cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 2, maxSeqLen: 8, headDim: 2 })
    const use = (): void => {
      cache.update(row, row)
      using snapshot = cache.snapshot()
      cache.truncate(0)
      cache.restore(snapshot)
      cache.reset()
    }
    return { use, dispose: () => cache.dispose() }
  },
  RotatingCache: () => {
    const cache = new RotatingCache({ dim: 2, maxSeqLen: 2 })
    return { use: () => cache.append(row).toArray(), dispose: () => cache.dispose() }
  },
  RotatingKvCache: () => {
    const cache = new RotatingKvCache({ maxSeqLen: 2 })
    return { use: () => cache.append(row, row).k.toArray(), dispose: () => cache.dispose() }
  },
  RollbackCache: () => {
    const cache = new RollbackCache()
    const use = (): void => {
      const mark = cache.snapshot()
      cache.append(row, row)
      cache.rollback(mark)
    }
    return { use, dispose: () => cache.dispose() }
  },
  PagedKvCache: paged,
  BlockPool: () => {
    const pool = new BlockPool({ capacity: 8 })
    return { use: () => pool.free(pool.allocate()), dispose: () => pool.dispose() }
  },
  BlockTable: () => {
    const table = new BlockTable({ numLayers: 2, blockSize: 4 })
    return { use: () => table.appendBlock(0, 1), dispose: () => table.dispose() }
  },
  PrefixRouter: () => {
    const router = new PrefixRouter()
    let number = 0
    const use = (): void => {
      const name = `worker ${number++}`
      router.addWorker(name)
      router.removeWorker(name)
    }
    return { use, dispose: () => router.dispose() }
  },
  PrefixNamer: () => {
    const namer = new PrefixNamer(LAYERED)
    return { use: () => namer.keys(span(0, 9)), dispose: () => namer.dispose() }
  },
  Tensor: () => ({ use: () => Tensor.from(row.data, row.shape).toArray(), dispose: () => undefined }),
}

/** The code of the error that a call throws, or `ok`. */
function ending(call: () => unknown): string {
  try {
    call()
    return 'ok'
  } catch (error) {
    return isKvTideError(error) ? error.code : String(error)
  }
}

for (const [kind, make] of Object.entries(KINDS)) {
  panicking.serial(`a panic in any native call of ${kind}`, t => {
    const other = make()
    t.is(ending(other.use), 'ok')
    const ends = new Map<string, number>()
    for (let calls = 0; ; calls++) {
      const subject = make()
      panicAfter?.(calls)
      const end = ending(subject.use)
      panicAfter?.()
      const after = ending(subject.use)
      if (end === 'ok') {
        t.is(after, 'ok')
        subject.dispose()
        break
      }
      t.is(end, 'INTERNAL', `call ${calls}`)
      t.true(['ok', 'POISONED'].includes(after), `${after} behind a panic in call ${calls}`)
      ends.set(after, (ends.get(after) ?? 0) + 1)
      t.is(ending(other.use), 'ok', `another ${kind} behind a panic in call ${calls}`)
      subject.dispose()
      t.is(ending(subject.dispose), 'ok', 'a second dispose')
    }
    t.log(Object.fromEntries(ends))
    t.true(ends.size > 0, 'no call panicked')
    if (!/Tensor|Namer/.test(kind)) t.true(ends.has('POISONED'), 'no panic has left the object unusable')
    other.dispose()
  })
}

panicking.serial('requests of a server go on beside a cache that a panic has left unusable', async t => {
  const [one, other] = [new PagedKvCache(LAYERED), new PagedKvCache(LAYERED)]
  const [k, v] = layered(span(0, 9))
  const sequence = one.openSequence()
  panicAfter?.(0)
  t.is(
    ending(() => sequence.append({ k, v, tokens: span(0, 9) })),
    'INTERNAL',
  )
  panicAfter?.()
  t.is(
    ending(() => one.openSequence()),
    'POISONED',
  )
  await t.throwsAsync(async () => await one.saveBytes(), { code: 'POISONED' })
  using kept = other.openSequence()
  kept.append({ k, v, tokens: span(0, 9) })
  t.is((await other.saveBytes()).length > 0, true)
  one.dispose()
  other.dispose()
})
