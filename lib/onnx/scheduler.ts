import type { NativeLogits } from '#binding'

import { isKvTideError, KvTideError } from '../border/errors.js'
import { drawTokens, type RowToDraw } from '../sampling/sampler.js'
import type { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { openOn, type Transaction } from '../sequences/transaction.js'
import type { Backend } from './backend.js'
import { admit, type Share, sharesOf } from './policy.js'
import type { SequenceState } from './sequence.js'
import { type Drafted, NOTHING_DRAFTED, type Task } from './task.js'

/**
 * One step after the other, as long as there are tasks; it sleeps when there is nothing to compute. `policy.ts` says what a step has in it.
 *
 * ```text
 * tasks that ended leave -> functions of `between` -> who takes part -> a step: begin, compute, commit, draw -> again
 * ```
 * A step that fails is undone, and its sequences are computed one by one: only those that fail alone are refused. Between two steps each
 * sequence is what its owner knows. What lies between the calls of the backend is bookkeeping, microseconds a sequence.
 */

/** How long to wait for others who read the cache in the background, in milliseconds. */
const BUSY_MS = 1

/** A task's part of a step. */
interface Part {
  readonly task: Task
  readonly tokens: Uint32Array
  readonly drafted: Drafted
  /** Drafted tokens are in it until it is known which of them stay. */
  readonly draft: Transaction | undefined
}

/** @internal Computes tasks, in steps that they share. */
export class Scheduler {
  readonly #cache: PagedKvCache
  readonly #shared: SharedCache
  readonly #backend: Backend
  readonly #limits: { readonly stepTokens: number; readonly sequences: number }
  #tasks: Task[] = []
  #between: (() => Promise<void>)[] = []
  #arrivals = 0
  #loop: Promise<void> | undefined
  #wake: (() => void) | undefined
  #isAwake = false
  #isEnded = false

  constructor(cache: PagedKvCache, shared: SharedCache, backend: Backend, limits: { readonly stepTokens: number; readonly sequences: number }) {
    this.#cache = cache
    this.#shared = shared
    this.#backend = backend
    this.#limits = limits
  }

  /** Adds a task of a sequence; refused where another one works on it. */
  add<T extends Task>(state: SequenceState, make: (arrival: number) => T): T {
    this.check()
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

  /** Runs a function between two steps; the next step waits until it is done. */
  between<R>(call: () => R | Promise<R>): Promise<R> {
    this.check()
    return new Promise((resolve, reject) => {
      this.#between.push(async () => {
        try {
          resolve(await call())
        } catch (error) {
          reject(error)
        }
      })
      this.wake()
    })
  }

  /** Looks again whether there is something to do. */
  wake(): void {
    this.#isAwake = true
    this.#wake?.()
    this.#loop ??= this.#run().finally(() => {
      this.#loop = undefined
      if (this.#isAwake) this.wake()
    })
  }

  /** Ends all tasks, behind the step that is being computed. */
  async dispose(): Promise<void> {
    this.#isEnded = true
    this.wake()
    await this.#loop
  }

  async #run(): Promise<void> {
    await undefined
    for (;;) {
      this.#isAwake = false
      this.#dismiss()
      for (const call of this.#between.splice(0)) await call()
      if (this.#tasks.length === 0 && this.#between.length === 0) return
      const shares = this.#choose()
      if (shares.length > 0) await this.#step(shares.map(({ task, share }) => this.#part(task, share)))
      else if (!this.#isAwake) await new Promise<void>(resolve => (this.#wake = resolve))
      this.#wake = undefined
    }
  }

  /** Lets go of tasks that are done, that ended, or whose sequence is gone. */
  #dismiss(): void {
    const left: (() => void)[] = []
    this.#tasks = this.#tasks.filter(task => {
      if (task.isDone || task.isEnded) left.push(() => task.leave())
      else {
        const error = this.#isEnded ? disposed() : refusalOf(() => task.check())
        if (error === undefined) return true
        left.push(() => task.leave(error))
      }
      return false
    })
    for (const leave of left) leave()
  }

  #drop(task: Task, error?: unknown): void {
    this.#tasks = this.#tasks.filter(other => other !== task)
    task.leave(error)
  }

  #choose(): { task: Task; share: Share }[] {
    const tasks = this.#tasks
    admit(tasks.map(candidateOf), Math.min(this.#limits.sequences, this.#limits.stepTokens), {
      hasRoom: place => this.#hasRoom((tasks[place] as Task).state),
      admit: place => {
        const task = tasks[place] as Task
        task.state.resume(task.firstRow + 1)
        task.isAdmitted = true
      },
      preempt: place => preempt(tasks[place] as Task),
    })
    const unfit = tasks.filter(task => task.isOptional && !task.isAdmitted && task.pending > 0)
    if (unfit.length > 0) {
      for (const task of unfit) this.#drop(task)
      return this.#choose()
    }
    const shares = sharesOf(tasks.map(candidateOf), this.#limits.stepTokens)
    return shares.map(share => ({ task: tasks[share.place] as Task, share }))
  }

  /** Whether all tokens of a sequence have room beside what those that take part still need, and a block more for each. */
  #hasRoom({ log, computed, pending, prompt }: SequenceState): boolean {
    const { blockSize } = this.#cache
    const watermark = this.#tasks.reduce((sum, task) => sum + (task.isAdmitted ? 1 + Math.ceil(task.state.pending / blockSize) : 0), 0)
    if (computed > 0) return this.#cache.canAllocate(pending, { watermark })
    return this.#cache.canAllocate(log.view(), { ...prompt, watermark })
  }

  #part(task: Task, { tokens, drafts }: Share): Part {
    const { state } = task
    const drafted = drafts === 0 ? NOTHING_DRAFTED : task.drafted(drafts)
    return { task, tokens: state.log.copy(state.computed, state.computed + tokens), drafted, draft: undefined }
  }

  /** One step. Where it fails, each of its sequences is computed by itself. */
  async #step(parts: readonly Part[]): Promise<void> {
    const failure = await this.#tryStep(parts)
    if (failure === undefined) return
    const { error } = failure
    if (isKvTideError(error) && error.code === 'BUSY') return new Promise(resolve => setTimeout(resolve, BUSY_MS))
    const isFull = isKvTideError(error) && error.code === 'OUT_OF_BLOCKS'
    if ((isFull || parts.length === 1) && parts.some(({ drafted }) => drafted.tokens.length > 0)) return this.#step(parts.map(part => ({ ...part, drafted: NOTHING_DRAFTED })))
    if (isFull) return this.#makeRoom(error)
    if (parts.length === 1) return this.#drop((parts[0] as Part).task, this.#isEnded ? disposed() : error)
    for (const part of parts) {
      if (!part.task.isEnded && this.#tasks.includes(part.task) && part.task.isAdmitted) await this.#step([part])
    }
  }

  /** Takes the room of the youngest task away; one that is alone is refused. */
  #makeRoom(error: KvTideError): void {
    const admitted = this.#tasks.filter(task => task.isAdmitted)
    const oldest = admitted[0] as Task
    for (const task of admitted.slice(1).toReversed()) if (preempt(task)) return
    this.#drop(oldest, error)
  }

  /** Computes a step and draws from it; answers why it could not be computed. Then nothing has changed. */
  async #tryStep(asked: readonly Part[]): Promise<{ readonly error: unknown } | undefined> {
    const parts: Part[] = []
    const handles = asked.map(({ task }) => task.state.handle)
    let logits: NativeLogits | undefined
    let wanted: Wanted
    try {
      for (const part of asked) parts.push(withDraft(this.#shared, part))
      wanted = new Wanted(parts)
      using step = this.#cache.beginStep({ sequences: parts.map(({ task }) => task.state.sequence), offsets: [...wanted.offsets], tokens: wanted.ids })
      const { offsets, ids, positions, rows } = wanted
      const sequences = parts.map(({ task: { state } }) => ({ sequence: state.sequence, before: state.log.view(0, state.computed) }))
      for (const handle of handles) handle.isInStep = true
      logits = await this.#backend.run({ step, sequences, offsets, ids, positions, rows })
      step.commit()
    } catch (error) {
      for (const { draft } of parts) draft?.dispose()
      logits?.dispose()
      return { error }
    } finally {
      for (const handle of handles) handle.isInStep = false
    }
    try {
      for (const { task, tokens } of parts) task.state.computed += tokens.length
      await this.#draw(parts, wanted, logits)
    } catch (error) {
      for (const { task } of parts) if (this.#tasks.includes(task)) this.#drop(task, error)
    } finally {
      logits.dispose()
    }
    return undefined
  }

  /** Gives each task its logits, or the tokens that are drawn from them. */
  async #draw(parts: readonly Part[], { firstRows, rowCounts, firstPositions }: Wanted, logits: NativeLogits): Promise<void> {
    const draws: { readonly part: Part; readonly row: RowToDraw }[] = []
    for (const [place, part] of parts.entries()) {
      const [first, count] = [firstRows[place] as number, rowCounts[place] as number]
      if (count === 0) continue
      const row = part.task.toDraw(logits, first, part.drafted)
      if (row === undefined) part.task.take(logits, first, firstPositions[place] as number, count)
      else draws.push({ part, row })
    }
    if (draws.length === 0) return
    const drawn = await drawTokens(draws.map(({ row }) => row))
    for (const [place, answer] of drawn.entries()) {
      const { part: { task, draft } } = draws[place] as (typeof draws)[number]
      const refused = refusalOf(() => {
        if (answer.tokens === undefined) throw answer.error
        const kept = task.accept(answer.tokens, answer.logprobs)
        const accepted = Math.min(kept, answer.tokens.length - 1)
        draft?.commit(1 + accepted)
        task.state.computed += accepted
      })
      if (refused === undefined) continue
      draft?.dispose()
      if (draft !== undefined) task.state.computed -= 1
      this.#drop(task, refused)
    }
  }
}

