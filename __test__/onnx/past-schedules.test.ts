// `OnnxPast` over sessions whose layers keep states, in random worlds: several pasts share a cache that is too small, and are cut, changed, forked, dropped and
// found again in any order. Each call gives what the whole list gives.
import { setImmediate as eventLoop } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'
import * as ort from 'onnxruntime-node'

import { isKvTideError, type ModelDescription, PagedKvCache, type PageFormat } from '../../index.js'
import { OnnxPast } from '../../lib/onnx/past.js'
import { onnxTest } from '../support/onnx/available.js'
import { argmax, quiet } from '../support/onnx/graphs.js'
import {
  following,
  hybridGraph,
  type HybridForm,
  hybridLayers,
  POISON,
  VOCABULARY,
} from '../support/onnx/hybrid-graph.js'
import { note, schedules } from '../support/onnx/schedules.js'
import type { Dice } from '../support/onnx/toy-model.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 150)
/** Formats that keep the rows of the graph, which are whole numbers up to 12. */
const PAGES: readonly PageFormat[] = ['f32', 'f16', 'bf16', 'f8e4m3']

interface World {
  readonly t: ExecutionContext
  readonly dice: Dice
  readonly name: string
  readonly session: ort.InferenceSession
  readonly cache: PagedKvCache
  readonly isPruned: boolean
  says(tokens: readonly number[]): number[]
}

/** Draws tokens; lists begin alike, now and then. */
function drawn(dice: Dice, most: number): number[] {
  const [length, family] = [1 + dice.roll(most), dice.roll(3)]
  const own = dice.roll(length + 1)
  return Array.from({ length }, (_, at) =>
    at < length - own ? (family * 7 + at * 5) % (VOCABULARY - 1) : dice.roll(VOCABULARY - 1),
  )
}

/** One list of tokens, and its past. */
class Lister {
  readonly #world: World
  readonly #name: string
  readonly #salt: string
  #past: OnnxPast<ort.Tensor>
  #tokens: number[]

  constructor(world: World, name: string, from?: Lister) {
    this.#world = world
    this.#name = `${world.name}, ${name}`
    this.#salt = from === undefined ? (world.dice.once(3) ? 'other' : 'one') : from.#salt
    this.#tokens = from === undefined ? drawn(world.dice, 30) : [...from.#tokens]
    this.#past = from === undefined ? this.#open() : from.#past.fork()
  }

  #open(): OnnxPast<ort.Tensor> {
    const { session, cache } = this.#world
    return new OnnxPast<ort.Tensor>({ session, cache, Tensor: ort.Tensor, salt: this.#salt })
  }

  async talk(count: number): Promise<void> {
    for (let turn = 0; turn < count && this.#world.t.passed; turn++) await this.#turn()
    this.#past.dispose()
  }

  async #turn(): Promise<void> {
    const { dice } = this.#world
    if (dice.once(3)) {
      this.#tokens.length = dice.roll(this.#tokens.length + 1)
      note('cut')
    }
    if (dice.once(5)) {
      this.#past.dispose()
      this.#past = this.#open()
    }
    if (dice.once(5)) {
      note('forked')
      const other = new Lister(this.#world, `${this.#name}'`, this)
      this.#tokens.push(...drawn(dice, 3))
      await Promise.all([this.#step(), other.talk(1 + dice.roll(3))])
      return
    }
    if (dice.once(8)) {
      // Prepared and never run.
      this.#past.resume([...this.#tokens, ...drawn(dice, 5)])
      note('left')
    }
    for (let steps = 1 + dice.roll(4); steps > 0; steps--) {
      this.#tokens.push(...drawn(dice, dice.once(3) ? 20 : 3))
      await this.#step()
    }
  }

  async #step(): Promise<void> {
    const { t, dice, session, isPruned, says } = this.#world
    const isPoisoned = dice.once(12)
    const list = isPoisoned ? [...this.#tokens, POISON] : this.#tokens
    const { feeds, tokens } = this.#past.resume(list)
    const before = list.length - tokens.length
    t.is(this.#past.length, before, this.#name)
    if (before > 0) note('kept')
    const outputs = (await session.run(feeds)) as Record<string, ort.Tensor>
    if (dice.once(4)) await eventLoop()
    const rows = (outputs['logits'] as ort.Tensor).data as Float32Array
    const wanted = says(list)
    // Attention multiplies the rows that a token does not see by 0, which leaves what is not a number.
    for (let back = 0; back < (isPoisoned ? 0 : isPruned ? 1 : tokens.length); back++) {
      const end = rows.length - back * VOCABULARY
      t.is(
        argmax(rows.slice(end - VOCABULARY, end)),
        wanted.at(-1 - back) as number,
        `${this.#name}: ${back} before the last`,
      )
    }
    const kept = dice.once(5) ? dice.roll(tokens.length) : tokens.length
    try {
      this.#past.commit(outputs, tokens.subarray(0, kept))
      t.is(this.#past.length, kept === tokens.length ? list.length : before, this.#name)
      note(kept === tokens.length ? 'committed' : 'dropped')
    } catch (error) {
      if (!isKvTideError(error)) throw error
      if (error.code === 'RUNTIME_FAILED') t.true(isPoisoned, `${this.#name}: ${error.message}`)
      else if (error.code !== 'OUT_OF_BLOCKS') throw error
      t.is(this.#past.length, before, `${this.#name}: a refused commit changes nothing`)
      note(error.code)
    }
  }
}

const FORMS: readonly HybridForm[] = [{}, { isHalf: false, isPruned: true }, { hasAttention: false }, { isHalf: true }]

for (const [place, form] of FORMS.entries()) {
  onnxTest(
    `lists of tokens over graph ${place}, in random worlds`,
    async t => {
      const session = await ort.InferenceSession.create(hybridGraph(form), quiet)
      const { hasAttention = true, isPruned = false } = form
      const run = async (dice: Dice, name: string): Promise<void> => {
        const format = PAGES[dice.roll(PAGES.length)] as PageFormat
        const [blocks, slots] = [10 + dice.roll(40), 2 + dice.roll(dice.once(2) ? 6 : 40)]
        using cache = new PagedKvCache({
          model: { layers: hybridLayers(form) } as unknown as ModelDescription,
          blockSize: 1 + dice.roll(8),
          capacity: hasAttention ? [blocks, slots] : [slots],
          ...(hasAttention ? { keyFormat: format, valueFormat: format } : {}),
        })
        const says = (tokens: readonly number[]): number[] => following(tokens, hasAttention)
        const world = { t, dice, name: `${name}, ${format}`, session, cache, isPruned, says }
        const listers = Array.from({ length: 1 + dice.roll(4) }, (_, at) => new Lister(world, `list ${at}`))
        await Promise.all(listers.map(lister => lister.talk(1 + dice.roll(5))))
        cache.checkInvariants()
        t.is(cache.freeCount, cache.totalCount, `${name}: blocks are left`)
        t.deepEqual(cache.sequenceIds(), [], name)
      }
      const all = ['cut', 'forked', 'left', 'kept', 'committed', 'dropped', 'OUT_OF_BLOCKS', 'RUNTIME_FAILED']
      await schedules(t, CASES, run, all)
      await session.release()
    },
    test.serial,
  )
}
