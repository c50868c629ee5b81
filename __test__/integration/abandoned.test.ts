// Steps that are abandoned in every possible way: the first read afterwards sees nothing of them.
import test, { type ExecutionContext } from 'ava'

import { attend, type HostTensor, PagedKvCache, type Step } from '../../index.js'
import { collected } from '../support/garbage.js'
import { span } from '../support/tokens.js'

const WIDE = 9
const model = { layers: [{ kind: 'full', numKvHeads: 1, headDim: 1 }] } as const

const rows = (...values: number[]): HostTensor => ({ data: Float32Array.from(values), shape: [1, values.length, 1] })
const q: HostTensor = { data: new Float32Array(1), shape: [1, 1, 1] }

/** A cache with one token of value 1 in a sequence, and all ways to read it. */
interface Subject {
  readonly cache: Disposable
  begin(): Step
  /** Each way to read, with its expected result while one token is in the cache. */
  readonly reads: readonly (readonly [name: string, read: () => unknown, expected: unknown])[]
}

function ofModel(): Subject {
  const cache = new PagedKvCache({ model, capacity: 8, blockSize: 4 })
  const sequence = cache.openSequence()
  sequence.append({ layers: [{ k: rows(1), v: rows(1) }] })
  const used = (): number[] => cache.stats().pools.map(of => of.freeBlocks)
  return {
    cache,
    begin: () => cache.beginStep({ sequences: [sequence], offsets: [0, WIDE] }),
    reads: [
      ['kv', () => Array.from(sequence.kv(0)?.v.toFloat32Array() ?? []), [1]],
      ['length', () => sequence.length, 1],
      ['blocks', used, used()],
      ['attend', () => Array.from(attend(q, { cache, layer: 0, sequences: [sequence] }).out.toArray()), [1]],
      ['append', () => sequence.append({ layers: [{ k: rows(2), v: rows(2) }] }), undefined],
    ],
  }
}

function ofPages(): Subject {
  const cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 1 })
  const sequence = cache.openSequence()
  sequence.append({
    k: { data: Float32Array.of(1), shape: [1, 1, 1, 1] },
    v: { data: Float32Array.of(1), shape: [1, 1, 1, 1] },
  })
  const { id } = sequence
  const blockTables = Int32Array.of(0)
  return {
    cache,
    begin: () => cache.beginStep({ sequences: [id], offsets: [0, WIDE] }),
    reads: [
      ['gather', () => Array.from(cache.gather(id, 0).v.toFloat32Array()), [1]],
      ['gatherInto', () => Array.from(cache.gatherInto(id, 0, new Float32Array(1), new Float32Array(1)).v), [1]],
      [
        'readKv',
        () => {
          try {
            return cache.readKv(id, 0, 3)
          } catch {
            return 'refused'
          }
        },
        'refused',
      ],
      ['retainedLength', () => sequence.retainedLength, 1],
      ['capacity', () => cache.sequenceCapacity(id), 4],
      ['freeCount', () => cache.freeCount, 7],
      ['poolUtilization', () => cache.poolUtilization(), 1 / 8],
      ['attend', () => Array.from(attend(q, { cache, layer: 0, sequences: [id] }).out.toArray()), [1]],
      [
        'attend by tables',
        () => Array.from(attend(q, { cache, layer: 0, blockTables, lengths: Int32Array.of(1) }).out.toArray()),
        [1],
      ],
    ],
  }
}

const SUBJECTS = { 'a model': ofModel, pages: ofPages }

const WAYS = {
  rollback: step => step.rollback(),
  dispose: step => step.dispose(),
  using: step => step[Symbol.dispose](),
  collected: undefined,
} satisfies Record<string, ((step: Step) => void) | undefined>

/** Begins a step with the value 6, writes all of it, and calls `end` or abandons the step. */
function abandon(subject: Subject, end?: (step: Step) => void): WeakRef<Step> {
  const step = subject.begin()
  const six = rows(...span(0, WIDE).map(() => 6))
  step.write(0, six, six)
  end?.(step)
  return new WeakRef(step)
}

async function hides(t: ExecutionContext, make: () => Subject, end: ((step: Step) => void) | undefined): Promise<void> {
  // Each read gets its own cache and is the first call on it afterwards, so no earlier call can have cleaned up.
  for (const place of make().reads.keys()) {
    const subject = make()
    // In a separate turn of the event loop, so that no stack frame of this function keeps the step alive.
    const step = await new Promise<WeakRef<Step>>(resolve => setImmediate(() => resolve(abandon(subject, end))))
    // Several rounds before `deref` is called, because `deref` would keep the step alive.
    let rounds = 0
    if (end === undefined) t.true((await collected(() => ++rounds > 4)) && step.deref() === undefined)
    const [name, read, expected] = subject.reads[place] as Subject['reads'][number]
    t.deepEqual(read(), expected, name)
    subject.cache[Symbol.dispose]()
  }
}

for (const [name, make] of Object.entries(SUBJECTS)) {
  for (const [way, end] of Object.entries(WAYS)) {
    test.serial(`${name}: a step that ends by ${way} leaves nothing to read`, t => hides(t, make, end))
  }
}
