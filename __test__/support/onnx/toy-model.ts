import { setImmediate as eventLoop } from 'node:timers/promises'

import { type ModelCacheOptions, type PageFormat, PagedKvCache, type PagedKvCacheOptions } from '../../../index.js'
import type { TensorData } from '../../../lib/border/host-array.js'
import { INTERNAL } from '../../../lib/border/owner.js'
import { binding } from '../../../lib/loading/binding.js'
import type { Backend, ModelStep } from '../../../lib/onnx/backend.js'
import type { Cuts } from '../../../lib/onnx/cuts.js'
import { OnnxModel } from '../../../lib/onnx/model.js'
import type { Encoding } from '../../../lib/onnx/encoding.js'
import type { EmbedSpan } from '../../../lib/onnx/spans.js'
import { LentRun } from '../../../lib/sequences/lent-run.js'
import { StepRun } from '../../../lib/sequences/step-run.js'
import {
  addToken,
  hashesOf,
  newState,
  stateBytes,
  stateOfBytes,
  toyLayers,
  type ToyState,
  type ToyStates,
} from './toy-states.js'

/** The number of tokens in the toy's vocabulary. */
export const VOCABULARY = 16
/** A token that makes every step with it fail. */
export const POISON = 15
/** The elements of a row that are summed. The two before them are its largest and its smallest, so that each page format keeps the row exactly. */
export const SUMMED = 6
const DIM = 2 + SUMMED
/** The largest element of a row: the step between the codes of a format is 1 then. */
const LARGEST: Readonly<Partial<Record<PageFormat, number>>> = { q8: 127 }

/** A seeded random number generator. */
export class Dice {
  #state: number

  constructor(seed: number) {
    this.#state = seed | 0
  }

  /** Returns a whole number from 0 to less than `sides`. */
  roll(sides: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) % sides
  }

  /** Returns true once in `times` calls, on average. */
  once(times: number): boolean {
    return this.roll(times) === 0
  }
}

/** A token's number in the cache: small integers, whose sums are exact, and which every page format has. */
function left(id: number, position: number, place: number): number {
  return ((Math.imul(id + 1, 7919) + Math.imul(position + 1, 104_729 + 31 * place)) % 1009) % 16
}

/** A picture of the toy: rows of numbers that follow from a seed, in place of those of ids. */
export interface Picture {
  readonly start: number
  readonly rows: number
  readonly seed: number
}

/** A number of a row of embeddings that is given, at a position. */
const given = (number: number, position: number, place: number): number => (number + left(0, position, place)) % 16
const pictured = (seed: number, row: number, place: number): number => left(seed, row, place)

/** The tokens that a model says behind others. `total` is the length that decides if these are those of a longer sequence. */
export type Alone = (
  tokens: readonly number[],
  count: number,
  total: number | undefined,
  pictures: readonly Picture[],
  encoded?: Encoding,
) => number[] | Promise<number[]>

/** Pictures as a caller gives them. */
export function embedsOf(pictures: readonly Picture[]): EmbedSpan[] {
  return pictures.map(({ start, rows, seed }) => {
    const data = Float32Array.from({ length: rows * SUMMED }, (_, at) =>
      pictured(seed, Math.floor(at / SUMMED), at % SUMMED),
    )
    return { start, end: start + rows, data, key: `picture ${seed}` }
  })
}

/** The id of all tokens of a picture. */
const PICTURED = 3

/** Pictures in a prompt, whose ids become those of their tokens: few places and few pictures, so that some prompts have the same. */
export function picturesOf(dice: Dice, tokens: number[]): Picture[] {
  const pictures: Picture[] = []
  for (let at = dice.roll(3) * 3; dice.once(2); at += dice.roll(4)) {
    const picture = { start: at, rows: 1 + dice.roll(2) * 5, seed: 1 + dice.roll(2) }
    at += picture.rows
    if (at > tokens.length) break
    tokens.fill(PICTURED, picture.start, at)
    pictures.push(picture)
  }
  return pictures
}

