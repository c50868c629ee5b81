// Random forks, drafts, steps, prompts and evictions on a PagedKvCache, against a model that keeps every token by itself.
import type { ExecutionContext } from 'ava'
import fc from 'fast-check'

import { isKvTideError, PagedKvCache } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { follow, followed, Kept, pairOf, rootOf, type Draft, type Form, type Saved } from '../support/paged-model.js'
import { check, refused, route, same } from '../support/properties.js'

type Name = (typeof NAMES)[number]
interface Step {
  readonly name: Name
  /** The sequence, by its place in the list. */
  readonly which: number
  readonly n: number
  /** Ids of tokens, parents, choices of a path. */
  readonly ids: readonly number[]
  readonly flag: boolean
}

const NAMES = [
  'open',
  'feed',
  'feed',
  'feed',
  'feed',
  'fork',
  'drop',
  'drop',
  'drop',
  'truncate',
  'save',
  'restore',
  'forget snapshot',
  'begin',
  'begin',
  'draft',
  'draft',
  'tree',
  'tree',
  'commit',
  'commit',
  'path',
  'path',
  'roll back',
  'step',
  'step',
  'prompt',
  'prompt',
  'prompt',
  'ensure',
  'forget',
] as const

const formsOn = (device: string): fc.Arbitrary<Form> =>
  fc.record({
    device: fc.constant(device),
    capacity: fc.integer({ min: 1, max: 16 }),
    blockSize: fc.integer({ min: 1, max: 3 }),
    numLayers: fc.integer({ min: 1, max: 2 }),
    numKvHeads: fc.integer({ min: 1, max: 2 }),
    headDim: fc.integer({ min: 1, max: 2 }),
  })

const windows = fc.record({ window: fc.integer({ min: 1, max: 5 }), sinks: fc.nat({ max: 2 }) })

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.record({
    name: fc.constantFrom(...NAMES),
    which: fc.nat({ max: 20 }),
    n: fc.nat({ max: 7 }),
    // Few ids, so that prompts meet again.
    ids: fc.array(fc.constantFrom(0, 0, 0, 1), { minLength: 8, maxLength: 8 }),
    flag: fc.boolean(),
  }),
  { maxLength: 60, size: 'max' },
)

const SALTS = ['', 'a']

class Run {
  hits = 0
  readonly cache: PagedKvCache
  readonly #form: Form
  readonly #layers: readonly number[]
  readonly #kept: Kept[] = []
  readonly #saved: Saved[] = []

  constructor(form: Form) {
    this.#form = form
    this.#layers = Array.from({ length: form.numLayers }, (_, layer) => layer)
    this.cache = new PagedKvCache({ ...form, events: 8 })
  }

