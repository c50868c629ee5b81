// Sources of drafted tokens for a generation: prompt lookup, and a second model with a scheduler of its own.
import type { NativeLogits } from '#binding'

import { isBusy } from '../border/when-free.js'
import { isKvTideError } from '../errors/errors.js'
import { PromptLookup } from '../sampling/prompt-lookup.js'
import type { RowToDraw, Sampler } from '../sampling/sampler.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { Scheduler } from './scheduler.js'
import { openSequence } from './sequence.js'
import { growthAt, type LongRope } from './long-rope.js'
import { SequenceState } from './sequence-state.js'
import { type Drafted, NOTHING_DRAFTED, type Task } from './task.js'

/**
 * A source of drafted tokens for one generation: prompt lookup, or a second model. A step of the first model verifies them all at once.
 *
 * ```text
 * prompt lookup  push -> drafted
 * second model   push -> a task of the second model's scheduler, while the generation is idle -> drafted
 * ```
 * A second model's task shares steps with the other tasks of that model, including drafts for other generations. If there is no room for it,
 * or a function of `between` runs in that model, nothing is drafted and the generation goes on: so two models that draft for each other cannot
 * deadlock.
 */
export interface Drafter {
  /** The maximum number of tokens drafted at once. */
  readonly most: number
  /** True while it is drafting: the generation is idle until then. */
  readonly isBusy: boolean
  /** Throws if drafting has failed. */
  check(): void
  /** The tokens drafted behind those that were pushed, at most `most`. */
  drafted(most: number): Drafted
  /** Adds generated tokens. At most `next` drafted tokens will be needed behind them. */
  push(tokens: readonly number[], next: number): void
  dispose(): void
}

/** @internal Prompt lookup: drafts from the tokens so far. */
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

/** @internal A second model: its scheduler and its cache. */
export interface DraftModel {
  readonly scheduler: Scheduler
  readonly shared: SharedCache
  /** The maximum number of tokens that it sees at once, if known. */
  readonly contextLength: number | undefined
  readonly rope: LongRope | undefined
}

/** @internal Options for drafting with a second model. */
export interface ModelDrafterOptions {
  readonly model: DraftModel
  readonly most: number
  /** A sampler of the generation, owned by the drafter, which disposes of it. */
  readonly sampler: Sampler
  /** Tokens that end a text: nothing is drafted behind them. */
  readonly ends: ReadonlySet<number>
  /** True if it takes the most probable token: then the logits of drafts are not needed. */
  readonly isGreedy: boolean
  /** The size of the first model's vocabulary. */
  readonly vocabulary: number | undefined
  /** Called when tokens were drafted, or drafting has failed. */
  readonly changed: () => void
}

/** @internal Drafts with a second model, which has its own sequence with the same tokens. */
export class ModelDrafter implements Drafter {
  readonly most: number
  readonly #options: ModelDrafterOptions
  /** The tokens of the first model's sequence. */
  readonly #of: SequenceState
  /** Opened with the first draft. */
  #state: SequenceState | undefined
  #task: DraftTask | undefined
  /** The number of tokens that the two sequences had in common at the last draft. */
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
    const {
      sampler,
      model: { scheduler, contextLength = Infinity, rope },
    } = this.#options
    sampler.truncate(this.#position)
    sampler.push(tokens)
    this.#position += tokens.length
    this.#forget()
    const { log } = this.#of
    // Beyond the end of its own context it drafts nothing, and not across a change of its rotary factors.
    const most = Math.min(this.most, next, contextLength - log.length, growthAt(rope, log.length))
    if (most <= 0 || scheduler.isHeld) return
    try {
      this.#start(most)
    } catch (error) {
      if (!isPassing(error)) throw error
    }
  }

  /** Adds a task that drafts up to `most` tokens. */
  #start(most: number): void {
    const {
      sampler,
      model: { scheduler, shared, rope },
    } = this.#options
    const { log, prompt } = this.#of
    this.#state ??= SequenceState.of(
      shared,
      'draft',
      openSequence(shared, log.view(), { prompt, vocabulary: undefined, rope }),
    )
    const own = this.#state
    scheduler.spare(own)
    let common = Math.min(this.#common, own.log.length)
    const [theirs, ours] = [log.view(), own.log.view()]
    while (common < ours.length && theirs[common] === ours[common]) common += 1
    this.#task = scheduler.add(own, arrival => {
      own.cut(common)
      own.log.push(theirs.subarray(common))
      return new DraftTask(own, arrival, most, { ...this.#options, left: (task, error) => this.#left(task, error) })
    })
    this.#common = log.length
    sampler.foresee([])
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
    if (this.#state !== undefined) this.#options.model.scheduler.forget(this.#state)
    this.#state?.sequence.dispose()
    this.#options.sampler.dispose()
    this.#forget()
  }

  #forget(): void {
    for (const { logits } of this.#ready.drafts) logits.dispose()
    this.#ready = NOTHING_DRAFTED
  }
}

/** True if a second model may draft again after an error: it had no room, or background work used its cache. */
function isPassing(error: unknown): boolean {
  return isBusy(error) || (isKvTideError(error) && error.code === 'OUT_OF_BLOCKS')
}

/** Drafts tokens with a second model, one per step. */
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
  /** True if nothing can be drafted behind its tokens. */
  #isOver = false

  constructor(
    state: SequenceState,
    arrival: number,
    most: number,
    of: ModelDrafterOptions & { readonly left: (task: DraftTask, error: unknown) => void },
  ) {
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
    return this.#isOver || this.#tokens.length >= this.#most
  }

  get pending(): number {
    return this.state.pending
  }

  get firstRow(): number {
    return this.state.log.length - 1
  }

  check(): void {
    this.state.check()
  }

  prepare(): void {
    this.state.checkComputed()
  }

  drafted(): Drafted {
    return NOTHING_DRAFTED
  }

  toDraw(logits: NativeLogits, row: number): RowToDraw {
    const { vocabulary, sampler } = this.#of
    // One of the two vocabularies may end in ids that the other does not have.
    this.#row = { logits: logits.fitted(row, vocabulary ?? logits.vocab()), row: 0 }
    return { sampler, ...this.#row }
  }

  take(): void {}

  accept([token]: readonly number[], _: unknown, isOver: boolean): number {
    const { sampler, isGreedy, ends } = this.#of
    this.#isOver = isOver || token === undefined || ends.has(token)
    if (token === undefined) return 0
    if (isGreedy) this.#row?.logits.dispose()
    else this.#drafts.push(this.#row as { logits: NativeLogits; row: number })
    this.#row = undefined
    this.#tokens.push(token)
    this.state.log.push([token])
    sampler.push([token])
    return 1
  }

  end(): void {
    this.isEnded = true
  }

  outOfRoom(error: unknown): void {
    this.leave(error)
  }

  leave(error?: unknown): void {
    this.#row?.logits.dispose()
    this.state.user = undefined
    this.#of.left(this, error)
  }
}
