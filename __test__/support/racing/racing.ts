// A random program over one paged cache with tiers. Background work of every kind runs while sequences change, prompts are forgotten, signals abort, a store
// misbehaves, and the cache is disposed of. Every row that is read must be the row that was computed for exactly these tokens and this tenant.
import { join } from 'node:path'
import { setImmediate, setTimeout } from 'node:timers/promises'

import {
  attend,
  attendAsync,
  isKvTideError,
  PagedKvCache,
  type PrefixMatch,
  type Sequence,
  type Snapshot,
} from '../../../index.js'
import { Shelf } from '../shelf.js'
import { Chance, DIM, LAYERS, rowsOf } from './rows.js'

const [BLOCK, CAPACITY, OPEN_MAX, PENDING_MAX, DEADLINE_MS, LIMIT_MS] = [4, 28, 5, 6, 30, 60_000]

const PREFIX_KEY = new Uint8Array(32).fill(9)

/** The codes that a call may be refused with while other work is under way. Any other error is a defect. */
const ALLOWED = new Set<string>([
  'ABORTED',
  'BUSY',
  'CANNOT_ROLL_BACK',
  'DISPOSED',
  'OUT_OF_BLOCKS',
  'SEQUENCE_NOT_FOUND',
  'SNAPSHOT_INVALID',
  'STALE_VIEW',
  'TRANSACTION_OPEN',
])

const isAllowed = (error: unknown): boolean => isKvTideError(error) && ALLOWED.has(error.code)

/** A sequence and the tokens that it must have. */
interface Open {
  readonly sequence: Sequence
  readonly tenant: number
  tokens: readonly number[]
}

/** The saved bytes, and the tokens that the sequence had when the save was asked for. */
interface Saved {
  readonly bytes: Uint8Array
  readonly tenant: number
  readonly tokens: readonly number[]
}

/** The program. One seed gives the same calls; the moments at which background work ends are those of the machine. */
export class Racing {
  /** Occurrences by name. */
  readonly seen: Map<string, number> = new Map()
  readonly #chance: Chance
  readonly #folder: string
  readonly #name: string
  readonly #shelf = new Shelf()
  readonly #wakes: (() => void)[] = []
  readonly #pending = new Set<Promise<void>>()
  #cache: PagedKvCache
  #open: Open[] = []
  #snapshot: { readonly of: Open; readonly snapshot: Snapshot; readonly tokens: readonly number[] } | undefined
  #saved: Saved | undefined
  #savedCache: Uint8Array | undefined

  constructor(seed: number, folder: string, name = 'racing') {
    this.#chance = new Chance(seed)
    this.#folder = folder
    this.#name = name
    this.#shelf.before = () => this.#misbehave()
    this.#cache = this.#make()
  }

