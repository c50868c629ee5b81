import type { NativeLogits } from '#binding'

import { isKvTideError } from '../border/errors.js'
import { PromptLookup } from '../sampling/prompt-lookup.js'
import type { RowToDraw, Sampler } from '../sampling/sampler.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { Scheduler } from './scheduler.js'
import { openSequence, SequenceState } from './sequence.js'
import { type Drafted, NOTHING_DRAFTED, type Task } from './task.js'

/**
 * Who drafts the tokens of one generation: the text so far, or a second model. A step of the first model judges them all at once.
 *
 * ```text
 * text so far    push -> drafted
 * second model   push -> a task of the second model's scheduler, while the generation rests -> drafted
 * ```
 * A second model's task shares its steps with whatever else that model computes, drafts of other generations too. Where it has no room there,
 * nothing is drafted, and nobody waits: two models that draft for each other never stand still.
 */
export interface Drafter {
  /** The most tokens at once. */
  readonly most: number
  /** Whether it is drafting: the generation rests as long. */
  readonly isBusy: boolean
  /** Refused where drafting has failed. */
  check(): void
  /** What was drafted behind the tokens that were pushed, at most so many. */
  drafted(most: number): Drafted
  /** Takes tokens that were generated; at most `next` will be wanted behind them. */
  push(tokens: readonly number[], next: number): void
  dispose(): void
}

/** @internal Drafts from the text so far. */
export class LookupDrafter implements Drafter {
  readonly most: number
  readonly isBusy = false
  readonly #lookup = new PromptLookup()

  constructor(most: number, prompt: Uint32Array) {
    this.most = most
    this.#lookup.push(prompt)
  }

  check(): void {}

  drafted(most: number): Drafted {
    return { tokens: this.#lookup.draft(most), drafts: [] }
  }

  push(tokens: readonly number[]): void {
    this.#lookup.push(tokens)
  }

  dispose(): void {
    this.#lookup.dispose()
  }
}

/** @internal A second model: where it computes, and with which cache. */
export interface DraftModel {
  readonly scheduler: Scheduler
  readonly shared: SharedCache
}

/** @internal How a second model drafts. */
export interface ModelDrafterOptions {
  readonly model: DraftModel
  readonly most: number
  /** A sampler of the generation, for itself: it is disposed of here. */
  readonly sampler: Sampler
  /** Whether it takes the most probable token: then nobody asks where a draft was drawn from. */
  readonly isGreedy: boolean
  /** How many tokens the first model knows. */
  readonly vocabulary: number | undefined
  /** Something was drafted, or has failed. */
  readonly changed: () => void
}

/** @internal Drafts of a second model, which has a sequence of its own with the same tokens. */
export class ModelDrafter implements Drafter {
  readonly most: number
  readonly #options: ModelDrafterOptions
  /** The tokens of the first model's sequence. */
  readonly #of: SequenceState
  /** Opened with the first draft. */
  #state: SequenceState | undefined
  #task: DraftTask | undefined
  /** How many tokens the two had in common when it last drafted. */
  #common = 0
  #position: number
  #ready: Drafted = NOTHING_DRAFTED
  #failure: { readonly cause: unknown } | undefined
  #isEnded = false

  constructor(of: SequenceState, options: ModelDrafterOptions) {
    this.most = options.most
    this.#of = of
    this.#options = options
    this.#position = of.log.length
  }

  get isBusy(): boolean {
    return this.#task !== undefined
  }