  /** Runs a call that needs blocks; false when there were too few, and nothing has changed. */
  #fits(call: () => void): boolean {
    try {
      call()
      return true
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'OUT_OF_BLOCKS') throw error
      const { needed, free } = error.details
      if (needed <= free) throw new Error(`${needed} blocks were refused where ${free} are free`, { cause: error })
      same('free', free, this.cache.freeCount)
      return false
    }
  }

  /** Runs what needs tokens that a window may have left behind; false when it has, and nothing has changed. */
  #keeps(call: () => void): boolean {
    try {
      call()
      return true
    } catch (error) {
      if (this.#form.window === undefined || !isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
      return false
    }
  }

  step(step: Step): void {
    const { name, which, n, ids, flag } = step
    const kept = this.#kept[which % Math.max(this.#kept.length, 1)]
    if (name === 'open' || kept === undefined) this.#open(SALTS[n % 2] as string)
    else if (name === 'prompt') this.#prompt(SALTS[which % 2] as string, ids.slice(0, n + 1), flag)
    else if (name === 'step') this.#step(step)
    else if (name === 'forget') this.#forget(n)
    else if (name === 'fork') this.#kept.push(new Kept(kept.sequence.fork(), kept.root, kept.all))
    else if (name === 'drop') this.#drop(kept, flag)
    else if (name === 'ensure') this.#fits(() => this.cache.ensureCapacity([kept.sequence], [kept.all.length + n]))
    else if (name === 'save')
      this.#saved.push({ snapshot: kept.sequence.snapshot(), root: kept.root, tokens: kept.all })
    else if (name === 'forget snapshot') this.#saved.shift()?.snapshot.dispose()
    else if (name === 'begin') this.#begin(kept, n, flag)
    else if (kept.drafts.length > 0) this.#drafted(kept, kept.drafts.at(-1) as Draft, step)
    else this.#plain(kept, step)
  }

  /** Seldom, since nothing is found for a while then. */
  #forget(n: number): void {
    if (n === 0) this.cache.forgetPrefixes()
  }

  #open(salt: string): void {
    this.#kept.push(new Kept(this.cache.openSequence(salt === '' ? {} : { salt }), rootOf(salt), []))
  }

  /** The changes of a sequence without an open transaction. */
  #plain(kept: Kept, { name, which, n, ids, flag }: Step): void {
    const { sequence, tokens, root } = kept
    if (name === 'truncate') {
      const length = Math.min(n, tokens.length)
      if (this.#keeps(() => sequence.truncate(length))) tokens.length = length
    } else if (name === 'restore') {
      const saved = this.#saved[which % Math.max(this.#saved.length, 1)]
      if (saved === undefined) return
      // Tokens of another salt are no business of this one's.
      if (saved.root !== root) return refused('SNAPSHOT_INVALID', () => sequence.restore(saved.snapshot))
      sequence.restore(saved.snapshot)
      tokens.splice(0, tokens.length, ...saved.tokens)
    } else {
      const added = followed(kept.last, ids.slice(0, n))
      const [k, v] = pairOf(this.#form, this.#layers, added)
      if (this.#fits(() => sequence.append(flag || which % 2 === 0 ? { k, v, tokens: ids.slice(0, n) } : { k, v })))
        kept.add(added)
    }
  }

  #begin(kept: Kept, n: number, flag: boolean): void {
    const on = kept.drafts.at(-1)?.open ?? kept.sequence
    this.#fits(() => {
      const open = on.begin(flag ? { maxTokens: n } : {})
      kept.drafts.push({ open, nodes: [] })
    })
  }

  #drafted(kept: Kept, draft: Draft, { name, n, ids, flag, which }: Step): void {
    const { open, nodes } = draft
    if (name === 'commit') {
      const count = flag ? nodes.length : Math.min(n, nodes.length)
      open.commit(flag ? undefined : count)
      kept.end(nodes.slice(0, count))
    } else if (name === 'path') {
      const path = route(draft, ids.slice(0, n))
      if (this.#fits(() => open.commitPath(path)))
        kept.end(path.map((node, place) => ({ token: nodes[node]?.token as number, parent: place - 1 })))
    } else if (name === 'roll back') {
      const place = which % kept.drafts.length
      kept.drafts[place]?.open.dispose()
      kept.drafts.length = place
    } else if (name === 'tree' || name === 'draft') {
      this.#append(kept, draft, ids.slice(0, n), name === 'tree' ? which : undefined, flag)
    } else {
      refused('TRANSACTION_OPEN', () => kept.sequence.truncate(0))
      const [k, v] = pairOf(this.#form, this.#layers, [1])
      refused('TRANSACTION_OPEN', () => kept.sequence.append({ k, v }))
    }
  }

  /** Drafts tokens, a chain or the nodes of a tree. */
  #append(kept: Kept, { open, nodes }: Draft, ids: readonly number[], seed: number | undefined, told: boolean): void {
    const first = nodes.length
    const added: { token: number; parent: number }[] = []
    for (const [place, id] of ids.entries()) {
      const parent = seed === undefined ? first + place - 1 : ((seed * 7 + place * 5 + id) % (first + place + 1)) - 1
      const before = parent < 0 ? kept.before : ((nodes[parent] ?? added[parent - first])?.token as number)
      added.push({ token: follow(before, id), parent })
    }
    const [k, v] = pairOf(
      this.#form,
      this.#layers,
      added.map(({ token }) => token),
    )
    const parents = seed === undefined ? {} : { parents: added.map(({ parent }) => parent) }
    if (this.#fits(() => open.append({ k, v, ...parents, ...(told ? { tokens: [...ids] } : {}) }))) nodes.push(...added)
  }

  /** A step of one or two sequences, drafted where transactions are open. */
  #step({ which, n, ids, flag }: Step): void {
    const chosen = [...new Set([which, which + 1].map(place => this.#kept[place % this.#kept.length] as Kept))]
    const counts = chosen.map((_, place) => (n + place) % 4)
    const offsets = counts.reduce<number[]>((before, count) => [...before, (before.at(-1) as number) + count], [0])
    const all = ids.slice(0, offsets.at(-1))
    const added = chosen.map((kept, place) => followed(kept.last, all.slice(offsets[place], offsets[place + 1])))
    this.#fits(() => {
      using step = this.cache.beginStep({ sequences: chosen.map(({ sequence }) => sequence), offsets })
      for (const layer of flag ? this.#layers : this.#layers.toReversed())
        step.write(layer, ...pairOf(this.#form, [layer], added.flat()))
      if (which % 3 === 0) return
      step.commit(flag ? all : undefined)
      for (const [place, kept] of chosen.entries()) kept.add(added[place] as number[])
    })
  }

  /** Looks for a prompt, and makes a sequence of what is found: it shows that prompt and no other. */
  #prompt(salt: string, ids: readonly number[], partial: boolean): void {
    const { blockSize } = this.#form
    const match = this.cache.match(ids, { salt, partial })
    const { length } = match
    if (length > Math.max(ids.length - 1, 0) || (!partial && length % blockSize !== 0))
      throw new Error(`${length} of ${ids.length} tokens were found`)
    const { matched } = this.cache.explain(ids, { salt })
    if (matched > length || length - matched >= blockSize)
      throw new Error(`${length} tokens were found, ${matched} explained`)
    this.hits += length
    const root = rootOf(salt)
    const sequence = this.cache.openSequence({ prefix: match })
    this.#kept.push(new Kept(sequence, root, followed(root, ids.slice(0, length))))
    refused('DISPOSED', () => this.cache.openSequence({ prefix: match }))
    if (match.length !== length) throw new Error(`a match of ${length} tokens has ${match.length} once it was used`)
  }

  #drop(kept: Kept, flag: boolean): void {
    const [draft] = kept.drafts
    if (flag) kept.sequence.drop()
    else kept.sequence.dispose()
    if (draft !== undefined) refused('SEQUENCE_NOT_FOUND', () => draft.open.commit())
    this.#kept.splice(this.#kept.indexOf(kept), 1)
  }

  check(): void {
    this.cache.checkInvariants()
    for (const kept of this.#kept) kept.check(this.cache, this.#form)
    const { totalBlocks, freeBlocks, cachedBlocks, activeBlocks } = this.cache.stats()
    same(
      'blocks',
      [totalBlocks, freeBlocks + cachedBlocks],
      [freeBlocks + cachedBlocks + activeBlocks, this.cache.freeCount],
    )
  }

  /** Lets go of everything: then nothing is held. */
  end(): void {
    for (const { sequence } of this.#kept) sequence.drop()
    for (const { snapshot } of this.#saved) snapshot.dispose()
    same('blocks in use', this.cache.stats().activeBlocks, 0)
    this.cache.checkInvariants()
    this.cache.dispose()
  }
}

function property(t: ExecutionContext, of: fc.Arbitrary<Form>): void {
  let hits = 0
  check(t, fc.tuple(of, steps), ([form, sequence]) => {
    const run = new Run(form)
    for (const step of sequence) {
      run.step(step)
      run.check()
    }
    run.end()
    hits += run.hits
  })
  t.log(`${hits} tokens were found by prompts`)
  t.true(hits > 0)
}

onDevices('whatever is shared, drafted and evicted, each sequence shows its own tokens', (t, device) =>
  property(t, formsOn(device)),
)

onDevices('and what a window has not left behind', (t, device) =>
  property(
    t,
    fc.tuple(formsOn(device), windows).map(([form, window]) => ({ ...form, ...window })),
  ),
)
