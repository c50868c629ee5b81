// Random histories of presents: lists that differ at any place, commits of a part, cuts, forks, snapshots and transactions. What is computed with what
// was kept has to be what the same graph computes alone, from the first token on and without a past.
import type { ExecutionContext } from 'ava'
import * as ort from 'onnxruntime-node'

import { isKvTideError, PagedKvCache, type Snapshot, type Transaction } from '../../index.js'
import { OnnxModel, OnnxPast, type OnnxSequence } from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { copied, prunedHead } from '../support/onnx/changed.js'
import { argmax, floats, graphFile, openSession } from '../support/onnx/graphs.js'
import { FIRST_SEED } from '../support/onnx/schedules.js'
import { Dice } from '../support/onnx/toy-model.js'

const CASES = Number(process.env['KVTIDE_CASES'] ?? 24)
/** The allowed error of logits: sums in another order. */
const NEAR = 1e-3
/** Few ids, so that lists are often the same by chance, and longer than others by chance. */
const IDS = 3

const ints = (numbers: readonly number[]): ort.Tensor =>
  new ort.Tensor('int64', BigInt64Array.from(numbers, BigInt), [1, numbers.length])

/** The logits of all tokens of a list, by a graph without a past. */
class Alone {
  readonly #session: ort.InferenceSession
  readonly #sizes: readonly [heads: number, dim: number]
  readonly #known = new Map<string, Float32Array>()

  private constructor(session: ort.InferenceSession, sizes: readonly [number, number]) {
    this.#session = session
    this.#sizes = sizes
  }

  static async open(graph: string, heads: number, dim: number): Promise<Alone> {
    return new Alone(await openSession(graph), [heads, dim])
  }

  async rows(tokens: readonly number[]): Promise<Float32Array> {
    const name = tokens.join()
    const found = this.#known.get(name) ?? (await this.#compute(tokens))
    this.#known.set(name, found)
    return found
  }

  async last(tokens: readonly number[]): Promise<Float32Array> {
    const rows = await this.rows(tokens)
    return rows.subarray(rows.length - rows.length / tokens.length)
  }

  async #compute(tokens: readonly number[]): Promise<Float32Array> {
    const [heads, dim] = this.#sizes
    const inputs: Record<string, ort.Tensor> = {
      input_ids: ints(tokens),
      attention_mask: ints(tokens.map(() => 1)),
      position_ids: ints(tokens.map((_, place) => place)),
    }
    const feeds = this.#session.inputNames.map(
      input => [input, inputs[input] ?? new ort.Tensor('float32', new Float32Array(0), [1, heads, 0, dim])] as const,
    )
    const { logits } = await this.#session.run(Object.fromEntries(feeds))
    return floats(logits as ort.Tensor).slice()
  }
}

/** A list that has something in common with another one, to any place. */
function listBehind(dice: Dice, tokens: readonly number[], longest = 40): number[] {
  const kept = dice.once(3) ? tokens.length : dice.roll(tokens.length + 1)
  const start = tokens.slice(0, Math.min(kept, longest - 1))
  const more = (start.length === 0 ? 1 : 0) + dice.roll(dice.once(3) ? 12 : 3)
  return [...start, ...Array.from({ length: more }, () => 5 + dice.roll(IDS))]
}

/** One past, and the tokens that it has to have. */
interface Chat {
  readonly past: OnnxPast<ort.Tensor>
  tokens: number[]
}

async function turn(
  t: ExecutionContext,
  dice: Dice,
  { session, alone }: { session: ort.InferenceSession; alone: Alone },
  chat: Chat,
  name: string,
): Promise<void> {
  const list = listBehind(dice, chat.tokens)
  const given = Uint32Array.from(list)
  const { feeds, tokens } = chat.past.resume(given)
  const kept = list.length - tokens.length
  // The array is the caller's again.
  if (dice.once(4)) given.fill(1)
  chat.tokens = list.slice(0, kept)
  t.is(chat.past.length, kept, name)
  if (dice.once(8)) return
  const outputs = (await session.run(feeds)) as Record<string, ort.Tensor>
  const logits = floats(outputs['logits'] as ort.Tensor)
  const wanted = await alone.last(list)
  const off = distance(logits.slice(-wanted.length), wanted)
  t.true(off < NEAR, `${name}: off by ${off} behind ${list.join()}`)
  if (dice.once(8)) return
  const taken = dice.once(2) ? dice.roll(tokens.length + 1) : undefined
  chat.past.commit(outputs, ...(taken === undefined ? [] : [tokens.subarray(0, taken)]))
  chat.tokens = list.slice(0, kept + (taken ?? tokens.length))
  t.is(chat.past.length, chat.tokens.length, name)
}

