// Images in a prompt: spans of tokens whose rows of embeddings the caller gives, in place of the embeddings of their ids. A span belongs to its positions for
// as long as its sequence exists, so its tokens can be computed again at any time, and its ids cannot become others.
//
//     tokens      you  see  <image> <image> <image> <image>  what  is
//     span                  start ................... end
//     positions   0    1    2 + the place in time, height and width    2 + max(grid) ..      only if the model has three rows of positions
//
// The key of a span is an extra of its tokens: only prompts with the same image find the blocks of these tokens. A second extra marks that embeddings are
// given, and their grid: it keeps these blocks apart from blocks of the same ids without embeddings.
import { count, isArray, known, list, type Names, optional, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { type PromptExtra, type PromptOptions, wellFormed } from '../sequences/prompt.js'

/** Rows of embeddings in a prompt, in place of those of its ids: an image. */
export interface EmbedSpan {
  /** The position of the first row. */
  readonly start: number
  /** The rows, `[rows, width]`, as the model's encoder of images returns them: one for each token of the image. */
  readonly data: Float32Array
  /** Identifies the rows: a hash of the image. A string stands for its UTF-8 bytes. Two images with one key count as the same. */
  readonly key: string | Uint8Array
  /**
   * The position behind the last row. By default the rows have to end where the tokens with the id at `start` end, or where the next span starts: rows that do not
   * have the width of the model are refused. With it, they replace any ids up to there.
   */
  readonly end?: number
  /**
   * The numbers of rows in time, height and width, after merging: `data` has their product. Only for models with three rows of positions (M-RoPE), such as
   * Qwen2-VL. Without it, the rows have the positions of text.
   */
  readonly grid?: readonly [time: number, height: number, width: number]
}

/** @internal The embeddings that a model takes. */
export interface EmbeddingForm {
  /** Elements of a row. */
  readonly width: number
  /** True if the model has three rows of positions. */
  readonly hasGrids: boolean
}

/** @internal A span, read. */
export interface Span extends Omit<EmbedSpan, 'key'> {
  /** The position behind the last row. */
  readonly end: number
  readonly key: Uint8Array
  /** The name of its option, if its end has to follow from the ids. */
  readonly unended: string | undefined
}

const SPAN: Names<EmbedSpan> = { start: 0, data: 0, key: 0, end: 0, grid: 0 }
const utf8 = new TextEncoder()

/** @internal Reads spans, as copies: the caller's arrays may change before they are used. In the order of their positions. */
export function readEmbeds(value: unknown, form: EmbeddingForm | undefined): Span[] {
  if (value === undefined) return []
  if (form === undefined) throw invalid('embeds', value, 'no value: the model takes token ids only')
  if (!isArray(value)) throw invalid('embeds', value, 'an array of { start, data, key }')
  const spans = list('embeds', value, (argument, entry) => readSpan(argument, entry, form))
  const sorted = spans.toSorted((one, other) => one.start - other.start)
  for (const [place, { start }] of sorted.entries()) {
    const before = sorted[place - 1]
    if (before === undefined || before.end <= start) continue
    const argument = `embeds[${spans.indexOf(sorted[place] as Span)}].start`
    throw invalid(argument, start, `at least ${before.end}, behind the span that starts at ${before.start}`)
  }
  return sorted
}

function readSpan(argument: string, value: unknown, { width, hasGrids }: EmbeddingForm): Span {
  const given = known<EmbedSpan>(argument, value, SPAN)
  const start = count(`${argument}.start`, given.start)
  const data = typedArray<Float32Array>(`${argument}.data`, given.data, ['Float32Array']).slice()
  const rows = data.length / width
  if (!Number.isInteger(rows) || rows === 0)
    throw invalid(`${argument}.data.length`, data.length, `rows of ${width} numbers, at least one`)
  const key = readKey(`${argument}.key`, given.key)
  const end = optional((name, position) => count(name, position, start + 1), `${argument}.end`, given.end)
  if (end !== undefined && end !== start + rows)
    throw invalid(`${argument}.data.length`, data.length, rowsOf(start, end, width))
  const unended = end === undefined ? argument : undefined
  const span = { start, end: count(`${argument}.start`, start + rows), data, key, unended }
  if (given.grid === undefined) return span
  if (!hasGrids) throw invalid(`${argument}.grid`, given.grid, 'no value: the model has one row of positions')
  const sizes = isArray(given.grid) ? list(`${argument}.grid`, given.grid, (name, size) => count(name, size, 1)) : []
  const [time = 0, height = 0, wide = 0] = sizes
  if (sizes.length !== 3 || time * height * wide !== rows)
    throw invalid(`${argument}.grid`, given.grid, `[time, height, width], with ${rows} as their product`)
  return { ...span, grid: [time, height, wide] }
}

/** The rows that tokens need. */
function rowsOf(start: number, end: number, width: number): string {
  const rows = end - start
  return `${rows * width}, ${rows} ${rows === 1 ? 'row' : 'rows'} of ${width} numbers for the tokens ${start} to ${end}`
}

function readKey(argument: string, value: unknown): Uint8Array {
  const key =
    typeof value === 'string'
      ? utf8.encode(wellFormed(argument, value))
      : value === undefined
        ? new Uint8Array(0)
        : typedArray<Uint8Array>(argument, value, ['Uint8Array']).slice()
  if (key.length > 0) return key
  throw invalid(argument, value, 'a hash of the image, a string or a Uint8Array with at least one byte')
}

/** A span with the ids of its tokens, and its positions. */
interface Placed extends Span {
  readonly ids: Uint32Array
  /** The number of its first position, and that behind all of its positions. */
  readonly first: number
  readonly next: number
}

/** @internal The spans of a sequence and of its forks. */
export class Spans {
  /** The position behind the last span. */
  readonly end: number
  readonly #placed: readonly Placed[]

  /** `tokens` are those of the prompt. Refused if a span is beyond them. */
  constructor(spans: readonly Span[] = [], tokens: Uint32Array = new Uint32Array(0)) {
    let ahead = 0
    this.#placed = spans.map(span => {
      const { start, end, grid } = span
      if (end > tokens.length)
        throw invalid('embeds', `rows up to ${end}`, `rows within the ${tokens.length} tokens of the prompt`)
      const first = start + ahead
      const next = first + (grid === undefined ? end - start : Math.max(...grid))
      ahead = next - end
      return { ...span, ids: tokens.slice(start, end), first, next }
    })
    this.end = spans.at(-1)?.end ?? 0
  }

  /** The spans of a prompt. Also refused if the rows of one do not end with the tokens of its image. */
  static ofPrompt(spans: readonly Span[], tokens: Uint32Array): Spans {
    const made = new Spans(spans, tokens)
    for (const [place, { start, end, data, unended }] of spans.entries()) {
      if (unended === undefined) continue
      const most = spans[place + 1]?.start ?? tokens.length
      const id = tokens[start]
      let last = start + 1
      while (last < most && tokens[last] === id) last += 1
      if (last === end) continue
      const expected = rowsOf(start, last, data.length / (end - start))
      throw invalid(
        `${unended}.data.length`,
        data.length,
        `${expected}, which have the id ${id}; pass end if the rows end elsewhere`,
      )
    }
    return made
  }

  /** The options under which blocks with the spans are found. */
  named(prompt: PromptOptions): PromptOptions {
    return namedBy(this.#placed, prompt)
  }

  /** Refuses ids that are not those of a span at their positions, from `first` on. */
  check(argument: string, first: number, ids: Uint32Array): void {
    for (const { start, end, ids: own } of this.#placed) {
      for (let at = Math.max(start, first); at < Math.min(end, first + ids.length); at++) {
        if (ids[at - first] === own[at - start]) continue
        const expected = `${own[at - start]}, as its image at ${start} to ${end} has: open another sequence for other tokens`
        throw invalid(`${argument}[${at - first}]`, ids[at - first], expected)
      }
    }
  }

  /** Refuses to generate behind so many tokens if some of a span are missing. */
  checkWhole(length: number): void {
    if (length >= this.end) return
    const expected = `${this.end}, the end of its last image: resume it with the whole prompt, or open another sequence`
    throw invalid('sequence.tokens.length', length, expected)
  }

  /** Writes the positions of `count` tokens from `from` on: a row of `stride` numbers, or three. */
  place(to: Int32Array, { at, from, count: tokens, offset }: Placing, stride: number, rows: number): void {
    let index = 0
    for (let token = 0; token < tokens; token++) {
      const position = from + token
      while (index < this.#placed.length && (this.#placed[index] as Placed).end <= position) index += 1
      const inside = this.#placed[index]
      const before = this.#placed[index - 1]
      const ahead = before === undefined ? 0 : before.next - before.end
      const isGrid = rows > 1 && inside?.grid !== undefined && position >= inside.start
      for (let row = 0; row < rows; row++) {
        const number = isGrid ? gridAt(inside as Placed, position, row) : position + (rows > 1 ? ahead : 0)
        to[row * stride + at + token] = offset + number
      }
    }
  }

  /** Collects the rows of the tokens from `from` to `from + count`; the first of these is at `at` in the step. */
  collect({ at, from, count: tokens }: Omit<Placing, 'offset'>, to: StepRows): void {
    for (const { start, end, data } of this.#placed) {
      const [first, last] = [Math.max(start, from), Math.min(end, from + tokens)]
      if (first >= last) continue
      const width = data.length / (end - start)
      for (let position = first; position < last; position++) to.places.push(at + position - from)
      to.rows.push(data.subarray((first - start) * width, (last - start) * width))
    }
  }
}

/** Tokens of one sequence in a step: their place in it, their first position, their number, and the number of position 0. */
interface Placing {
  readonly at: number
  readonly from: number
  readonly count: number
  readonly offset: number
}

/** @internal Rows of a step that are given: the places of their tokens, and the rows in pieces. */
export interface StepRows {
  readonly places: number[]
  readonly rows: Float32Array[]
}

/** @internal Rows of a step in one array. */
export interface StepEmbeds {
  /** The tokens, by their places in the step. */
  readonly places: Int32Array
  /** Their rows, one after the other. */
  readonly data: Float32Array
}

/** @internal Joins the rows of a step; `undefined` if none is given. */
export function joinedRows({ places, rows }: StepRows): StepEmbeds | undefined {
  if (places.length === 0) return undefined
  const data = new Float32Array(rows.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const row of rows) {
    data.set(row, at)
    at += row.length
  }
  return { places: Int32Array.from(places), data }
}

/** @internal The options under which blocks with these spans are found. */
export function namedBy(spans: readonly Span[], prompt: PromptOptions): PromptOptions {
  if (spans.length === 0) return prompt
  const extras = spans.flatMap(({ start, end, key, grid }): PromptExtra[] => [
    { start, end, key },
    { start, end, key: utf8.encode(`kvtide.embeds${grid === undefined ? '' : `:${grid.join()}`}`) },
  ])
  return { ...prompt, extra: [...(prompt.extra ?? []), ...extras] }
}

/** The place of a row in the time, the height or the width of its grid. */
function gridAt({ start, first, grid }: Placed, position: number, row: number): number {
  const [, height, width] = grid as readonly [number, number, number]
  const place = position - start
  const at = row === 0 ? place / (height * width) : row === 1 ? (place / width) % height : place % width
  return first + Math.floor(at)
}
