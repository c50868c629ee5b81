// Pages that round: what a model says is the same whatever else a step computes, as docs/low-bit.md promises for each backend and format. Random
// schedules of prompts in pieces, drafts, forks, prompts that are found and pools that are too small, against a model that computes each alone.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError } from '../../index.js'
import {
  type BackendName,
  type GenerateOptions,
  type OnnxCacheOptions,
  OnnxModel,
  type OnnxSequence,
} from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest } from '../support/onnx/available.js'
import { graphFile } from '../support/onnx/paged-graph.js'
import { Dice } from '../support/onnx/toy-model.js'

type Format = 'f32' | 'f16' | 'bf16' | 'f8e4m3' | 'q8' | 'q4'
type Deed = 'pieces' | 'drafted' | 'forked' | 'restored' | 'found'

const VOCABULARY = 320
const BLOCK_SIZE = 4
const CASES = Number(process.env['KVTIDE_LOW_BIT_SCHEDULES'] ?? 3)

/** The promises of a backend beside steps with others, pieces, drafts and preemption. */
const PROMISED: Readonly<Record<BackendName, readonly Deed[]>> = {
  graph: ['pieces', 'drafted', 'forked', 'restored', 'found'],
  parts: ['pieces', 'drafted', 'forked', 'restored', 'found'],
  plain: ['pieces', 'drafted'],
}

/**
 * The largest difference of any logit, and of half of the logits, whose deviation is 2.4. Products of another shape differ in their last bits, so now and then a
 * value at the border of two codes gets the other code. Pages that are read in another form change all logits.
 */
const APART: Readonly<Record<Format, readonly [most: number, half: number]>> = {
  f32: [0, 0],
  f16: [0.05, 0.002],
  bf16: [0.4, 0.002],
  f8e4m3: [1.5, 0.002],
  q8: [0.4, 0.002],
  q4: [2.5, 0.002],
}

interface World {
  readonly model: OnnxModel
  readonly drafts: OnnxModel
  readonly apart: number
  /** The errors of logits. */
  readonly offs: number[]
  readonly promised: readonly Deed[]
  /** Logits of each token of a prompt, computed alone and at once. */
  alone(tokens: readonly number[]): Promise<Float32Array>
  note(deed: string): void
}

function promptOf(dice: Dice): number[] {
  const [length, family] = [3 + dice.roll(30), dice.roll(3)]
  const own = dice.roll(length)
  // Some go round, so that what comes next can be looked up in them.
  const cycle = 2 + dice.roll(6)
  return Array.from({ length }, (_, place) =>
    place < length - own
      ? (family * 50 + (place % 7) * 11) % VOCABULARY
      : (own * 31 + (place % cycle) * 17) % VOCABULARY,
  )
}

/** One chat, each of whose logits are compared. */
class Client {
  readonly #t: ExecutionContext
  readonly #world: World
  readonly #dice: Dice
  readonly #name: string
  readonly #tokens: number[]
  readonly #chat: OnnxSequence

  constructor(
    t: ExecutionContext,
    world: World,
    dice: Dice,
    name: string,
    from?: { readonly chat: OnnxSequence; readonly tokens: readonly number[] },
  ) {
    this.#t = t
    this.#world = world
    this.#dice = dice
    this.#name = name
    this.#tokens = [...(from?.tokens ?? [])]
    this.#chat = from?.chat ?? world.model.open({ salt: world.promised.includes('found') ? 'all' : name })
  }

  async talk(turns: number): Promise<void> {
    using _ = this.#chat
    try {
      for (let turn = 0; turn < turns && this.#t.passed; turn++) {
        await this.#run()
        if (this.#can('forked', 3)) await this.#fork()
        if (this.#can('restored', 3)) await this.#restore()
        await this.#generate()
      }
      if (this.#can('found', 2)) await this.#find()
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'OUT_OF_BLOCKS') throw error
      this.#world.note('OUT_OF_BLOCKS')
    }
  }

  #can(deed: Deed, times: number): boolean {
    if (!this.#world.promised.includes(deed) || !this.#dice.once(times)) return false
    this.#world.note(deed)
    return true
  }

  /** New tokens in pieces: the logits of each of them. */
  async #run(more = promptOf(this.#dice), pieces = 1 + this.#dice.roll(4)): Promise<void> {
    const from = this.#tokens.length
    const rows: Float32Array[] = []
    for (let at = 0; at < more.length;) {
      const tokens = more.slice(at, at + Math.ceil(more.length / pieces))
      const [logits] = (await this.#world.model.run([{ sequence: this.#chat, tokens }], { logits: 'all' })) as [
        Float32Array,
      ]
      // One that made room begins anew: then the tokens that were computed before are among them.
      rows.push(logits.subarray(logits.length - tokens.length * VOCABULARY))
      at += tokens.length
    }
    this.#tokens.push(...more)
    this.#world.note('pieces')
    await this.#compare(from, rows, 'pieces')
  }

  async #compare(from: number, rows: readonly Float32Array[], what: string): Promise<void> {
    const wanted = (await this.#world.alone(this.#tokens)).subarray(from * VOCABULARY)
    let at = 0
    for (const row of rows) {
      const off = distance(row, wanted.subarray(at, at + row.length))
      this.#world.offs.push(off)
      this.#t.true(
        off <= this.#world.apart,
        `${this.#name}, ${what}: logits behind token ${from + at / VOCABULARY} are off by ${off}`,
      )
      at += row.length
    }
  }