const LAYER = { numKvHeads: 2, headDim: 16 } as const
const PASTS = [
  { graph: 'llama/onnx', oracle: 'llama/onnx', layers: [0, 1, 2].map(() => ({ kind: 'full', ...LAYER }) as const) },
  {
    graph: 'families/qwen2-window/builder',
    oracle: 'families/qwen2-window/optimum',
    layers: [
      { kind: 'full', ...LAYER },
      { kind: 'sliding', window: 9, ...LAYER },
    ] as const,
  },
]

for (const { graph, oracle, layers } of PASTS) {
  test(`${graph}: pasts of random lists, committed in part, forked and given up`, async t => {
    const alone = await Alone.open(oracle, LAYER.numKvHeads, LAYER.headDim)
    const world = { session: await openSession(graph), alone }
    for (let seed = FIRST_SEED; seed < FIRST_SEED + CASES && t.passed; seed++) {
      const dice = new Dice(seed)
      using cache = new PagedKvCache({ model: { layers }, blockSize: 1 + dice.roll(5), capacity: 300 })
      const opened = (): Chat => ({
        past: new OnnxPast<ort.Tensor>({ session: world.session, cache, Tensor: ort.Tensor }),
        tokens: [],
      })
      let chats = [opened()]
      for (let turns = 0; turns < 16 && t.passed; turns++) {
        const chat = chats[dice.roll(chats.length)] as Chat
        if (dice.once(8)) chats.push(dice.once(2) ? opened() : { past: chat.past.fork(), tokens: [...chat.tokens] })
        await turn(t, dice, world, chat, `seed ${seed}, turn ${turns}`)
        if (chats.length > 3) {
          chat.past.dispose()
          chats = chats.filter(other => other !== chat)
        }
      }
      for (const { past } of chats) past.dispose()
      t.is(cache.sequenceIds().length, 0)
      cache.checkInvariants()
    }
  })
}

interface PlainWorld {
  readonly model: OnnxModel
  readonly alone: Alone
  readonly vocabulary: number
  /** Lists that were computed: the cache may still have what they begin with. */
  readonly lists: number[][]
}

/** A snapshot, and the tokens that it is of. */
interface Taken {
  readonly snapshot: Snapshot
  readonly tokens: number[]
}

/** A sequence of a model that is run as it is, and the tokens that it has to have. */
class Client {
  readonly #t: ExecutionContext
  readonly #dice: Dice
  readonly #world: PlainWorld
  readonly #name: string
  #sequence: OnnxSequence
  #tokens: number[] = []
  readonly #snapshots: Taken[] = []
  #draft: { readonly transaction: Transaction; readonly tokens: number[] } | undefined

  constructor(t: ExecutionContext, dice: Dice, world: PlainWorld, name: string) {
    this.#t = t
    this.#dice = dice
    this.#world = world
    this.#name = name
    this.#sequence = world.model.open()
  }