  #make(): PagedKvCache {
    const tiers = {
      deadline: DEADLINE_MS,
      memory: { limitBytes: 20_000 },
      disk: { path: join(this.#folder, 'tier'), limitBytes: 100_000 },
      store: { store: this.#shelf, secret: new Uint8Array(32).fill(5), compress: this.#chance.once(2) },
    }
    const sizes = { capacity: CAPACITY, blockSize: BLOCK, numLayers: LAYERS, numKvHeads: 1, headDim: DIM }
    return new PagedKvCache({
      ...sizes,
      namespace: 'racing',
      prefixKey: PREFIX_KEY,
      events: 32,
      tiers: this.#chance.once(4) ? { memory: tiers.memory } : tiers,
    })
  }

  /** The store answers now, later, after the next change, with an error, or not at all. */
  #misbehave(): unknown {
    const kind = this.#chance.below(12)
    if (kind === 0) throw new Error('out of order')
    if (kind === 1) return new Promise(() => {})
    if (kind < 5) return setTimeout(this.#chance.below(20))
    if (kind < 8) return new Promise<void>(resolve => void this.#wakes.push(resolve))
    return undefined
  }

  #note(what: string): void {
    this.seen.set(what, (this.seen.get(what) ?? 0) + 1)
  }

  /** Makes a call that may be refused. Returns true if it was not. */
  #call(what: string, call: () => void): boolean {
    try {
      call()
      this.#note(what)
      return true
    } catch (error) {
      if (!isAllowed(error)) throw error
      this.#note(`${what}: ${(error as { code: string }).code}`)
      return false
    }
  }

  /** Starts background work, and checks its result or its error once it has ended. */
  #start<T>(what: string, work: () => Promise<T>, check: (result: T) => void = () => {}): void {
    if (this.#pending.size >= PENDING_MAX) return
    const running = (async () => {
      try {
        check(await work())
        this.#note(what)
      } catch (error) {
        if (!isAllowed(error)) throw error
        this.#note(`${what}: ${(error as { code: string }).code}`)
      }
    })()
    // A failure is thrown by `settle` or `step`, which wait for it.
    running.catch(() => {})
    const settled = running.then(() => void this.#pending.delete(settled))
    settled.catch(() => {})
    this.#pending.add(settled)
  }

  #signal(): { signal?: AbortSignal } {
    if (!this.#chance.once(3)) return {}
    const controller = new AbortController()
    const abort = (): void => controller.abort(new Error('enough'))
    if (this.#chance.once(2)) void setTimeout(this.#chance.below(8), undefined, { ref: false }).then(abort)
    else void setImmediate().then(abort)
    return { signal: controller.signal }
  }

  #prompt(): number[] {
    const tokens: number[] = []
    let branch = 0
    for (let block = 0, blocks = 1 + this.#chance.below(6); block < blocks; block++) {
      if (block % 2 === 0) branch = this.#chance.below(4)
      for (let token = 0; token < BLOCK; token++) tokens.push(branch * 1000 + block * 10 + token)
    }
    return [...tokens, 1 + this.#chance.below(3)]
  }

  /** Checks all rows of tokens in a sequence of some cache. */
  #check(cache: PagedKvCache, sequence: Sequence, tenant: number, tokens: readonly number[]): void {
    if (sequence.length !== tokens.length)
      throw new Error(`${sequence.length} tokens, expected ${tokens.length} of tenant ${tenant}`)
    if (tokens.length === 0) return
    for (const part of [0, 1]) {
      const { data } = rowsOf(tenant, tokens, 0, part)
      for (let layer = 0; layer < LAYERS; layer++) {
        using k = cache.gather(sequence, layer)[part === 0 ? 'k' : 'v']
        const wanted = data.subarray(layer * tokens.length * DIM, (layer + 1) * tokens.length * DIM)
        const shown = k.toFloat32Array()
        if (shown.length !== wanted.length || shown.some((value, at) => value !== wanted[at]))
          throw new Error(`wrong rows of part ${part}, layer ${layer}, tenant ${tenant}: ${tokens.join()}`)
      }
    }
  }

  /** Opens a sequence over a match, and computes the rest of its prompt. */
  #compute(tenant: number, tokens: readonly number[], prefix: PrefixMatch): void {
    let sequence: Sequence | undefined
    const isDone = this.#call('compute', () => {
      sequence = this.#cache.openSequence({ prefix })
      const from = sequence.length
      this.#check(this.#cache, sequence, tenant, tokens.slice(0, from))
      sequence.append({
        tokens: tokens.slice(from),
        k: rowsOf(tenant, tokens, from, 0),
        v: rowsOf(tenant, tokens, from, 1),
      })
    })
    if (!isDone || sequence === undefined || this.#open.length >= OPEN_MAX) {
      prefix.dispose()
      sequence?.dispose()
      return
    }
    this.#open.push({ sequence, tenant, tokens })
  }

  #find(): void {
    const [tenant, tokens, cache] = [this.#chance.below(2), this.#prompt(), this.#cache]
    const prompt = { salt: `tenant ${tenant}` }
    if (this.#chance.once(2)) {
      this.#call('match', () => this.#compute(tenant, tokens, cache.match(tokens, prompt)))
      return
    }
    const given = Uint32Array.from(tokens)
    const [deadline, signal] = [this.#chance.below(DEADLINE_MS), this.#signal()]
    this.#start(
      'match with tiers',
      () => {
        const matching = cache.match(given, { ...prompt, tiers: 'all', deadline, ...signal })
        given.fill(0)
        return matching
      },
      match => {
        if (cache === this.#cache) this.#compute(tenant, tokens, match)
        else match.dispose()
      },
    )
  }

  /** Changes a sequence, or opens another one out of it. */
  #change(open: Open): void {
    const { sequence, tenant } = open
    const kind = this.#chance.below(9)
    if (kind === 0) {
      const more = [...open.tokens, 7 + this.#chance.below(3), 1]
      const from = open.tokens.length
      const rows = { k: rowsOf(tenant, more, from, 0), v: rowsOf(tenant, more, from, 1) }
      if (this.#call('append', () => sequence.append({ tokens: more.slice(from), ...rows }))) open.tokens = more
    } else if (kind === 1) {
      const length = this.#chance.below(open.tokens.length + 1)
      if (this.#call('truncate', () => sequence.truncate(length))) open.tokens = open.tokens.slice(0, length)
    } else if (kind === 2) {
      this.#call('fork', () => {
        if (this.#open.length < OPEN_MAX) this.#open.push({ sequence: sequence.fork(), tenant, tokens: open.tokens })
      })
    } else if (kind === 3) {
      this.#call('snapshot', () => {
        this.#snapshot?.snapshot.dispose()
        this.#snapshot = undefined
        this.#snapshot = { of: open, snapshot: sequence.snapshot(), tokens: open.tokens }
      })
    } else if (kind === 4 && this.#snapshot?.of === open) {
      const { snapshot, tokens } = this.#snapshot
      if (this.#call('restore', () => sequence.restore(snapshot))) open.tokens = tokens
    } else if (kind === 5) {
      this.#call('draft', () => this.#draft(open))
    } else if (kind === 6) {
      this.#call('retain', () => sequence.retain({ priority: this.#chance.below(100), forMs: this.#chance.below(9) }))
    } else if (kind === 7) {
      this.#call('abandoned step', () => this.#abandon(open))
    } else {
      sequence.dispose()
      this.#open = this.#open.filter(other => other !== open)
      this.#note('drop')
    }
  }

  #draft({ sequence, tenant, tokens }: Open): void {
    using draft = sequence.begin()
    const more = [...tokens, 3, 4, 5]
    const from = tokens.length
    draft.append({ tokens: [3, 4, 5], k: rowsOf(tenant, more, from, 0), v: rowsOf(tenant, more, from, 1) })
    this.#check(this.#cache, sequence, tenant, more)
  }

  #abandon({ sequence }: Open): void {
    using step = this.#cache.beginStep({ sequences: [sequence], offsets: [0, 2] })
    const rows = { data: new Float32Array(2 * DIM).fill(-1), shape: [1, 2, DIM] }
    step.write(0, rows, rows)
  }

  /** Starts work that reads a sequence in the background. */
  #read(open: Open): void {
    const { sequence, tenant, tokens } = open
    const cache = this.#cache
    const kind = this.#chance.below(4)
    if (kind === 0 && tokens.length > 0) {
      const call = { cache, layer: this.#chance.below(LAYERS), sequences: [sequence] }
      const q = { data: new Float32Array(DIM).fill(1e-6), shape: [1, 1, DIM] }
      this.#call('attend', () => {
        const wanted = attend(q, call).out.toArray()
        this.#start(
          'attend in the background',
          () => attendAsync(q, call, this.#signal()),
          ({ out }) => same(out.toArray(), wanted),
        )
      })
    } else if (kind === 1 && tokens.length > 0) {
      this.#call('gather', () => {
        const { k, v } = cache.gather(sequence, 0)
        v.dispose()
        const wanted = rowsOf(tenant, tokens, 0, 0).data.slice(0, tokens.length * DIM)
        this.#start(
          'read in the background',
          () => k.toArrayAsync(this.#signal()),
          array => same(array, wanted),
        )
      })
    } else if (kind === 2) {
      this.#start(
        'save a sequence',
        () => sequence.saveBytes(this.#signal()),
        bytes => {
          this.#saved = { bytes, tenant, tokens }
        },
      )
    } else {
      const path = join(this.#folder, `${this.#name}-${this.#chance.below(2)}.kv`)
      this.#start('save a sequence to a file', () => sequence.save(path, this.#signal()))
    }
  }

  /** Starts work on the whole cache. */
  #whole(): void {
    const cache = this.#cache
    const kind = this.#chance.below(6)
    if (kind === 0) {
      this.#start('flush', () => cache.flush(this.#chance.below(40)))
    } else if (kind === 1) {
      const onProgress = (): void => {
        if (this.#chance.once(4)) this.#call('forget', () => cache.forgetPrefixes())
      }
      this.#start(
        'save a cache',
        () => cache.saveBytes({ ...this.#signal(), onProgress }),
        bytes => {
          this.#savedCache = bytes
        },
      )
    } else if (kind === 2 && this.#savedCache !== undefined) {
      const bytes = this.#savedCache
      this.#start('load prompts', () => cache.loadPrompts(bytes, this.#signal()))
    } else if (kind === 3 && this.#saved !== undefined) {
      const { bytes, tenant, tokens } = this.#saved
      const options = { salt: `tenant ${tenant}`, ...this.#signal() }
      this.#start(
        'load a sequence',
        () => cache.loadSequence(bytes, options),
        sequence => {
          // The cache may be read elsewhere, or may have ended meanwhile.
          this.#call('check a loaded sequence', () => this.#check(cache, sequence, tenant, tokens))
          sequence.dispose()
        },
      )
    } else if (kind === 4 && this.#savedCache !== undefined) {
      const bytes = this.#savedCache
      this.#start(
        'load a cache',
        () => PagedKvCache.load(bytes, { prefixKey: PREFIX_KEY, ...this.#signal() }),
        loaded => {
          loaded.checkInvariants()
          loaded.dispose()
        },
      )
    } else {
      this.#start('events', async () => {
        using events = cache.events()
        await events.next()
      })
    }
  }

  /** Ends the cache while work is pending, and begins with another one. */
  #end(): void {
    this.#snapshot?.snapshot.dispose()
    this.#snapshot = undefined
    if (this.#chance.once(2)) {
      this.#cache.dispose()
      this.#note('dispose')
    } else {
      this.#start('dispose in the background', async () => this.#cache[Symbol.asyncDispose]())
    }
    this.#open = []
    this.#cache = this.#make()
  }

  /** Makes one random call. */
  async step(): Promise<void> {
    const kind = this.#chance.below(20)
    const open = this.#open.length === 0 ? undefined : this.#chance.of(this.#open)
    if (kind < 6 || open === undefined) this.#find()
    else if (kind < 12) this.#change(open)
    else if (kind < 15) this.#read(open)
    else if (kind < 18) this.#whole()
    else if (kind === 18) this.#call('check', () => this.#check(this.#cache, open.sequence, open.tenant, open.tokens))
    else if (this.#chance.once(4)) this.#end()
    else this.#call('forget', () => this.#cache.forgetPrefixes())
    this.#call('check the invariants', () => this.#cache.checkInvariants())
    if (this.#chance.once(3)) for (const wake of this.#wakes.splice(0)) wake()
    if (this.#chance.once(2)) await setImmediate()
    else if (this.#chance.once(8)) await setTimeout(this.#chance.below(4))
  }

  /** Disposes of everything, and waits until all background work has ended. */
  async settle(): Promise<void> {
    this.#snapshot?.snapshot.dispose()
    this.#cache.dispose()
    this.#shelf.before = undefined
    for (const wake of this.#wakes.splice(0)) wake()
    const late = new AbortController()
    const limit = setTimeout(LIMIT_MS, undefined, { signal: late.signal }).then(() => {
      throw new Error(`work does not end: ${this.#pending.size} calls are pending`)
    })
    const all = Promise.all(this.#pending)
    await Promise.race([all, limit.catch(error => (late.signal.aborted ? undefined : Promise.reject(error)))]).finally(
      () => late.abort(),
    )
  }
}

function same(shown: ArrayLike<number>, wanted: ArrayLike<number>): void {
  if (shown.length !== wanted.length || Array.from(shown).some((value, at) => !Object.is(value, wanted[at])))
    throw new Error('background work gives other numbers than the call at its beginning')
}
