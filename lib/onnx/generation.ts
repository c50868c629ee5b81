// Generations: the tokens that are drawn for one sequence, read one by one. The scheduler computes them as a task, at most 16 ahead of the reader.
import type { NativeLogits } from '#binding'

import { abortedBy, invalid } from '../errors/errors.js'
import { checkInternal, checkThis } from '../border/owner.js'
import type { Constraint } from '../sampling/grammar.js'
import type { SamplingSettings, TokenLogprobs } from '../sampling/options.js'
import { type RowToDraw, Sampler } from '../sampling/sampler.js'
import { checkContext } from './context.js'
import { type Drafter, type DraftModel, LookupDrafter, ModelDrafter } from './drafter.js'
import type { Scheduler } from './scheduler.js'
import type { SequenceState } from './sequence-state.js'
import { type Drafted, NOTHING_DRAFTED, type Task } from './task.js'
import { checkPositions } from './token-log.js'
import { Account, NOTHING_USED, type Usage } from './usage.js'

/** The number of tokens that are computed ahead of a slow reader. */
const AHEAD = 16

/**
 * The reason for the end of a generation: `stop` for an id of the model's `endOfSequence` or of `stop`, or behind a text whose grammar allows nothing more; `length`
 * after `maxTokens`, or at the end of the model's context.
 */
export type FinishReason = 'stop' | 'length'

/** @internal The limits that a model sets for its generations. */
export interface ModelLimits {
  /** The maximum number of tokens in a sequence, if known. */
  readonly contextLength: number | undefined
  /** True if a step is known to give only the logits of a sequence's last token: then nothing is drafted. */
  readonly isPruned: boolean
}

/** @internal The options of a generation. */
export interface GenerationSettings {
  readonly tokens: Uint32Array
  readonly maxTokens: number
  readonly stop: ReadonlySet<number>
  readonly sampling: SamplingSettings
  /** Compiles the grammar, if there is one. */
  readonly constrain?: (() => Promise<Constraint>) | undefined
  readonly signal: AbortSignal | undefined
  /** The maximum number of tokens drafted at once, and the second model; without one, prompt lookup drafts. */
  readonly draft: { readonly most: number; readonly model: DraftModel | undefined } | undefined
  readonly vocabulary: number | undefined
  /** Positions at which later prompts may leave the sequence. */
  readonly checkpoints: readonly number[]
  readonly limits: ModelLimits
}

/** The relation of a task to its generation and to the scheduler. */
interface TaskContext {
  readonly arrival: number
  /** The time of the first `next()`. */
  readonly started: number
  readonly ahead: number
  readonly constraint: Constraint | undefined
  readonly changed: () => void
  readonly wake: () => void
}

interface Waiting {
  resolve(result: IteratorResult<number, undefined>): void
  reject(error: unknown): void
}

/** The task of a generation, as the scheduler sees it. */
class GenerationTask implements Task {
  readonly state: SequenceState
  readonly arrival: number
  readonly isOptional = false
  isAdmitted = false
  isEnded = false
  finishReason: FinishReason | undefined
  readonly unread: { readonly token: number; readonly logprobs: TokenLogprobs | undefined }[] = []
  error: { readonly cause: unknown } | undefined
  hasLeft = false
  visible: number
  readonly #settings: GenerationSettings
  /** The maximum number of tokens: `maxTokens`, or what the context leaves. */
  readonly #most: number
  readonly #sampler: Sampler
  readonly #drafter: Drafter | undefined
  readonly #ahead: number
  readonly #changed: () => void
  readonly #wake: () => void
  /** Tokens that end the generation. */
  readonly #ends: ReadonlySet<number>
  readonly #account: Account
  #generated = 0