/** Returns the next token: a function of all tokens before it and their positions. */
function following(sums: readonly number[]): number {
  return sums.reduce((hash, sum) => Math.imul(hash ^ sum, 0x01000193) >>> 0, 0x811c9dc5) % (VOCABULARY - 1)
}

/** The same, or the token after it at about one position in `slip`. */
function slipping(sums: readonly number[], slip: number): number {
  return (following(sums) + ((sums[0] as number) % slip === 0 ? 1 : 0)) % (VOCABULARY - 1)
}

/** The numbers that the next token follows from: the sums of attention, if there is any, and the hashes of states. */
const behind = (sums: readonly number[], state: ToyState | undefined, states: ToyStates | undefined): number[] =>
  state === undefined ? [...sums] : [...(states === 'alone' ? [] : sums), ...hashesOf(state)]

/** The number that long sequences add to their positions. */
const LONG_FROM = 100_000

/** The properties of a toy that its answers depend on. */
export interface ToyForm {
  /** About one token in so many differs. */
  readonly slip?: number | undefined
  /** The number of last tokens that the next one depends on. */
  readonly window?: number | undefined
  /** The number of tokens beyond which every token counts with other numbers. */
  readonly threshold?: number | undefined
  /** The layers that keep states. */
  readonly states?: ToyStates | undefined
}

/** The answer of a toy without a cache. `total` is the length that decides if it is that of a longer sequence. */
export type ToyAlone = (
  tokens: readonly number[],
  count: number,
  total?: number,
  pictures?: readonly Picture[],
) => number[]

/** Makes the answers of a toy without a cache. */
export function aloneOf({ slip = Infinity, window = Infinity, threshold = Infinity, states }: ToyForm): ToyAlone {
  const from = (end: number): number => Math.max(0, end - window)
  return (tokens, count, total = 0, pictures = []) => {
    const all = [...tokens]
    const numberAt = (index: number, id: number, position: number, place: number): number => {
      const picture = pictures.find(({ start, rows }) => index >= start && index < start + rows)
      if (picture === undefined) return left(id, position, place)
      return given(pictured(picture.seed, index - picture.start, place), position, place)
    }
    const places = Array.from({ length: SUMMED }, (_, place) => place)
    const numbersAt = (index: number, first: number): number[] =>
      places.map(place => numberAt(index, all[index] as number, first + index, place))
    const start = (): number => (Math.max(all.length, total) > threshold ? LONG_FROM : 0)
    const sumAll = (): number[] =>
      places.map(place =>
        all.reduce(
          (sum, id, position) =>
            position < from(all.length) ? sum : sum + numberAt(position, id, start() + position, place),
          0,
        ),
      )
    const stateAll = (): ToyState | undefined => {
      if (states === undefined) return undefined
      const state = newState()
      for (const index of all.keys()) addToken(state, numbersAt(index, start()))
      return state
    }
    let [sums, state] = [sumAll(), stateAll()]
    for (let step = 0; step < count; step++) {
      const next = slipping(behind(sums, state, states), slip)
      const [gone, first] = [from(all.length + 1) - 1, start()]
      for (const place of places) {
        sums[place] =
          (sums[place] as number) +
          left(next, first + all.length, place) -
          (gone < 0 || gone < from(all.length) ? 0 : numberAt(gone, all[gone] as number, first + gone, place))
      }
      all.push(next)
      if (state !== undefined) addToken(state, numbersAt(all.length - 1, first))
      if (start() !== first) [sums, state] = [sumAll(), stateAll()]
    }
    return all.slice(tokens.length)
  }
}

/** As {@link aloneOf}, without states. */
export function alone(
  tokens: readonly number[],
  count: number,
  slip: number = Infinity,
  window: number = Infinity,
  threshold: number = Infinity,
  total: number = 0,
  pictures: readonly Picture[] = [],
): number[] {
  return aloneOf({ slip, window, threshold })(tokens, count, total, pictures)
}

