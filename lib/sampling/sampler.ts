import type { NativeLogits, NativeSampler } from '#binding'

import { count } from '../border/check.js'
import { binding } from '../loading/binding.js'
import { allows, maskOf } from './allowed.js'
import type { SamplingOptions, SamplingSettings, TokenLogprobs } from './options.js'

/**
 * Draws tokens of one generation. To draw changes nothing: the token at a position depends on the options, the tokens before it and the
 * logits, so it may be drawn again, and calls go on while tokens are drawn in the background. `push` says what it became.
 */
export class Sampler {
  /** @internal */
  readonly native: NativeSampler
  readonly #allowed: SamplingOptions['allowed']
  readonly #start: number
  /** Tokens that were generated, where somebody asks. */
  readonly #generated: number[]

  private constructor(native: NativeSampler, allowed: SamplingOptions['allowed'], generated: number[], start: number) {
    this.native = native
    this.#allowed = allowed
    this.#generated = generated
    this.#start = start
  }

  /** A sampler for what follows `prompt`: all tokens of the sequence so far. O(prompt). */
  static of({ numbers, ids, bias, allowed }: SamplingSettings, prompt: Uint32Array): Sampler {
    return new Sampler(new binding.NativeSampler(numbers, ids, bias, prompt), allowed, [], prompt.length)
  }

  /** The position of the next token: tokens of the prompt, and behind it. */
  get position(): number {
    return this.native.position()
  }

  /** Adds tokens that were generated. */
  push(tokens: readonly number[]): void {
    this.native.push(Uint32Array.from(tokens))
    if (this.#allowed !== undefined) for (const token of tokens) this.#generated.push(token)
  }

  /** Takes back what was generated from a position on. */
  truncate(position: number): void {
    this.native.truncate(position)
    this.#generated.length = Math.min(this.#generated.length, position - this.#start)
  }

  /** The same for another sequence that goes on from here. */
  fork(): Sampler {
    return new Sampler(this.native.fork(), this.#allowed, [...this.#generated], this.#start)
  }

  /** The same for a second model, whose tokens are drafts: it draws with random numbers of its own. */
  drafter(): Sampler {
    return new Sampler(this.native.drafter(), this.#allowed, [...this.#generated], this.#start)
  }

  dispose(): void {
    this.native.dispose()
  }

  /** @internal What is allowed in each row; none where everything is. Behind a drafted token that is not allowed nobody asks. */
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

/** One sequence that a token is drawn for. */
export interface RowToDraw {
  readonly sampler: Sampler
  readonly logits: NativeLogits
  /** The row of the next token; behind it lies one for each drafted token. */
  readonly row: number
  /** Tokens that were drafted, by whomever. */
  readonly drafted?: readonly number[]
  /** Where a second model drew each of them, with a {@link Sampler.drafter}; left out for drafts that do not depend on chance. */
  readonly drafts?: readonly { readonly logits: NativeLogits; readonly row: number }[]
}

/** What was drawn: the drafted tokens that stay, and one more; or why there is nothing. */
export type DrawnTokens =
  | { readonly tokens: readonly number[]; readonly logprobs: readonly TokenLogprobs[] | undefined; readonly error?: undefined }
  | { readonly tokens?: undefined; readonly logprobs?: undefined; readonly error: unknown }

/** Nanoseconds up to which tokens are drawn at once: a task costs about a tenth of that. */
const AT_ONCE = 200_000

/**
 * Draws tokens for each row: at once where that takes no time, else in the background. A row that is refused does not fail the others;
 * no sampler changes. What `allowed` throws is the error of its row.
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

/** What `call` throws, as an answer. */
function refusalOf(call: () => void): DrawnTokens | undefined {
  try {
    call()
    return undefined
  } catch (error) {
    return { error }
  }
}

/** Adds a row. What can be refused comes first, so that a row is added whole or not at all. */
function add(draw: NativeDraw, { sampler, logits, row, drafted = [], drafts = [] }: RowToDraw): void {
  const masks = sampler.masks(drafted, logits.vocab())
  for (const { logits: theirs, row: place } of drafts) count('row', place, 0, theirs.rows() - 1)
  draw.add(sampler.native, logits, row, drafted.length === 0 ? undefined : Uint32Array.from(drafted))
  for (const { logits: theirs, row: place } of drafts) draw.draft(theirs, place)
  for (const mask of masks) draw.allow(mask)
}

function read({ tokens, logprobs, top, error }: NativeDrawn): DrawnTokens {
  if (error !== undefined) return { error }
  const each = logprobs?.map((logprob, place) => ({ token: tokens[place] as number, logprob, top: pairs(top?.[place] ?? []) }))
  return { tokens, logprobs: each }
}

/** Ids and log-probabilities, which come in turn. */
function pairs(flat: readonly number[]): TokenLogprobs['top'] {
  return Array.from({ length: flat.length / 2 }, (_, place) => ({ token: flat[2 * place] as number, logprob: flat[2 * place + 1] as number }))
}