  async talk(turns: number): Promise<void> {
    for (let done = 0; done < turns && this.#t.passed; done++) {
      this.#change()
      await (this.#dice.once(3) ? this.#generate() : this.#run())
      this.#t.deepEqual([...this.#sequence.tokens], this.#tokens, `${this.#name}, turn ${done}`)
    }
    this.#end()
    for (const { snapshot } of this.#snapshots) snapshot.dispose()
    this.#sequence.dispose()
  }

  /** Something else than what was computed becomes the sequence. */
  #change(): void {
    const [dice, sequence] = [this.#dice, this.#sequence]
    if (this.#draft !== undefined && dice.once(2)) return this.#end()
    if (this.#draft !== undefined) return
    const call = dice.roll(7)
    try {
      if (call === 0) {
        this.#tokens.length = dice.roll(this.#tokens.length + 1)
        sequence.truncate(this.#tokens.length)
      } else if (call === 1) {
        const { lists } = this.#world
        const list = listBehind(dice, dice.once(2) ? this.#tokens : (lists[dice.roll(lists.length)] ?? []), 16)
        sequence.resume(list)
        this.#tokens = list
      } else if (call === 2) {
        this.#sequence = sequence.fork()
        sequence.dispose()
      } else if (call === 3 && this.#snapshots.length > 0) {
        const { snapshot, tokens } = this.#snapshots[dice.roll(this.#snapshots.length)] as Taken
        sequence.restore(snapshot)
        this.#tokens = [...tokens]
      } else if (call === 4) this.#snapshots.push({ snapshot: sequence.snapshot(), tokens: [...this.#tokens] })
      else if (call === 5) this.#draft = { transaction: sequence.begin(), tokens: [...this.#tokens] }
    } catch (error) {
      // A window has dropped what would be seen again.
      if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
      this.#tokens = [...sequence.tokens]
    }
  }

  #end(): void {
    if (this.#draft === undefined) return
    const { transaction, tokens } = this.#draft
    this.#draft = undefined
    if (this.#dice.once(2)) return transaction.commit()
    transaction.rollback()
    this.#tokens = [...tokens]
  }

  #more(): number[] {
    return Array.from({ length: 1 + this.#dice.roll(this.#dice.once(3) ? 12 : 3) }, () => 5 + this.#dice.roll(IDS))
  }

  async #run(): Promise<void> {
    const { model, alone, vocabulary } = this.#world
    const [tokens, isAll, computed] = [this.#more(), this.#dice.once(2), this.#sequence.length]
    const [logits] = (await model.run([{ sequence: this.#sequence, tokens }], { logits: isAll ? 'all' : 'last' })) as [
      Float32Array,
    ]
    this.#tokens.push(...tokens)
    this.#world.lists.push([...this.#tokens])
    const rows = await alone.rows(this.#tokens)
    const off = distance(logits, rows.slice((isAll ? computed : this.#tokens.length - 1) * vocabulary))
    this.#t.true(off < NEAR, `${this.#name}: off by ${off} behind ${this.#tokens.join()}`)
  }

  /** Tokens that are drafted, too: what of a draft is taken back was kept. */
  async #generate(): Promise<void> {
    const { model, alone } = this.#world
    const tokens = this.#more()
    this.#tokens.push(...tokens)
    for await (const token of model.generate(this.#sequence, {
      tokens,
      maxTokens: 1 + this.#dice.roll(6),
      draft: 'lookup',
    })) {
      const row = await alone.last(this.#tokens)
      // Of two that are nearly alike, either may come.
      if ((row[argmax(row)] as number) - (row[token] as number) > NEAR)
        this.#t.is(token, argmax(row), `${this.#name} behind ${this.#tokens.join()}`)
      this.#tokens.push(token)
    }
  }
}

/** For graphs that do not say their sizes themselves. */
const CONFIG = {
  model_type: 'qwen2',
  num_hidden_layers: 2,
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  vocab_size: 72,
  use_sliding_window: true,
  sliding_window: 9,
  max_window_layers: 1,
  layer_types: ['full_attention', 'sliding_attention'],
}

const MODELS = [
  { graph: 'llama/onnx', oracle: 'llama/onnx', vocabulary: 320, pruned: false },
  { graph: 'llama/onnx', oracle: 'llama/onnx', vocabulary: 320, pruned: true },
  { graph: 'families/qwen2-window/builder', oracle: 'families/qwen2-window/optimum', vocabulary: 72, pruned: false },
  { graph: 'families/qwen2-window/builder', oracle: 'families/qwen2-window/optimum', vocabulary: 72, pruned: true },
] as const

for (const { graph, oracle, vocabulary, pruned } of MODELS) {
  test(`${graph}${pruned ? ', pruned' : ''}: random chats of a graph that is run as it is`, async t => {
    const alone = await Alone.open(oracle, LAYER.numKvHeads, LAYER.headDim)
    const options = {
      backend: 'plain',
      threads: 1,
      cache: { capacity: 1000, blockSize: 1 },
      ...(graph.includes('qwen2') ? { config: CONFIG as never } : {}),
    } as const
    await using model = await OnnxModel.load(
      pruned ? copied(t, graphFile(graph), prunedHead) : graphFile(graph),
      options,
    )
    for (let seed = FIRST_SEED; seed < FIRST_SEED + CASES / 4 && t.passed; seed++) {
      const dice = new Dice(seed)
      const lists: number[][] = []
      const clients = Array.from(
        { length: 1 + dice.roll(3) },
        (_, place) => new Client(t, dice, { model, alone, vocabulary, lists }, `seed ${seed}, client ${place}`),
      )
      await Promise.all(clients.map(client => client.talk(10)))
      model.cache.checkInvariants()
    }
    t.is(model.cache.sequenceIds().length, 0)
  })
}