  constructor(
    state: SequenceState,
    settings: GenerationSettings,
    { arrival, started, ahead, constraint, changed, wake }: TaskContext,
  ) {
    const {
      tokens,
      maxTokens,
      limits: { contextLength = Infinity },
    } = settings
    const length = state.log.length + tokens.length
    if (length === 0) throw invalid('tokens.length', 0, 'at least 1: the sequence is empty')
    checkContext(length, contextLength)
    checkPositions('checkpoints', settings.checkpoints, length)
    state.spans.check('tokens', state.log.length, tokens)
    state.spans.checkWhole(length)
    this.#most = Math.min(maxTokens, contextLength - length)
    if (this.#most === 0) this.finishReason = 'length'
    if (constraint?.grammar.isEmpty() === true) this.finishReason = 'stop'
    // The logits behind the last token are needed, so that token is computed again.
    if (state.pending + tokens.length === 0) state.redo()
    state.log.push(tokens)
    state.log.name(settings.checkpoints)
    this.state = state
    this.arrival = arrival
    this.visible = state.log.length
    this.#account = new Account(this.visible, state.computed, started)
    this.#settings = settings
    // Tokens that cannot be rolled back are not computed ahead.
    const { hasTransaction } = state
    this.#ahead = hasTransaction ? 1 : ahead
    this.#changed = changed
    this.#wake = wake
    this.#ends = constraint?.ends ?? settings.stop
    this.#sampler = Sampler.of(settings.sampling, state.log.copy(), constraint)
    this.#drafter = hasTransaction ? undefined : drafterOf(state, settings, this.#sampler, this.#ends, wake)
    state.user = this
  }

  get isDone(): boolean {
    return this.finishReason !== undefined
  }

  get usage(): Usage {
    return this.#account.usage(this.visible)
  }

  get pending(): number {
    return this.unread.length >= this.#ahead || this.#drafter?.isBusy === true ? 0 : this.state.pending
  }

  get firstRow(): number {
    return this.state.log.length - 1
  }

  /** The last token is never a drafted one, because one more token is drawn behind the accepted part of a draft. */
  get draftsMax(): number {
    if (this.#settings.limits.isPruned) return 0
    return Math.min(this.#drafter?.most ?? 0, this.#most - this.#generated - 1)
  }

  check(): void {
    this.state.check()
    this.#drafter?.check()
  }

  prepare(): void {
    this.state.checkComputed()
  }

  drafted(most: number): Drafted {
    const drafted = this.#drafter?.drafted(most) ?? NOTHING_DRAFTED
    if (drafted.tokens.length > 0) this.#sampler.foresee(drafted.tokens)
    return drafted
  }

  toDraw(logits: NativeLogits, row: number, { tokens, drafts }: Drafted): RowToDraw {
    return { sampler: this.#sampler, logits, row, drafted: tokens, drafts }
  }

  take(): void {}

  count(from: number, tokens: number, drafted: number): void {
    this.#account.step(from, tokens, drafted)
  }

  accept(tokens: readonly number[], logprobs: readonly TokenLogprobs[] | undefined, isOver: boolean): number {
    const kept: number[] = []
    for (const [place, token] of tokens.entries()) {
      if (this.#ends.has(token)) {
        this.finishReason = 'stop'
        break
      }
      kept.push(token)
      this.unread.push({ token, logprobs: logprobs?.[place] })
      this.#generated += 1
      if (this.#generated < this.#most) continue
      this.finishReason = 'length'
      break
    }
    if (isOver && kept.length === tokens.length) this.finishReason = 'stop'
    // The last of the drawn tokens was not drafted.
    this.#account.draw(kept.length, Math.max(Math.min(kept.length, tokens.length - 1), 0), performance.now())
    this.state.log.push(kept)
    this.#sampler.push(kept)
    this.#drafter?.push(kept, this.isDone ? 0 : this.draftsMax)
    this.#changed()
    return kept.length
  }

  outOfRoom(error: unknown): void {
    if (this.#generated === 0) return this.leave(error)
    // It cannot continue: its blocks are released for others, and the tokens that stay in the prefix cache need not be computed again.
    this.state.release()
    const isLong = this.#settings.maxTokens === Infinity
    if (isLong) this.finishReason = 'length'
    this.leave(isLong ? undefined : error)
  }

  leave(error?: unknown): void {
    this.hasLeft = true
    if (error !== undefined) this.error = { cause: error }
    this.#changed()
  }

  /** Ends the task: the sequence keeps the tokens that were given out. */
  settle(): void {
    if (this.state.user !== this) return
    this.state.user = undefined
    this.state.cut(this.visible)
    this.#sampler.dispose()
    this.#drafter?.dispose()
    this.#wake()
  }
}

function drafterOf(
  state: SequenceState,
  { draft, sampling, vocabulary }: GenerationSettings,
  sampler: Sampler,
  ends: ReadonlySet<number>,
  changed: () => void,
): Drafter | undefined {
  if (draft === undefined) return undefined
  const { most, model } = draft
  if (model === undefined) return new LookupDrafter(most, state.log.view())
  return new ModelDrafter(state, {
    model,
    most,
    sampler: sampler.drafter(),
    ends,
    isGreedy: sampling.isGreedy,
    vocabulary,
    changed,
  })
}

/**
 * Tokens that are generated one by one. A generation starts at the first `next()`. It ends when it is read to the end, when `return()` is called
 * (which leaving a loop does), or when its signal is aborted. The sequence then has its earlier tokens and the returned ones; the last of these
 * is pending.
 *
 * At most 16 tokens are computed ahead of the reader. Then the sequence is idle, and costs the others nothing.
 */
export class Generation implements AsyncIterableIterator<number, undefined>, AsyncDisposable {
  readonly #scheduler: Scheduler
  readonly #state: SequenceState
  readonly #settings: GenerationSettings
  readonly #ahead: number
  readonly #waiting: Waiting[] = []
  readonly #left: (() => void)[] = []
  readonly #onAbort = (): void => void this.#end({ cause: abortedBy(this.#settings.signal) })
  /** Settles after the grammar was compiled and blocks were restored from tiers. */
  #prepared: Promise<void> | undefined
  #constraint: Constraint | undefined
  /** The time of the first `next()`. */
  #started: number | undefined
  #task: GenerationTask | undefined
  #isOver = false
  /** The error of the next call. */
  #failure: { readonly cause: unknown } | undefined
  #logprobs: TokenLogprobs | undefined

  /** @internal */
  constructor(
    token: unknown,
    scheduler: Scheduler,
    state: SequenceState,
    settings: GenerationSettings,
    isWindowed: boolean,
  ) {
    checkInternal(token, 'Generation', 'generate(sequence, options) of an OnnxModel instead')
    this.#scheduler = scheduler
    this.#state = state
    this.#settings = settings
    // Behind a window, and where layers keep states, rolling tokens back means computing others again.
    this.#ahead = isWindowed ? 1 : AHEAD
  }

  /** The reason why the generation has ended; `undefined` before the last token was read, and after an early end. */
  get finishReason(): FinishReason | undefined {
    Generation.#check(this)
    const task = this.#task
    return task?.unread.length === 0 && !task.isEnded ? task.finishReason : undefined
  }

  /**
   * The work so far: tokens of the prompt that were cached, tokens that were computed, drafts, the time to the first token. A snapshot that never changes; all
   * counts are 0 before the first `next()`. Tokens that are computed ahead of the reader count as computed.
   */
  get usage(): Usage {
    Generation.#check(this)
    return this.#task?.usage ?? NOTHING_USED
  }

  /** With the option `logprobs`, the log-probabilities of the token that was read last. */
  get logprobs(): TokenLogprobs | undefined {
    Generation.#check(this)
    return this.#logprobs
  }

  /** Returns the next token. */
  async next(): Promise<IteratorResult<number, undefined>> {
    Generation.#check(this)
    this.#started ??= performance.now()
    let refused: { readonly cause: unknown } | undefined
    if (this.#task === undefined && !this.#isOver && this.#needsPreparation())
      await (this.#prepared ??= this.#prepare()).catch((cause: unknown) => (refused = { cause }))
    return await new Promise((resolve, reject) => {
      const waiting = { resolve, reject }
      this.#waiting.push(waiting)
      try {
        if (refused !== undefined && !this.#isOver) throw refused.cause
        if (this.#task === undefined && !this.#isOver) this.#start()
        this.#give()
      } catch (cause) {
        this.#failure = { cause }
        this.#finish()
      }
      if (this.#waiting.at(-1) === waiting) this.#checkWait()
    })
  }

  /** Refuses the last call of `next` if it waits for a step inside a function of `between`. The generation goes on. */
  #checkWait(): void {
    try {
      this.#scheduler.checkSteps()
    } catch (error) {
      this.#waiting.pop()?.reject(error)
    }
  }

  /** Ends the generation. When the promise is fulfilled, the sequence can be used again. */
  async return(): Promise<IteratorResult<number, undefined>> {
    Generation.#check(this)
    await this.#end()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator](): this {
    Generation.#check(this)
    return this
  }

  /** As {@link return}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    Generation.#check(this)
    await this.#end()
  }

  static #check(self: unknown): void {
    checkThis(self, value => #scheduler in value, 'a Generation')
  }

  /** True if the prompt fits into the context and into the cache. If it does not, it is refused at the start, and nothing is restored for it. */
  #fits(): boolean {
    const {
      tokens,
      limits: { contextLength = Infinity },
    } = this.#settings
    const length = this.#state.log.length + tokens.length
    return length <= contextLength && this.#scheduler.fits(length)
  }

  #needsPreparation(): boolean {
    return this.#fits() && (this.#settings.constrain !== undefined || this.#state.shared.tiers !== undefined)
  }

  async #prepare(): Promise<void> {
    const { constrain, tokens } = this.#settings
    this.#constraint = await constrain?.()
    if (this.#state.shared.tiers !== undefined) await this.#state.bring(tokens)
  }

  #start(): void {
    const { signal } = this.#settings
    if (signal?.aborted === true) throw abortedBy(signal)
    this.#task = this.#scheduler.add(
      this.#state,
      arrival =>
        new GenerationTask(this.#state, this.#settings, {
          arrival,
          started: this.#started as number,
          ahead: this.#ahead,
          constraint: this.#constraint,
          changed: () => this.#give(),
          wake: () => this.#scheduler.wake(),
        }),
    )
    signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  /** Gives available tokens to pending calls of `next`. */
  #give(): void {
    const task = this.#task
    if (task?.hasLeft === true) for (const left of this.#left.splice(0)) left()
    if (this.#isOver) {
      if (task === undefined || task.hasLeft) this.#finish()
      return
    }
    if (task === undefined) return
    while (this.#waiting.length > 0 && task.unread.length > 0) {
      const { token, logprobs } = task.unread.shift() as GenerationTask['unread'][number]
      task.visible += 1
      this.#logprobs = logprobs
      ;(this.#waiting.shift() as Waiting).resolve({ done: false, value: token })
      this.#scheduler.wake()
    }
    if (!task.hasLeft || task.unread.length > 0) return
    task.settle()
    if (this.#waiting.length === 0) return
    this.#failure = task.error
    this.#finish()
  }

  /** Ends it early: at once, or after the step that is being computed. */
  async #end(failure?: { readonly cause: unknown }): Promise<void> {
    const task = this.#task
    if (!this.#isOver) {
      this.#isOver = true
      this.#failure = failure
      if (task !== undefined) {
        if (task.unread.length > 0) task.isEnded = true
        task.unread.length = 0
      }
    }
    if (task !== undefined && !task.hasLeft) {
      task.isEnded = true
      const left = new Promise<void>(resolve => this.#left.push(resolve))
      this.#scheduler.settle()
      await left
    }
    this.#finish()
  }

  /** Releases the sequence, and settles all pending calls: the first of them gets the error, if there is one. */
  #finish(): void {
    this.#isOver = true
    this.#settings.signal?.removeEventListener('abort', this.#onAbort)
    this.#task?.settle()
    for (const waiting of this.#waiting.splice(0)) {
      const failure = this.#failure
      this.#failure = undefined
      if (failure === undefined) waiting.resolve({ done: true, value: undefined })
      else waiting.reject(failure.cause)
    }
  }
}
