// The usage of a generation: which tokens of its prompt were computed for it, and what its steps computed besides.
//
//     prompt    [ cached | computed | cached | computed ]      preempted in between: then the cache had a longer prefix
//
// A step computes neighbouring tokens, so the computed part is a few intervals. Counting a step is O(intervals), and O(1) behind the prompt.

/** The work of a generation, which `generation.usage` returns. */
export interface Usage {
  /** Tokens of the prompt: all tokens of the sequence when the generation started, and those of the option `tokens`. */
  readonly promptTokens: number
  /**
   * Tokens of the prompt that were not computed for this generation. They were computed before in its sequence, or found in the prefix cache or in a tier.
   * The other tokens of the prompt were computed, at least once.
   */
  readonly cachedTokens: number
  /** Tokens that steps computed for this generation: of the prompt, of the answer and of drafts, including tokens that were computed again after a preemption. */
  readonly computedTokens: number
  /** Tokens that the generation has returned. */
  readonly generatedTokens: number
  /** Drafted tokens that steps have verified. */
  readonly draftedTokens: number
  /** Drafted tokens that became part of the answer. */
  readonly acceptedTokens: number
  /** Milliseconds from the first `next()` to the first token; `undefined` before that token. */
  readonly firstTokenMs: number | undefined
  /**
   * Tokens behind the first one, per second from then on: `undefined` before two tokens were generated. A reader that is slower than the model slows the model down
   * to its own speed.
   */
  readonly tokensPerSecond: number | undefined
}

/** @internal The usage of a generation that has not started. */
export const NOTHING_USED: Usage = Object.freeze({
  promptTokens: 0,
  cachedTokens: 0,
  computedTokens: 0,
  generatedTokens: 0,
  draftedTokens: 0,
  acceptedTokens: 0,
  firstTokenMs: undefined,
  tokensPerSecond: undefined,
})

/** Positions of a prompt, from `from` to below `to`. */
interface Interval {
  readonly from: number
  readonly to: number
}

/** @internal Counts what a generation uses. Times are those of `performance.now()`. */
export class Account {
  readonly #prompt: number
  readonly #started: number
  /** The end of the longest part of the prompt that was in the cache at once. */
  #reached: number
  /** The computed part of the prompt, in no particular order. No two intervals touch. */
  #computed: readonly Interval[] = []
  #tokens = 0
  #drafted = 0
  #accepted = 0
  #drawn = 0
  #first = 0
  #last = 0

  /** `held` is the number of tokens of the prompt that the sequence has computed before. */
  constructor(prompt: number, held: number, started: number) {
    this.#prompt = prompt
    this.#reached = Math.min(held, prompt)
    this.#started = started
  }

  /** Counts a step that has computed `tokens` tokens from a position on, with `drafted` drafted tokens behind them. */
  step(from: number, tokens: number, drafted: number): void {
    this.#tokens += tokens + drafted
    this.#drafted += drafted
    const to = Math.min(from + tokens, this.#prompt)
    this.#reached = Math.max(this.#reached, to)
    if (from < to) this.#computed = joined(this.#computed, { from, to })
  }

  /** Counts tokens that were drawn at once, and the drafted ones among them. */
  draw(tokens: number, accepted: number, now: number): void {
    if (tokens === 0) return
    if (this.#drawn === 0) this.#first = now
    this.#drawn += tokens
    this.#accepted += accepted
    this.#last = now
  }

  /** The usage so far. `length` is the number of tokens of the prompt and of those that were returned. */
  usage(length: number): Usage {
    const computed = this.#computed.reduce((sum, { from, to }) => sum + to - from, 0)
    const elapsed = this.#last - this.#first
    return Object.freeze({
      promptTokens: this.#prompt,
      cachedTokens: this.#reached - computed,
      computedTokens: this.#tokens,
      generatedTokens: length - this.#prompt,
      draftedTokens: this.#drafted,
      acceptedTokens: this.#accepted,
      firstTokenMs: this.#drawn === 0 ? undefined : this.#first - this.#started,
      tokensPerSecond: elapsed > 0 ? ((this.#drawn - 1) * 1000) / elapsed : undefined,
    })
  }
}

/** Adds an interval, and joins those that it touches. */
function joined(intervals: readonly Interval[], { from, to }: Interval): Interval[] {
  const apart = intervals.filter(other => other.to < from || other.from > to)
  const touching = intervals.filter(other => !apart.includes(other))
  return [
    ...apart,
    {
      from: Math.min(from, ...touching.map(other => other.from)),
      to: Math.max(to, ...touching.map(other => other.to)),
    },
  ]
}
