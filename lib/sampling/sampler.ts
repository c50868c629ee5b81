// Sampling: drawing the next token of a generation from logits, and verifying drafted tokens. The addon does the work, on the main thread if it is short and
// otherwise in the background. Drawing changes no sampler, so a draw can be repeated; a token counts only after `push`.
import type { NativeLogits, NativeMatcher, NativeSampler } from '#binding'

import { count } from '../errors/check.js'
import { binding } from '../loading/binding.js'
import { allows, maskOf } from './allowed.js'
import type { Constraint } from './grammar.js'
import type { SamplingOptions, SamplingSettings, TokenLogprobs } from './options.js'

/**
 * Draws the tokens of one generation. Drawing changes nothing: the token at a position depends on the options, the tokens before it and the
 * logits. So it may be drawn again, and other calls are allowed while tokens are drawn in the background. `push` adds the chosen token.
 */
export class Sampler {
  /** @internal */
  readonly native: NativeSampler
  /** @internal The state of the text in its grammar, if there is one. */
  readonly matcher: NativeMatcher | undefined
  readonly #allowed: SamplingOptions['allowed']
  readonly #start: number
  /** The generated tokens, kept only if there is an `allowed` function. */
  readonly #generated: number[]

  private constructor(
    native: NativeSampler,
    matcher: NativeMatcher | undefined,
    allowed: SamplingOptions['allowed'],
    generated: number[],
    start: number,
  ) {
    this.native = native
    this.matcher = matcher
    this.#allowed = allowed
    this.#generated = generated
    this.#start = start
  }

  /** Returns a sampler for the tokens that follow `prompt`, which is all tokens of the sequence so far. O(prompt). */
  static of({ numbers, ids, bias, allowed }: SamplingSettings, prompt: Uint32Array, constraint?: Constraint): Sampler {
    const native = new binding.NativeSampler(numbers, ids, bias, prompt)
    const matcher = constraint?.grammar.matcher(Uint32Array.from(constraint.ends))
    return new Sampler(native, matcher, allowed, [], prompt.length)
  }

  /** The position of the next token: the number of tokens in the prompt and behind it. */
  get position(): number {
    return this.native.position()
  }

