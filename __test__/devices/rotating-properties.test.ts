// Random operations on the rotating caches, against a list of every token that ever came.
import fc from 'fast-check'

import { RotatingCache, RotatingKvCache, type RotatingSnapshot, type Tensor } from '../../index.js'
import { onDevices } from '../support/devices.js'
import {
  check,
  Kept,
  Numbering,
  ownsItsBuffer,
  refused,
  same,
  shapesOn,
  source,
  type Shape,
} from '../support/properties.js'

interface Options {
  readonly maxSeqLen: number
  readonly capacitySeqLen: number
  readonly sinks: number
  readonly slack: number
}

type Step = ['append' | 'setLen' | 'reset' | 'snapshot' | 'restore' | 'adopt' | 'accepted', number, boolean]

const options: fc.Arbitrary<Options> = fc.record({
  maxSeqLen: fc.integer({ min: 1, max: 7 }),
  capacitySeqLen: fc.integer({ min: 0, max: 9 }),
  sinks: fc.integer({ min: 0, max: 3 }),
  slack: fc.integer({ min: 0, max: 6 }),
})

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.tuple(
    fc.oneof(
      { weight: 9, arbitrary: fc.constant('append' as const) },
      { weight: 1, arbitrary: fc.constantFrom('reset' as const, 'adopt' as const) },
      {
        weight: 2,
        arbitrary: fc.constantFrom('setLen' as const, 'snapshot' as const, 'restore' as const, 'accepted' as const),
      },
    ),
    fc.oneof(fc.constantFrom(1, 1, 2), fc.integer({ min: 0, max: 12 })),
    fc.boolean(),
  ),
  { maxLength: 40 },
)

/** One cache of either kind, with both parts told apart by nothing but a list. */
class Subject {
  cache: RotatingCache | RotatingKvCache
  readonly #shape: Shape

  constructor(single: boolean, made: Options, shape: Shape) {
    this.cache = single
      ? new RotatingCache({ dim: 2, device: shape.device, ...made })
      : new RotatingKvCache({ device: shape.device, ...made })
    this.#shape = shape
  }