/** Tokens of a step, and which of them are wanted. */
class Wanted {
  readonly offsets: Int32Array
  readonly ids: Uint32Array
  readonly positions: Int32Array
  readonly rows: Int32Array
  /** For each part its first row, how many it has, and the position of the first. */
  readonly firstRows: number[] = []
  readonly rowCounts: number[] = []
  readonly firstPositions: number[] = []

  constructor(parts: readonly Part[]) {
    const lengths = parts.map(({ tokens, drafted }) => tokens.length + drafted.tokens.length)
    const total = lengths.reduce((sum, length) => sum + length, 0)
    this.offsets = new Int32Array(parts.length + 1)
    this.ids = new Uint32Array(total)
    this.positions = new Int32Array(total)
    const rows: number[] = []
    for (const [place, { task, tokens, drafted }] of parts.entries()) {
      const [start, length] = [this.offsets[place] as number, lengths[place] as number]
      const { computed } = task.state
      this.offsets[place + 1] = start + length
      this.ids.set(tokens, start)
      this.ids.set(drafted.tokens, start + tokens.length)
      for (let token = 0; token < length; token++) this.positions[start + token] = computed + token
      const first = Math.max(task.firstRow, computed)
      this.firstRows.push(rows.length)
      this.firstPositions.push(first)
      for (let position = first; position < computed + length; position++) rows.push(start + position - computed)
      this.rowCounts.push(Math.max(0, computed + length - first))
    }
    // Of a step in the middle of prompts nothing is wanted, but a graph gives at least one row.
    this.rows = Int32Array.from(rows.length === 0 ? [total - 1] : rows)
  }
}

function candidateOf(task: Task): { readonly pending: number; readonly isAdmitted: boolean; readonly drafts: number } {
  return {
    get pending() {
      return task.pending
    },
    get isAdmitted() {
      return task.isAdmitted
    },
    get drafts() {
      return task.draftsMax
    },
  }
}

/** Opens a transaction for drafted tokens. */
function withDraft(shared: SharedCache, part: Part): Part {
  return part.drafted.tokens.length === 0 ? part : { ...part, draft: openOn(shared, part.task.state.sequence.id, {}) }
}

function preempt(task: Task): boolean {
  if (!task.state.release()) return false
  task.isAdmitted = false
  return true
}

/** What a call throws; nothing where it does not. */
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