  /** Adds generated tokens. */
  push(tokens: readonly number[]): void {
    const ids = Uint32Array.from(tokens)
    this.native.push(ids)
    this.matcher?.push(ids)
    if (this.#allowed !== undefined) for (const token of tokens) this.#generated.push(token)
  }

  /** Removes the generated tokens from a position on. */
  truncate(position: number): void {
    this.native.truncate(position)
    this.matcher?.truncate(position - this.#start)
    this.#generated.length = Math.min(this.#generated.length, position - this.#start)
  }

  /** Returns a copy for another sequence that continues from here. */
  fork(): Sampler {
    return new Sampler(this.native.fork(), this.matcher?.fork(), this.#allowed, [...this.#generated], this.#start)
  }

  /** Returns a copy for a second model that drafts tokens. It draws with random numbers of its own. */
  drafter(): Sampler {
    return new Sampler(this.native.drafter(), this.matcher?.fork(), this.#allowed, [...this.#generated], this.#start)
  }

  /** Starts to compute the grammar's masks behind the tokens so far and behind each drafted one, while the model computes their logits. */
  foresee(drafted: readonly number[]): void {
    this.matcher?.foresee(Uint32Array.from(drafted))
  }

  dispose(): void {
    this.native.dispose()
    this.matcher?.dispose()
  }

  /** @internal The mask of `allowed` for each row; empty if all tokens are allowed. Rows behind a drafted token that is not allowed have no mask, because they are not used. */
  masks(drafted: readonly number[], vocabulary: number): (Uint32Array | undefined)[] {
    const masks: (Uint32Array | undefined)[] = []
    if (this.#allowed === undefined) return masks
    for (let place = 0; place <= drafted.length; place++) {
      const isReached = place === 0 || allows(masks[place - 1], drafted[place - 1] as number)
      if (!isReached) return [...masks, ...drafted.slice(place - 1).map(() => undefined)]
      masks.push(maskOf(this.#allowed([...this.#generated, ...drafted.slice(0, place)]), vocabulary))
    }
    return masks
  }
}

/** A sequence for which a token is drawn. */
export interface RowToDraw {
  readonly sampler: Sampler
  readonly logits: NativeLogits
  /** The row of the next token. The rows of the drafted tokens follow it. */
  readonly row: number
  /** Drafted tokens, from any drafter. */
  readonly drafted?: readonly number[]
  /** The logits from which a second model drew each of them, with a {@link Sampler.drafter}; omitted for drafts that are not random. */
  readonly drafts?: readonly { readonly logits: NativeLogits; readonly row: number }[]
}

/** The result of a draw: the accepted drafted tokens and one more, or the error. */
export type DrawnTokens =
  | {
      readonly tokens: readonly number[]
      readonly logprobs: readonly TokenLogprobs[] | undefined
      /** True if the grammar allows nothing behind the tokens. Without an end token, there may be none. */
      readonly isOver: boolean
      readonly error?: undefined
    }
  | { readonly tokens?: undefined; readonly logprobs?: undefined; readonly isOver?: undefined; readonly error: unknown }

/** Draws that take up to this many nanoseconds run at once: a background task costs about a tenth of that. */
const AT_ONCE = 200_000

/**
 * Draws tokens for each row: at once if that is quick, otherwise in the background. An error in one row does not fail the others, and no
 * sampler changes. An error that `allowed` throws is the error of its row.
 */
export async function drawTokens(rows: readonly RowToDraw[]): Promise<DrawnTokens[]> {
  const draw = new binding.NativeDraw()
  const answers: (DrawnTokens | undefined)[] = rows.map(row => refusalOf(() => add(draw, row)))
  const drawn = draw.cost() <= AT_ONCE ? draw.run() : await draw.start()
  let next = 0
  return answers.map(answer => answer ?? read(drawn[next++] as NativeDrawn))
}

type NativeDraw = InstanceType<typeof binding.NativeDraw>
type NativeDrawn = ReturnType<NativeDraw['run']>[number]

/** The error that `call` throws, as an answer; `undefined` if it throws none. */
function refusalOf(call: () => void): DrawnTokens | undefined {
  try {
    call()
    return undefined
  } catch (error) {
    return { error }
  }
}

/** Adds a row. Checks run first, so that a row is added completely or not at all. */
function add(draw: NativeDraw, { sampler, logits, row, drafted = [], drafts = [] }: RowToDraw): void {
  const masks = sampler.masks(drafted, logits.vocab())
  for (const { logits: theirs, row: place } of drafts) count('row', place, 0, theirs.rows() - 1)
  draw.add(sampler.native, logits, row, drafted.length === 0 ? undefined : Uint32Array.from(drafted))
  for (const { logits: theirs, row: place } of drafts) draw.draft(theirs, place)
  for (const mask of masks) draw.allow(mask)
  if (sampler.matcher !== undefined) draw.constrain(sampler.matcher)
}

function read({ tokens, logprobs, top, isOver, error }: NativeDrawn): DrawnTokens {
  if (error !== undefined) return { error }
  const each = logprobs?.map((logprob, place) => ({
    token: tokens[place] as number,
    logprob,
    top: pairs(top?.[place] ?? []),
  }))
  return { tokens, logprobs: each, isOver }
}

/** Pairs of ids and log-probabilities from an array in which they alternate. */
function pairs(flat: readonly number[]): TokenLogprobs['top'] {
  return Array.from({ length: flat.length / 2 }, (_, place) => ({
    token: flat[2 * place] as number,
    logprob: flat[2 * place + 1] as number,
  }))
}
