// The scheduler: computes one step after the other while there are tasks, and sleeps if there is nothing to compute. policy.ts decides what a step contains.
//
//     finished tasks leave -> functions of `between` -> admission -> a step: begin, compute, commit, draw -> again
//
// If a step fails, it is rolled back and its sequences are computed one by one, so only those that fail alone are refused. Between two steps each sequence is in a
// state that its owner knows. Besides the backend's calls, a step costs microseconds of bookkeeping per sequence. A round that computes nothing ends with a turn of
// the event loop, so timers, I/O and aborts always get one.
import { setImmediate as turn, setTimeout } from 'node:timers/promises'

import type { NativeLogits } from '#binding'

import { isBusy } from '../border/when-free.js'
import { isKvTideError, KvTideError } from '../errors/errors.js'
import { type DrawnTokens, drawTokens, type RowToDraw } from '../sampling/sampler.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { SharedCache, Waiting } from '../sequences/shared-cache.js'
import type { Transaction } from '../sequences/transaction.js'
import type { Backend } from './backend.js'
import { Between, outside } from './between.js'
import { CommonStarts } from './common-starts.js'
import { Cuts } from './cuts.js'
import { admit, sharesOf } from './policy.js'
import { Room } from './room.js'
import type { SequenceState } from './sequence-state.js'
import { commitDraft, type StepPart, WantedRows, withDraft } from './step-parts.js'
import { NOTHING_DRAFTED, type Task } from './task.js'
import { isHolding, TaskCandidate } from './task-candidate.js'

/** The wait while the cache is read in the background, in milliseconds. */
const BUSY_MS = 1

/** @internal Computes tasks in steps that they share. */
export class Scheduler {
  readonly #cache: PagedKvCache
  readonly #shared: SharedCache
  readonly #backend: Backend
  readonly #limits: { readonly stepTokens: number; readonly sequences: number }
  readonly #room: Room
  readonly #cuts: Cuts
  readonly #starts: CommonStarts
  #tasks: Task[] = []
  /** A task that has no room. If it still has none in the next round, after a turn of the event loop, it is refused. */
  #unfit: Task | undefined
  /** The task that had no room in the previous round. */
  #wasUnfit: Task | undefined
  readonly #between = new Between()
  #arrivals = 0
  #loop: Promise<void> | undefined
  #wake: (() => void) | undefined
  /** Wakes it after changes of the cache. */
  readonly #changes: Waiting = { wake: () => this.#wake?.(), end: () => this.#wake?.() }
  #isAwake = false
  #isEnded = false

  constructor(
    cache: PagedKvCache,
    shared: SharedCache,
    backend: Backend,
    limits: { readonly stepTokens: number; readonly sequences: number },
    cuts: Cuts = new Cuts(cache),
  ) {
    this.#cache = cache
    this.#shared = shared
    this.#backend = backend
    this.#limits = limits
    this.#room = new Room(cache, shared, limits.stepTokens)
    this.#cuts = cuts
    this.#starts = new CommonStarts(cache, cuts)
  }