  /** Tokens that are drawn, some of them drafted. */
  async #generate(): Promise<void> {
    const draft = this.#draft()
    const from = this.#tokens.length
    const generation = this.#world.model.generate(this.#chat, { maxTokens: 4 + this.#dice.roll(14), ...draft })
    for await (const token of generation) this.#tokens.push(token)
    const wanted = await this.#world.alone(this.#tokens)
    for (let at = from; at < this.#tokens.length; at++) {
      const row = wanted.subarray((at - 1) * VOCABULARY, at * VOCABULARY)
      const behind = Math.max(...row) - (row[this.#tokens[at] as number] as number)
      this.#t.true(
        behind <= 2 * this.#world.apart,
        `${this.#name}: the token at ${at} is ${behind} behind the best, alone`,
      )
    }
  }

  /** A model of floats drafts, which is right most of the time, or what followed before. */
  #draft(): Pick<GenerateOptions, 'draft'> {
    if (!this.#can('drafted', 2)) return {}
    const tokens = 1 + this.#dice.roll(6)
    return { draft: this.#dice.once(3) ? { lookup: tokens } : { model: this.#world.drafts, tokens } }
  }

  async #fork(): Promise<void> {
    const other = new Client(this.#t, this.#world, this.#dice, `${this.#name}'`, {
      chat: this.#chat.fork(),
      tokens: this.#tokens,
    })
    const [, own] = await Promise.allSettled([other.talk(1), this.#run()])
    if (own.status === 'rejected') throw own.reason
  }

  async #restore(): Promise<void> {
    using snapshot = this.#chat.snapshot()
    const before = this.#tokens.length
    await this.#generate()
    this.#chat.restore(snapshot)
    this.#tokens.length = before
  }

  /** Another chat that begins alike, and goes on otherwise. */
  async #find(): Promise<void> {
    const tokens = this.#tokens.slice(0, 1 + this.#dice.roll(this.#tokens.length))
    const chat = this.#world.model.open({ tokens, salt: 'all' })
    const other = new Client(this.#t, this.#world, this.#dice, `${this.#name}, found`, { chat, tokens })
    await other.talk(1)
  }
}

async function modelOf(
  backend: BackendName,
  pages: OnnxCacheOptions,
  capacity: number,
  maxStepTokens: number,
): Promise<OnnxModel> {
  const cache = { capacity, blockSize: BLOCK_SIZE, ...pages }
  return OnnxModel.load(graphFile('onnx'), { backend, threads: 1, maxStepTokens, cache })
}

/** Pages of a format, as they are and rotated before they are quantised. */
function bothPages(format: Format): readonly [OnnxCacheOptions, OnnxCacheOptions] {
  const [formats, isRotated] = [{ keyFormat: format, valueFormat: format }, ['f8e4m3', 'q8', 'q4'].includes(format)]
  return [
    { ...formats, valueHadamard: false },
    { ...formats, hadamard: isRotated, valueHadamard: isRotated },
  ]
}

async function schedules(t: ExecutionContext, backend: BackendName, format: Format): Promise<void> {
  const pages = bothPages(format)
  await using asIs = await modelOf(backend, pages[0], 400, 1000)
  await using rotated = await modelOf(backend, pages[1], 400, 1000)
  const [[most, half], offs] = [APART[format], [] as number[]]
  await using drafts = await modelOf('graph', {}, 400, 100)
  const seen = new Map<string, number>()
  let name = 0
  for (let seed = 1; seed <= CASES && t.passed; seed++) {
    const dice = new Dice(seed)
    const [other, form] = seed % 2 === 0 ? [rotated, pages[1]] : [asIs, pages[0]]
    await using model = await modelOf(backend, form, 60 + dice.roll(60), 5 + dice.roll(20))
    const alone = async (tokens: readonly number[]): Promise<Float32Array> => {
      using sequence = other.open({ salt: `${name++}` })
      const [logits] = (await other.run([{ sequence, tokens }], { logits: 'all' })) as [Float32Array]
      return logits
    }
    const note = (deed: string): void => void seen.set(deed, (seen.get(deed) ?? 0) + 1)
    const world = { model, drafts, apart: most, offs, promised: PROMISED[backend], alone, note }
    const clients = Array.from(
      { length: 2 + dice.roll(4) },
      (_, place) => new Client(t, world, dice, `seed ${seed}, client ${place}`),
    )
    await Promise.all(clients.map(client => client.talk(1 + dice.roll(3))))
    t.is(model.cache.freeCount, model.cache.totalCount, `seed ${seed}: blocks are left`)
    model.cache.checkInvariants()
  }
  offs.sort((one, next) => one - next)
  const [middle, worst] = [offs[offs.length >> 1], offs.at(-1)] as [number, number]
  t.log({ ...Object.fromEntries(seen), compared: offs.length, middle, worst })
  t.true(middle <= half, `half of the logits are off by ${middle}`)
  for (const deed of PROMISED[backend]) t.true((seen.get(deed) ?? 0) > 0, deed)
}

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  for (const format of ['f16', 'bf16', 'f8e4m3', 'q8', 'q4'] satisfies Format[]) {
    onnxTest(
      `${backend}, ${format}: random schedules give what each gets alone`,
      t => schedules(t, backend, format),
      test.serial,
    )
  }
}