/** The bytes of the states that a toy keeps after these tokens, without pictures; `isLong` if they are those of a long sequence. */
export function statesAfter(tokens: readonly number[], isLong = false): Uint8Array {
  const state = newState()
  for (const [index, id] of tokens.entries())
    addToken(
      state,
      Array.from({ length: SUMMED }, (_, place) => left(id, (isLong ? LONG_FROM : 0) + index, place)),
    )
  return stateBytes(state)
}

const rowsOf = (data: Float32Array) => ({ data, shape: [data.length / DIM, 1, DIM] })

/** A model that computes its next token from the cache's content, so a wrong block shows up. Steps take several turns of the event loop. */
export class ToyBackend implements Backend {
  readonly name = 'plain'
  readonly #dice: Dice
  readonly #poison: number
  readonly #slip: number
  readonly #vocabulary: number
  readonly #window: number
  readonly #largest: number
  readonly #states: ToyStates | undefined
  /** The tokens before those of each sequence of the step. */
  #before: readonly number[] = []
  steps = 0
  tokens = 0
  isComputing = false

  /** With `slip`, about one token in so many is wrong; `window` and `pages` are those of the cache. */
  constructor(
    dice: Dice,
    {
      poison = POISON,
      slip = Infinity,
      vocabulary = VOCABULARY,
      window = Infinity,
      pages = 'f32',
      states,
    }: {
      readonly poison?: number
      readonly slip?: number
      readonly vocabulary?: number
      readonly window?: number
      readonly pages?: PageFormat
      readonly states?: ToyStates | undefined
    } = {},
  ) {
    this.#dice = dice
    this.#poison = poison
    this.#slip = slip
    this.#vocabulary = vocabulary
    this.#window = window
    this.#largest = LARGEST[pages] ?? 15
    this.#states = states
  }