  /** Adds a task for a sequence. Refused if another task works on it. */
  add<T extends Task>(state: SequenceState, make: (arrival: number) => T): T {
    this.check()
    this.checkSteps()
    state.reconcile()
    state.checkFree()
    const task = make(this.#arrivals)
    this.#arrivals += 1
    this.#tasks.push(task)
    this.wake()
    return task
  }

  check(): void {
    if (this.#isEnded) throw disposed()
  }

  /** Refuses a call that waits for a step inside a function of `between`. */
  checkSteps(): void {
    this.#between.check('generate or run tokens')
  }

  /** True if so many tokens of one sequence fit into the whole cache. */
  fits(tokens: number): boolean {
    return this.#room.fits(tokens)
  }

  /** Runs a function between two steps. The next step waits for it. */
  between<R>(call: () => R | Promise<R>): Promise<R> {
    this.check()
    this.#between.check('call `between`')
    const called = this.#between.add(call)
    this.wake()
    return called
  }

  /** True while a function of `between` runs: no step begins before it ends. */
  get isHeld(): boolean {
    return this.#between.isRunning
  }

  /** Checks again whether there is work. */
  wake(): void {
    this.#isAwake = true
    this.#wake?.()
    this.#loop ??= outside(() => this.#run()).finally(() => {
      this.#loop = undefined
      if (this.#isAwake) this.wake()
    })
  }

  /** Removes tasks that have ended: at once while a function of `between` runs, otherwise after the step that is being computed. */
  settle(): void {
    if (this.isHeld) this.#dismiss()
    else this.wake()
  }

  /** Ends all tasks, after the step that is being computed. Inside a function of `between` there is none, and it does not wait for that function. */
  async dispose(): Promise<void> {
    this.#isEnded = true
    if (this.#between.isInside) return this.#dismiss()
    this.wake()
    await this.#loop
  }

  /** Marks a sequence as spare: its blocks may be taken whenever no task computes it. */
  spare(state: SequenceState): void {
    this.#room.spare(state)
  }

  /** Notes that a spare sequence no longer exists. */
  forget(state: SequenceState): void {
    this.#room.forget(state)
  }

  async #run(): Promise<void> {
    await undefined
    for (;;) {
      this.#isAwake = false
      this.#dismiss()
      if (!this.#between.isEmpty) {
        // A function may wait for a generation of another model, which would wait for its drafts.
        for (const task of this.#tasks) if (task.isOptional) this.#drop(task)
        await this.#between.run()
        this.#dismiss()
      }
      if (this.#tasks.length === 0 && this.#between.isEmpty) return
      await this.#round()
      this.#wake = undefined
    }
  }

  /** Computes a step. If nothing can be computed, sleeps until something has changed, or for one turn of the event loop. */
  async #round(): Promise<void> {
    this.#wasUnfit = this.#unfit
    this.#unfit = undefined
    try {
      const parts = this.#choose()
      if (parts.length > 0) {
        const steps = await this.#step(parts)
        if (steps === 0) await turn()
      } else if (this.#isAwake || this.#unfit !== undefined) await turn()
      else await this.#sleep()
    } catch (error) {
      if (isBusy(error)) return rest()
      for (const task of this.#tasks) this.#drop(task, error)
    }
  }

  /** Sleeps until a call wakes it. While a task waits for room, changes of the cache wake it as well, because they may have freed blocks. */
  async #sleep(): Promise<void> {
    const isWaiting = this.#tasks.some(task => !task.isAdmitted && task.pending > 0)
    if (isWaiting) this.#shared.wait(this.#changes)
    await new Promise<void>(resolve => (this.#wake = resolve))
    if (!isWaiting) return
    this.#shared.leave(this.#changes)
    // More changes may follow at once.
    await turn()
  }

  /** Removes tasks that are done or ended, or whose sequence no longer exists. */
  #dismiss(): void {
    const left: (() => void)[] = []
    this.#tasks = this.#tasks.filter(task => {
      if (task.isDone || task.isEnded) left.push(() => this.#leave(task))
      else {
        const error = this.#isEnded ? disposed() : refusalOf(() => task.check())
        if (error === undefined) return true
        left.push(() => this.#leave(task, error))
      }
      return false
    })
    for (const leave of left) leave()
  }

  #drop(task: Task, error?: unknown): void {
    this.#tasks = this.#tasks.filter(other => other !== task)
    this.#leave(task, error)
  }

  /** Removes a task. Its blocks may be taken until its owner uses the sequence again. */
  #leave(task: Task, error?: unknown): void {
    this.#room.spare(task.state, task)
    task.leave(error)
  }

  #choose(): StepPart[] {
    this.#align()
    for (const task of this.#tasks)
      if (!task.isAdmitted && !this.fits(task.state.log.length)) this.#dropUnfit(task, this.#room.shortage(task, []))
    const tasks = this.#tasks
    const candidates = tasks.map(task => new TaskCandidate(task, this.#cuts, this.#starts))
    admit(candidates, Math.min(this.#limits.sequences, this.#limits.stepTokens), {
      hasRoom: (place, isAlone) =>
        this.#room.shortage(tasks[place] as Task, isAlone ? [] : tasks.filter(task => task.isAdmitted)) === undefined,
      admit: place => {
        const task = tasks[place] as Task
        this.#starts.find(task)
        task.isAdmitted = true
      },
      preempt: place => preempt(tasks[place] as Task),
      reclaim: () => this.#room.reclaim(),
      refuse: place => this.#refuse(tasks[place] as Task),
    })
    const unfit = tasks.filter(task => task.isOptional && !task.isAdmitted && task.pending > 0)
    if (unfit.length > 0) {
      for (const task of unfit) if (this.#tasks.includes(task)) this.#drop(task)
      return this.#choose()
    }
    this.#starts.update(tasks)
    const shares = sharesOf(candidates, this.#limits.stepTokens)
    return shares.map(({ place, tokens, drafts }) => (candidates[place] as TaskCandidate).part(tokens, drafts))
  }

  /** Makes tokens pending that have the rotary factors of another length than that of their sequence. */
  #align(): void {
    for (const task of this.#tasks) {
      try {
        if (task.pending > 0 && task.state.align()) task.isAdmitted = false
      } catch (error) {
        if (isBusy(error)) throw error
        this.#drop(task, error)
      }
    }
  }

  /** Refuses a task that does not fit into the whole cache. Not at once, and not while an answer is being read whose blocks become free afterwards. */
  #refuse(task: Task): boolean {
    if (task.isOptional || this.#room.isBeingRead || !this.#isLastChance(task)) return false
    this.#dropUnfit(task, this.#room.shortage(task, []))
    return true
  }

  /** True if a task had no room in the previous round either. In between, owners get a turn of the event loop to dispose of ended sequences. */
  #isLastChance(task: Task): boolean {
    this.#unfit = task
    return task === this.#wasUnfit
  }

  #dropUnfit(task: Task, error: unknown): void {
    this.#tasks = this.#tasks.filter(other => other !== task)
    this.#room.spare(task.state, task)
    task.outOfRoom(error)
  }

  /** Computes one step. If it fails, computes each of its sequences alone. Returns the number of steps that were computed. */
  async #step(parts: readonly StepPart[]): Promise<number> {
    const failure = await this.#tryStep(parts)
    if (failure === undefined) return 1
    const { error } = failure
    if (isBusy(error)) throw error
    const isFull = isKvTideError(error) && error.code === 'OUT_OF_BLOCKS'
    if ((isFull || parts.length === 1) && parts.some(({ drafted }) => drafted.tokens.length > 0))
      return this.#step(parts.map(part => ({ ...part, drafted: NOTHING_DRAFTED })))
    if (isFull) return this.#stepInLess(parts, error)
    if (parts.length === 1) {
      this.#drop((parts[0] as StepPart).task, this.#isEnded ? disposed() : error)
      return 0
    }
    let steps = 0
    for (const part of parts) {
      if (!part.task.isEnded && this.#tasks.includes(part.task) && part.task.isAdmitted)
        steps += await this.#step([part])
    }
    return steps
  }

  /**
   * Handles a step that had no room: takes the blocks of a sequence that no task computes, or of the youngest task, or computes less of a prompt. If
   * nothing helps, refuses a task.
   */
  async #stepInLess(parts: readonly StepPart[], error: KvTideError): Promise<number> {
    // Tasks whose sequences were disposed of meanwhile have given their blocks back.
    const { length } = this.#tasks
    this.#dismiss()
    if (this.#tasks.length < length) return 0
    const oldest = this.#tasks.find(task => task.isAdmitted && task.pending > 0) as Task
    const others = this.#tasks.filter(task => task !== oldest && isHolding(task))
    if (this.#takeBlocks(parts, others)) return 0
    // The others are in transactions: the oldest task waits for them.
    if ((others.some(task => task.isAdmitted) || this.#room.isBeingRead) && preempt(oldest)) return 0
    const [part] = parts as [StepPart]
    // Behind a window, fewer tokens need fewer blocks at once.
    if (parts.length === 1 && part.tokens.length > 1)
      return this.#step([{ ...part, tokens: part.tokens.subarray(0, part.tokens.length >> 1) }])
    // One that has not begun goes first.
    const next = others.find(task => task.pending > 0)
    if (next !== undefined && preempt(oldest)) {
      if (this.#room.shortage(next, []) === undefined) next.isAdmitted = true
      else this.#refuse(next)
      return 0
    }
    // All of them are in transactions.
    const { task } = parts.reduce((youngest, other) => (other.task.arrival > youngest.task.arrival ? other : youngest))
    if (this.#isLastChance(task)) this.#dropUnfit(task, error)
    return 0
  }

  /**
   * Takes the blocks of spare sequences, then those of tasks, the youngest first, until a step has room, or an admitted task has none left. Forks share
   * blocks, so a release may free none, and new forks may arrive in each round. Returns false if nothing was released.
   */
  #takeBlocks(parts: readonly StepPart[], others: readonly Task[]): boolean {
    const [task, ...more] = parts.map(part => part.task) as [Task, ...Task[]]
    const hasRoom = (): boolean => this.#room.shortage(task, more) === undefined
    let isReleased = false
    while (this.#room.reclaim()) {
      isReleased = true
      if (hasRoom()) return true
    }
    for (const other of others.toReversed()) {
      const { isAdmitted } = other
      if (!preempt(other)) continue
      isReleased = true
      if (isAdmitted || hasRoom()) return true
    }
    return isReleased
  }

  /** Computes a step and draws from it. If it cannot be computed, returns the error, and nothing has changed. */
  async #tryStep(asked: readonly StepPart[]): Promise<{ readonly error: unknown } | undefined> {
    const parts: StepPart[] = []
    const handles = asked.map(({ task }) => task.state.handle)
    let logits: NativeLogits | undefined
    let wanted: WantedRows
    try {
      for (const part of asked) {
        part.task.prepare()
        parts.push(withDraft(this.#shared, part))
      }
      wanted = new WantedRows(parts, this.#backend.positionRows)
      using step = this.#cache.beginStep({
        sequences: parts.map(({ task }) => task.state.sequence),
        offsets: [...wanted.offsets],
        tokens: wanted.ids,
      })
      const { offsets, ids, positions, rows, embeds } = wanted
      const sequences = parts.map(({ task: { state } }) => ({
        sequence: state.sequence,
        before: state.log.view(0, state.computed),
        encoding: state.encoding,
      }))
      for (const handle of handles) handle.isInStep = true
      logits = await this.#backend.run({ step, sequences, offsets, ids, positions, rows, embeds })
      step.commit()
    } catch (error) {
      for (const { draft } of parts) draft?.dispose()
      logits?.dispose()
      return { error }
    } finally {
      for (const handle of handles) handle.isInStep = false
    }
    try {
      for (const { task, tokens, drafted } of parts) {
        task.count?.(task.state.computed, tokens.length, drafted.tokens.length)
        task.state.computed += tokens.length
      }
      await this.#draw(parts, wanted, logits)
    } finally {
      logits.dispose()
    }
    return undefined
  }

  /** Gives each task its logits, or the tokens that are drawn from them. An error of one task leaves the others alone. */
  async #draw(
    parts: readonly StepPart[],
    { firstRows, rowCounts, firstPositions }: WantedRows,
    logits: NativeLogits,
  ): Promise<void> {
    const draws: { readonly part: StepPart; readonly row: RowToDraw }[] = []
    for (const [place, part] of parts.entries()) {
      const [first, count] = [firstRows[place] as number, rowCounts[place] as number]
      if (count === 0) continue
      this.#attempt(part, () => {
        const row = part.task.toDraw(logits, first, part.drafted)
        if (row === undefined) part.task.take(logits, first, firstPositions[place] as number, count)
        else draws.push({ part, row })
      })
    }
    if (draws.length === 0) return
    const failed = (error: unknown): DrawnTokens[] => draws.map(() => ({ error }))
    const drawn = await drawTokens(draws.map(({ row }) => row)).catch(failed)
    let verified: { readonly part: StepPart; readonly accepted: number }[] = []
    for (const [place, answer] of drawn.entries()) {
      const { part } = draws[place] as (typeof draws)[number]
      const { task, draft } = part
      this.#attempt(part, () => {
        // It may have been disposed of since the step has begun.
        task.state.check()
        if (answer.tokens === undefined) throw answer.error
        const kept = task.accept(answer.tokens, answer.logprobs, answer.isOver)
        const accepted = Math.max(Math.min(kept, answer.tokens.length - 1), 0)
        if (draft !== undefined) verified.push({ part, accepted })
      })
    }
    for (;;) {
      verified = verified.filter(({ part, accepted }) => !this.#endDraft(part, accepted))
      if (verified.length === 0) return
      await rest()
    }
  }

  /** Keeps the accepted tokens of a draft. Returns false if background work uses the cache: then the draft is still open. */
  #endDraft(part: StepPart, accepted: number): boolean {
    const { task, draft } = part
    let hasEnded = true
    this.#attempt(part, () => {
      task.state.check()
      try {
        const isKept = commitDraft(draft as Transaction, 1 + accepted)
        task.state.computed += isKept ? accepted : -1
      } catch (error) {
        if (!isBusy(error)) throw error
        hasEnded = false
      }
    })
    return hasEnded
  }

  /** Makes a call for a task whose tokens were computed. If it throws, the task leaves, and its draft is rolled back with the token before it. */
  #attempt({ task, draft }: StepPart, call: () => void): void {
    const refused = refusalOf(call)
    if (refused === undefined) return
    draft?.dispose()
    if (draft !== undefined) task.state.computed -= 1
    this.#drop(task, refused)
  }
}

/** @internal Waits briefly, while the cache is read in the background. */
export function rest(): Promise<void> {
  return setTimeout(BUSY_MS)
}

function preempt(task: Task): boolean {
  if (!task.state.release()) return false
  task.isAdmitted = false
  return true
}

/** The error that a call throws; `undefined` if it throws none. */
function refusalOf(call: () => unknown): unknown {
  try {
    call()
    return undefined
  } catch (error) {
    return error ?? new KvTideError('INTERNAL', 'nothing was thrown', {})
  }
}

function disposed(): KvTideError<'DISPOSED'> {
  return new KvTideError('DISPOSED', 'the OnnxModel was disposed of', { object: 'OnnxModel' })
}
