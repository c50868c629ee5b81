import type { NativeModelSnapshot, NativeView } from '#binding'

import { count } from './check.js'
import type { BeginOptions } from './kv-transaction.js'
import type { ModelEngine } from './model-engine.js'
import { ModelSnapshot } from './model-snapshot.js'
import { LayersArgument, type ModelTokens } from './model-tokens.js'
import { openModelDraft, type ModelTransaction } from './model-transaction.js'
import { checkInternal, endThis, INTERNAL, liveArgument, nativeThis, Owner, settle } from './owner.js'
import { retain, type RetainOptions } from './retain.js'
import { absent } from './sequence-id.js'
import { tensorOf, type Kv } from './tensor.js'

/** A sequence: its number, and its cache. */
class Sequence {
  readonly engine: ModelEngine
  readonly id: number

  constructor(engine: ModelEngine, id: number) {
    this.engine = engine
    this.id = id
  }

  dispose(): void {
    this.engine.native.releaseSequence(this.id)
    this.engine.changed()
  }
}

/**
 * One sequence of a {@link ModelCache}, in all layers. It stays until it is dropped, also when this object is collected:
 * `ModelCache.sequence(id)` gives another one for it.
 *
 * @example
 * ```ts
 * import { ModelCache } from 'kvtide'
 *
 * const sizes = { numKvHeads: 1, headDim: 2 }
 * const model = { layers: [{ kind: 'sliding', window: 4, ...sizes }, { kind: 'full', ...sizes }] } as const
 * using cache = new ModelCache({ model, kind: 'paged', blockSize: 2, blocks: 16 })
 * const rows = (n: number) => ({ data: new Float32Array(n * 2), shape: [1, n, 2] })
 * const layers = (n: number) => [0, 1].map(() => ({ k: rows(n), v: rows(n) })) // all layers at once
 * const chat = cache.openSequence()
 * chat.append({ tokens: [1, 2, 3, 4], layers: layers(4) })
 * const beam = chat.fork()
 * using draft = beam.begin()
 * draft.append({ tokens: [5, 6, 7], layers: layers(3) })
 * draft.commit(1)
 * console.log(chat.length, beam.length) // 4 5
 * ```
 */
export class ModelSequence extends Owner {
  /** Its number, which no other sequence of the cache gets. */
  declare readonly id: number

  /** @internal */
  constructor(token: unknown, engine: ModelEngine, id: number) {
    checkInternal(token, 'ModelSequence', 'ModelCache.createSequence() instead')
    super(token, new Sequence(engine, id), ModelSequence)
    settle(this, { id })
  }

  /** Tokens in it, those of an open transaction among them. */
  get length(): number {
    const { engine, id } = own(this)
    return engine.native.sequenceLength(id) || absent(engine, id)
  }

  /** Tokens that no transaction can take back. */
  get committedLength(): number {
    const { engine, id } = own(this)
    return engine.native.committedLength(id) || absent(engine, id)
  }

  /**
   * Appends tokens to all layers, or nothing.
   *
   * @throws KvTideError `OUT_OF_BLOCKS`, before anything changes; `TRANSACTION_OPEN` while a transaction or a step is open
   */
  append(input: ModelTokens): void {
    const { engine, id } = own(this)
    const tokens = new LayersArgument(input)
    engine.change(native => native.appendTo(id, undefined, tokens.put(), tokens.described, tokens.parents, tokens.tokens))
  }

  /**
   * Drops all but the first `len` tokens, in all layers.
   *
   * @throws KvTideError `CANNOT_ROLL_BACK` where a window has let go of what would have to be seen again
   */
  truncate(len: number): void {
    const { engine, id } = own(this)
    const tokens = count('len', len)
    engine.change(native => native.truncate(id, tokens))
  }

  /**
   * A new sequence with the same tokens: in blocks O(1), all of them are shared; in tensors a copy. Those of an open transaction are
   * committed there; from them on, prompts do not find what the fork holds.
   */
  fork(): ModelSequence {
    const { engine, id } = own(this)
    return new ModelSequence(INTERNAL, engine, engine.change(native => native.fork(id)))
  }

  /** What it holds now: O(layers), nothing is copied until it is written over. */
  snapshot(): ModelSnapshot {
    const { engine, id } = own(this)
    return new ModelSnapshot(INTERNAL, engine.native.snapshot(id))
  }

  /**
   * Gives it what a snapshot of its cache holds.
   *
   * @throws KvTideError `SNAPSHOT_INVALID`, in blocks, for one of a sequence with another salt, or other extras
   */
  restore(snapshot: ModelSnapshot): void {
    const { engine, id } = own(this)
    const held = liveArgument<NativeModelSnapshot>('snapshot', snapshot, ModelSnapshot)
    engine.change(native => native.restore(id, held))
  }

  /**
   * Opens a transaction: what it drafts leaves no trace unless it is committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while one is open; open a child on that one
   */
  begin(options: BeginOptions = {}): ModelTransaction {
    const { engine, id } = own(this)
    return openModelDraft(engine, id, options)
  }

  /**
   * What a layer holds, `[batch, numKvHeads, tokens, headDim]`: in blocks a copy, in tensors a view; `null` where there is
   * nothing. A layer that shares shows what the other one holds, a window what it retains; `keyPositions` says where it stands.
   */
  kv(layer: number): Kv | null {
    const { engine, id } = own(this)
    engine.native.checkSequence(id)
    const found = engine.native.kv(id, count('layer', layer)) as [NativeView, NativeView] | null
    return found && { k: tensorOf(found[0]), v: tensorOf(found[1]) }
  }

  /** Says how long the blocks of its tokens are kept once nobody holds them: see {@link RetainOptions}. In tensors there are none. */
  retain(options: RetainOptions): void {
    const { engine, id } = own(this)
    engine.native.checkSequence(id)
    retain(engine, id, options)
  }

  /** Ends it; an open transaction or step of it ends with it. */
  drop(): void {
    const { engine, id } = own(this)
    engine.change(native => native.dropSequence(id))
  }

  /**
   * As {@link drop}, any number of times: while `attendAsync` reads it, it ends at the next change. Any later call on this object
   * throws `DISPOSED`.
   */
  dispose(): void {
    endThis(this, ModelSequence)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, ModelSequence)
  }
}

function own(self: unknown): Sequence {
  return nativeThis<Sequence>(self, ModelSequence)
}