  check(): void {
    if (this.#failure !== undefined) throw this.#failure.cause
  }

  drafted(most: number): Drafted {
    const { tokens, drafts } = this.#ready
    return { tokens: tokens.slice(0, most), drafts: drafts.slice(0, most) }
  }

  push(tokens: readonly number[], next: number): void {
    const { sampler, model: { scheduler, shared } } = this.#options
    sampler.truncate(this.#position)
    sampler.push(tokens)
    this.#position += tokens.length
    this.#forget()
    const most = Math.min(this.most, next)
    if (most <= 0) return
    const { log, prompt } = this.#of
    this.#state ??= SequenceState.of(shared, 'draft', openSequence(shared, log.view(), { prompt, vocabulary: undefined }))
    const own = this.#state
    let common = Math.min(this.#common, own.log.length)
    const [theirs, ours] = [log.view(), own.log.view()]
    while (common < ours.length && theirs[common] === ours[common]) common += 1
    this.#task = scheduler.add(own, arrival => {
      own.cut(common)
      own.log.push(theirs.subarray(common))
      return new DraftTask(own, arrival, most, { ...this.#options, left: (task, error) => this.#left(task, error) })
    })
    this.#common = log.length
  }

  dispose(): void {
    this.#isEnded = true
    if (this.#task === undefined) return this.#end()
    this.#task.end()
    this.#options.model.scheduler.wake()
  }

  #left({ made }: DraftTask, error: unknown): void {
    this.#task = undefined
    this.#ready = made
    if (this.#isEnded) return this.#end()
    if (error !== undefined && !isPassing(error)) this.#failure = { cause: error }
    this.#options.changed()
  }

  #end(): void {
    this.#state?.sequence.dispose()
    this.#options.sampler.dispose()
    this.#forget()
  }

  #forget(): void {
    for (const { logits } of this.#ready.drafts) logits.dispose()
    this.#ready = NOTHING_DRAFTED
  }
}

/** Whether a second model may draft again behind an error: it had no room. */
function isPassing(error: unknown): boolean {
  return isKvTideError(error) && error.code === 'OUT_OF_BLOCKS'
}

/** Tokens that a second model drafts, one a step. */
class DraftTask implements Task {
  readonly state: SequenceState
  readonly arrival: number
  readonly isOptional = true
  readonly draftsMax = 0
  readonly visible: number
  isAdmitted = false
  isEnded = false
  readonly #most: number
  readonly #of: ModelDrafterOptions & { readonly left: (task: DraftTask, error: unknown) => void }
  readonly #tokens: number[] = []
  readonly #drafts: { readonly logits: NativeLogits; readonly row: number }[] = []
  #row: { readonly logits: NativeLogits; readonly row: number } | undefined

  constructor(state: SequenceState, arrival: number, most: number, of: ModelDrafterOptions & { readonly left: (task: DraftTask, error: unknown) => void }) {
    if (state.pending === 0) state.redo()
    this.state = state
    this.arrival = arrival
    this.visible = state.log.length
    this.#most = most
    this.#of = of
    state.user = this
  }

  get made(): Drafted {
    return { tokens: this.#tokens, drafts: this.#drafts }
  }

  get isDone(): boolean {
    return this.#tokens.length >= this.#most
  }

  get pending(): number {
    return this.state.pending
  }

  get firstRow(): number {
    return this.state.log.length - 1
  }

  check(): void {
    void this.state.sequence.length
  }

  drafted(): Drafted {
    return NOTHING_DRAFTED
  }

  toDraw(logits: NativeLogits, row: number): RowToDraw {
    const { vocabulary, sampler } = this.#of
    // The models' vocabularies may end in ids that only one of them has.
    this.#row = { logits: logits.fitted(row, vocabulary ?? logits.vocab()), row: 0 }
    return { sampler, ...this.#row }
  }

  take(): void {}

  accept([token]: readonly number[]): number {
    const { sampler, isGreedy } = this.#of
    if (isGreedy) this.#row?.logits.dispose()
    else this.#drafts.push(this.#row as { logits: NativeLogits; row: number })
    this.#row = undefined
    this.#tokens.push(token as number)
    this.state.log.push([token as number])
    sampler.push([token as number])
    return 1
  }

  end(): void {
    this.isEnded = true
  }

  leave(error?: unknown): void {
    this.#row?.logits.dispose()
    this.state.user = undefined
    this.#of.left(this, error)
  }
}