  async run({
    step,
    sequences,
    offsets,
    ids,
    positions,
    rows,
    embeds,
  }: ModelStep): Promise<InstanceType<typeof binding.NativeLogits>> {
    if (this.isComputing) throw new Error('two steps at once')
    this.isComputing = true
    try {
      this.steps += 1
      this.tokens += ids.length
      this.#before = sequences.map(({ before }) => before.length)
      for (const [place, { before }] of sequences.entries()) {
        if ((positions[offsets[place] as number] as number) % LONG_FROM !== before.length)
          throw new Error('the tokens before a step are as many as its first position')
      }
      using run = StepRun.of(step)
      await this.#turns()
      const values = new Float32Array(ids.length * DIM)
      for (const [token, id] of ids.entries()) {
        const [row, position] = [embeds?.places.indexOf(token) ?? -1, positions[token] as number]
        values[token * DIM] = this.#largest
        for (let place = 0; place < SUMMED; place++) {
          const number = embeds?.data[row * SUMMED + place] as number
          values[token * DIM + 2 + place] = row < 0 ? left(id, position, place) : given(number, position, place)
        }
      }
      using lent = LentRun.taken(run.share())
      const attended = this.#attend(lent, values)
      const states = this.#computeStates(lent, offsets, values)
      lent.dispose()
      await this.#turns()
      if (ids.includes(this.#poison)) throw new Error('poison')
      const logits = new Float32Array(rows.length * this.#vocabulary)
      for (const [row, token] of rows.entries()) {
        // With queries of zeros, all keys have the same weight: the output is the mean.
        const count = Math.min(((positions[token] as number) % LONG_FROM) + 1, this.#window)
        const sums = Array.from({ length: SUMMED }, (_, place) =>
          Math.round((attended[token * DIM + 2 + place] ?? 0) * count),
        )
        logits[row * this.#vocabulary + slipping(behind(sums, states[token], this.#states), this.#slip)] = 1
      }
      run.end()
      return new binding.NativeLogits(logits, 'f32', rows.length, this.#vocabulary)
    } finally {
      this.isComputing = false
    }
  }

  dispose(): Promise<void> {
    return Promise.resolve()
  }

  /** The attention of each token to those before it. */
  #attend(lent: LentRun, values: Float32Array): TensorData {
    if (this.#states === 'alone') return new Float32Array(0)
    const none = new Float32Array(values.length)
    return lent.attend(this.#states === 'beside' ? 1 : 0, rowsOf(none), rowsOf(none), rowsOf(values))
  }

  /** The state after each token. Now and then, others are written first. */
  #computeStates(lent: LentRun, offsets: Int32Array, values: Float32Array): ToyState[] {
    const after: ToyState[] = []
    if (this.#states === undefined) return after
    for (let place = 0; place < offsets.length - 1; place++) {
      const [start, end] = [offsets[place] as number, offsets[place + 1] as number]
      let state = stateOfBytes(lent.readStates(place))
      if (state[0] !== this.#before[place])
        throw new Error(`the state of ${state[0]} tokens, expected that of ${this.#before[place]}`)
      for (let token = start; token < end; token++) {
        state = state.slice()
        addToken(state, values.subarray(token * DIM + 2, (token + 1) * DIM))
        after.push(state)
      }
      if (this.#dice.once(8)) lent.writeStates(place, stateBytes(newState()).fill(7))
      lent.writeStates(place, stateBytes(state))
    }
    return after
  }

  async #turns(): Promise<void> {
    for (let turn = this.#dice.roll(3); turn > 0; turn--) await (this.#dice.once(10) ? eventLoop() : Promise.resolve())
  }
}

/** A toy model over a pool with so many blocks. */
export function toyModel(
  backend: ToyBackend,
  {
    capacity,
    blockSize = 4,
    stepTokens = 16,
    sequences = 32,
    window,
    vocabulary = VOCABULARY,
    pages = 'f32',
    threshold,
    width,
    cuts,
    states,
    slots = capacity,
    contextLength,
    ends,
    more = {},
  }: {
    capacity: number
    blockSize?: number
    stepTokens?: number
    sequences?: number
    window?: number
    vocabulary?: number
    pages?: PageFormat
    /** The maximum number of tokens of a short sequence. */
    threshold?: number | undefined
    /** Elements of a row of embeddings, for a model that takes pictures. */
    width?: number | undefined
    /** The ends of steps in prompts, as if layers kept states. */
    cuts?: Cuts | undefined
    /** The layers that keep states, and the number of slots for these. */
    states?: ToyStates | undefined
    slots?: number | undefined
    /** The maximum number of tokens of a sequence, and the ids that end an answer. */
    contextLength?: number | undefined
    ends?: readonly number[] | undefined
    /** More options of the cache. */
    more?: Partial<ModelCacheOptions>
  },
): OnnxModel {
  const sizes = { numKvHeads: 1, headDim: DIM }
  const layer =
    window === undefined ? ({ kind: 'full', ...sizes } as const) : ({ kind: 'sliding', window, ...sizes } as const)
  const formats = { keyFormat: pages, valueFormat: pages }
  const cache = new PagedKvCache({
    model: { layers: states === undefined ? [layer] : toyLayers(layer, states).layers },
    capacity: states === undefined ? capacity : states === 'alone' ? [slots] : [capacity, slots],
    blockSize,
    ...(pages === 'f32' ? {} : formats),
    ...more,
  } satisfies PagedKvCacheOptions)
  const rope = threshold === undefined ? undefined : { threshold, offset: LONG_FROM }
  return new OnnxModel(INTERNAL, {
    cache,
    backend,
    refusals: [],
    vocabulary,
    limits: { stepTokens, sequences },
    cuts,
    rope,
    width,
    contextLength,
    ends,
  })
}
