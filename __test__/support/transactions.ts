import {
  type BeginOptions,
  KvCache,
  type KvTransaction,
  RollbackCache,
  RotatingKvCache,
  type Tensor,
} from '../../index.js'
import { SequenceSubject } from './sequence-subject.js'
import { source, type Shape } from './properties.js'
import type { Seen } from './showing.js'

/** A cache that has transactions. */
export interface Subject extends Disposable {
  begin(options?: BeginOptions): KvTransaction
  stats(): { readonly usedBytes: number }
  dispose(): void
}

/** The number of newest tokens that are kept, and of sinks. */
export interface Window {
  readonly maxSeqLen: number
  readonly sinks: number
  readonly slack: number
}

/** A kind of cache, with everything that the transaction tests need to know about it. A new kind is one more entry of {@link KINDS}. */
export interface Kind<C extends Subject = Subject> {
  readonly name: string
  readonly make: (shape: Shape, window: Window) => C
  /** The object that the error TRANSACTION_OPEN names. */
  readonly object: 'cache' | 'sequence'
  /** True if it keeps only its window. */
  readonly slides: boolean
  /** Appends tokens permanently. */
  readonly feed: (cache: C, k: Tensor, v: Tensor) => Seen
  /** Returns its content; `null` if it is empty. */
  readonly read: (cache: C) => Seen | null
  /** All calls that would change it. */
  readonly changes: (cache: C, k: Tensor, v: Tensor) => Readonly<Record<string, () => unknown>>
}

/** Restores a snapshot of its own content, and disposes of the snapshot in any case. */
function restoreItself(cache: KvCache | RotatingKvCache): void {
  using held = cache.snapshot()
  ;(cache as { restore(snapshot: object): void }).restore(held)
}

const kind = <C extends Subject>(made: Kind<C>): Kind => made as unknown as Kind

/** Every kind of cache that has transactions. */
export const KINDS: readonly Kind[] = [
  kind<KvCache>({
    name: 'KvCache',
    make: ({ device, batch, heads, dim, dtype }) =>
      new KvCache({
        device,
        batchSize: batch,
        numKvHeads: heads,
        headDim: dim,
        dtype,
        initialCapacity: 2,
        maxSeqLen: 4096,
      }),
    object: 'cache',
    slides: false,
    feed: (cache, k, v) => cache.update(k, v),
    read: cache => (cache.isEmpty ? null : cache.getKv()),
    changes: (cache, k, v) => ({
      update: () => cache.update(k, v),
      updateFused: () => cache.updateFused(k, v),
      incrementSeqLen: () => cache.incrementSeqLen(0),
      truncate: () => cache.truncate(0),
      reset: () => cache.reset(),
      restore: () => restoreItself(cache),
      begin: () => cache.begin(),
    }),
  }),
  kind<RotatingKvCache>({
    name: 'RotatingKvCache',
    make: ({ device }, { maxSeqLen, sinks, slack }) =>
      new RotatingKvCache({ device, maxSeqLen, sinks, slack, capacitySeqLen: 2 }),
    object: 'cache',
    slides: true,
    feed: (cache, k, v) => cache.append(k, v),
    read: cache => cache.currentData(),
    changes: (cache, k, v) => ({
      append: () => cache.append(k, v),
      trySetLen: () => cache.trySetLen(cache.currentSeqLen),
      setLen: () => cache.setLen(cache.currentSeqLen),
      reset: () => cache.reset(),
      restore: () => restoreItself(cache),
      begin: () => cache.begin(),
    }),
  }),
  kind<RollbackCache>({
    name: 'RollbackCache',
    make: ({ device }) => new RollbackCache({ device }),
    object: 'cache',
    slides: false,
    feed(cache, k, v) {
      const shown = cache.append(k, v)
      cache.commit()
      return shown
    },
    read: cache => cache.current(),
    changes: (cache, k, v) => ({
      append: () => cache.append(k, v),
      commit: () => cache.commit(cache.committedLen),
      rollback: () => cache.rollback(cache.snapshot()),
      acceptPath: () => cache.acceptPath([]),
      begin: () => cache.begin(),
    }),
  }),
  kind<SequenceSubject>({
    name: 'Sequence',
    make: shape => new SequenceSubject(shape),
    object: 'sequence',
    slides: false,
    feed: (subject, k, v) => subject.append(k, v),
    read: subject => subject.read(),
    changes: ({ sequence, cache, begin }, k, v) => ({
      append: () => sequence.append({ k, v }),
      'append of the cache': () => cache.append([sequence], k, v, [0, k.shape[2] as number]),
      writeTokens: () => cache.writeTokens(sequence, 0, sequence.length, k.narrow(0, 0, 1), v.narrow(0, 0, 1)),
      truncate: () => sequence.truncate(0),
      restore: () => sequence.restore(sequence.snapshot()),
      begin,
    }),
  }),
  kind<SequenceSubject>({
    name: 'Sequence, of a model',
    make: shape => new SequenceSubject(shape, true),
    object: 'sequence',
    slides: false,
    feed: (subject, k, v) => subject.append(k, v),
    read: subject => subject.read(),
    changes: (subject, k, v) => ({
      append: () => subject.append(k, v),
      truncate: () => subject.sequence.truncate(0),
      restore: () => subject.sequence.restore(subject.sequence.snapshot()),
      begin: subject.begin,
    }),
  }),
]

/** The appended tokens that are kept, in order. */
export function retained<T>(made: Kind, { maxSeqLen, sinks }: Window, tokens: readonly T[]): T[] {
  if (!made.slides || tokens.length <= sinks + maxSeqLen) return [...tokens]
  return [...tokens.slice(0, sinks), ...tokens.slice(-maxSeqLen)]
}

/** The tokens that an append of `added` after `tokens` returns. */
export function appended<T>(made: Kind, window: Window, tokens: readonly T[], added: readonly T[]): T[] {
  const before = retained(made, window, tokens)
  const over = made.slides && added.length > 1 && before.length + added.length > window.sinks + window.maxSeqLen
  return over ? [...before, ...added] : retained(made, window, [...tokens, ...added])
}

/** K and V of these tokens. */
export function pair(shape: Shape, tokens: readonly number[]): [k: Tensor, v: Tensor] {
  return [source(shape, tokens, 0), source(shape, tokens, 1)]
}