  append(tokens: readonly number[]): Tensor[] {
    const [k, v] = [source(this.#shape, tokens, 0), source(this.#shape, tokens, 1)]
    if (this.cache instanceof RotatingCache) return [this.cache.append(k)]
    const shown = this.cache.append(k, v)
    return [shown.k, shown.v]
  }

  views(name: 'currentData' | 'lastAppendResult'): Tensor[] | null {
    const shown = this.cache[name]()
    if (shown === null) return null
    return 'k' in shown ? [shown.k, shown.v] : [shown]
  }

  adopt(snapshot: RotatingSnapshot, tokens: readonly number[], keepLen: number): void {
    const [k, v] = [source(this.#shape, tokens, 0), source(this.#shape, tokens, 1)]
    const none = tokens.length === 0
    this.cache =
      this.cache instanceof RotatingCache
        ? RotatingCache.restoreFromSnapshot(snapshot, none ? null : k, keepLen)
        : RotatingKvCache.restoreFromSnapshot(snapshot, none ? null : { k, v }, keepLen)
  }

  accepted(snapshot: RotatingSnapshot, keepLen: number): Tensor[] | null {
    const shown = this.cache.acceptedAppendFromBatchedAppend(snapshot, keepLen, 0, 1)
    if (shown === null) return null
    return 'k' in shown ? [shown.k, shown.v] : [shown]
  }
}

const letGo = (views: readonly Tensor[]): void => {
  for (const view of views) view.dispose()
}

/** Every token that came, and what the window makes of them. */
class Oracle {
  tokens: number[] = []
  /** The tokens that the last append showed, and those that it added. */
  last: { shown: number[]; added: number[] } | null = null
  readonly snapshots: { snapshot: RotatingSnapshot; tokens: number[] }[] = []
  readonly numbering = new Numbering()
  readonly sinks: number
  readonly window: number

  constructor({ sinks, maxSeqLen }: Options) {
    this.sinks = sinks
    this.window = maxSeqLen
  }

  get limit(): number {
    return this.sinks + this.window
  }

  get retained(): number[] {
    const { tokens, sinks, window } = this
    return tokens.length <= this.limit ? [...tokens] : [...tokens.slice(0, sinks), ...tokens.slice(-window)]
  }

  append(added: number[]): number[] {
    const before = this.retained
    this.tokens = [...this.tokens, ...added]
    const shown = added.length > 1 && before.length + added.length > this.limit ? [...before, ...added] : this.retained
    this.last = { shown, added }
    return shown
  }
}

function run(subject: Subject, oracle: Oracle, kept: Kept, [kind, n, keep]: Step): void {
  const chosen = oracle.snapshots[n % Math.max(oracle.snapshots.length, 1)]
  const { length } = oracle.tokens
  if (kind === 'append') {
    const added = oracle.numbering.take(n)
    kept.add(subject.append(added), oracle.append(added), keep)
  } else if (kind === 'setLen') {
    const allowed = n === length || (n < length && length <= oracle.limit)
    if (!allowed)
      return refused('CANNOT_ROLL_BACK', () => (keep ? subject.cache.setLen(n) : subject.cache.trySetLen(n)))
    subject.cache.trySetLen(n)
    subject.cache.setLen(n)
    oracle.tokens.length = n
    oracle.last = null
  } else if (kind === 'reset') {
    subject.cache.reset()
    oracle.tokens = []
    oracle.last = null
  } else if (kind === 'snapshot') {
    oracle.snapshots.push({ snapshot: subject.cache.snapshot(), tokens: [...oracle.tokens] })
  } else if (chosen !== undefined) {
    runWith(chosen, subject, oracle, kept, [kind, n, keep])
  }
}

/** The steps that need a snapshot. */
function runWith(
  { snapshot, tokens }: Oracle['snapshots'][number],
  subject: Subject,
  oracle: Oracle,
  kept: Kept,
  [kind, n, keep]: Step,
): void {
  if (kind === 'accepted') {
    const { last } = oracle
    const keepLen = tokens.length + n
    if (last === null) return refused('CACHE_EMPTY', () => subject.accepted(snapshot, keepLen))
    if (n > last.added.length) return refused('INVALID_ARGUMENT', () => subject.accepted(snapshot, keepLen))
    const latest = subject.views('lastAppendResult') ?? []
    const stale = latest[0]?.isStale
    letGo(latest)
    const views = subject.accepted(snapshot, keepLen)
    if (n === 0) return same('accepted', views, null)
    if (stale) letGo(views ?? [])
    else kept.add(views ?? [], last.added.slice(0, n), keep)
    return
  }
  if (kind === 'restore') {
    subject.cache.restore(snapshot)
    oracle.tokens = [...tokens]
  } else {
    const added = oracle.numbering.take(n)
    if (keep) subject.cache.dispose()
    subject.adopt(snapshot, added, tokens.length + n)
    oracle.tokens = [...tokens, ...added]
  }
  oracle.last = null
}

for (const single of [true, false]) {
  onDevices(`${single ? 'RotatingCache' : 'RotatingKvCache'} shows what a list of all tokens says`, (t, device) => {
    check(t, fc.tuple(options, shapesOn(device), steps), ([made, shape, sequence]) => {
      const subject = new Subject(single, made, shape)
      const oracle = new Oracle(made)
      let kept = new Kept(shape)
      for (const step of sequence) {
        const { cache } = subject
        run(subject, oracle, kept, step)
        if (subject.cache !== cache) kept = new Kept(shape)
        same('currentSeqLen', subject.cache.currentSeqLen, oracle.tokens.length)
        same('retainedLen', subject.cache.retainedLen, oracle.retained.length)
        const views = subject.views('currentData')
        same('empty', views === null, oracle.tokens.length === 0)
        kept.add(views ?? [], oracle.retained, step[2])
        const latest = subject.views('lastAppendResult')
        same('no result', latest === null, oracle.last === null)
        letGo(latest ?? [])
        kept.check()
      }
      kept.end()
      for (const { snapshot } of oracle.snapshots) snapshot.dispose()
      // It keeps what it returned last.
      subject.cache.reset()
      ownsItsBuffer(subject.cache.stats())
      subject.cache.dispose()
    })
  })
}
