// Prompts that start alike and arrive together: the first of them computes the start that they have in common, and the others wait for it and find it cached.
//
//     keys of blocks    task 0    a b c d e      computes
//                       task 1    a b c x        waits until task 0 has computed c, then starts behind it
//                       task 2    y z            computes beside task 0
//
// The key of a block covers all tokens before it, and salts and extras, so equal keys are equal starts. A task waits only for one that arrived before it, which
// computes tokens in this step, and never longer than computing the common start takes. A task that has begun waits no more. O(blocks of prompts) in rounds in which
// a prompt has not begun.
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { Cuts } from './cuts.js'
import type { Task } from './task.js'

/** A task that was admitted, and the last time that its prompt was looked up. */
interface Lookup {
  readonly round: number
  readonly computed: number
}

/** The keys of a prompt. They depend on its rotary factors as well. */
interface Keys {
  readonly isLong: boolean
  readonly keys: readonly string[]
}

/** @internal The tasks that wait for the start of their prompt. */
export class CommonStarts {
  readonly #cache: Pick<PagedKvCache, 'blockSize' | 'keys'>
  readonly #cuts: Cuts
  readonly #lookups = new WeakMap<Task, Lookup>()
  readonly #keys = new WeakMap<Task, Keys>()
  #waiting: ReadonlySet<Task> = new Set()
  #round = 0

  constructor(cache: Pick<PagedKvCache, 'blockSize' | 'keys'>, cuts: Cuts) {
    this.#cache = cache
    this.#cuts = cuts
  }

  /** Takes over the cached prefix of a task that is admitted, or that begins. */
  find(task: Task): void {
    task.state.resume(task.firstRow + 1)
    this.#cuts.place(task)
    this.#lookups.set(task, { round: this.#round, computed: task.state.computed })
  }

  isWaiting(task: Task): boolean {
    return this.#waiting.has(task)
  }

  /** Decides which tasks wait in the next step. Prompts that begin in it are looked up once more: others may have computed a part of them since their admission. */
  update(tasks: readonly Task[]): void {
    const prompts = tasks.filter(task => task.isAdmitted && task.pending > 1)
    const waiting = new Set<Task>()
    const owners = new Map<string, Task>()
    const isShared = prompts.some((task, place) => place > 0 && this.#isNew(task))
    for (const [place, task] of prompts.entries()) {
      if (this.#isNew(task)) {
        if (place > 0 && this.#awaits(task, owners)) {
          waiting.add(task)
          continue
        }
        if (this.#lookups.get(task)?.round !== this.#round) this.find(task)
      }
      if (isShared && !task.state.hasTransaction) this.#own(task, owners)
    }
    this.#waiting = waiting
    this.#round += 1
  }

  /** True if none of its tokens was computed since its prompt was looked up. */
  #isNew(task: Task): boolean {
    return this.#lookups.get(task)?.computed === task.state.computed
  }

  /** True if a task before it computes blocks that it lacks. If layers keep states, those behind the blocks are kept for it. */
  #awaits(task: Task, owners: ReadonlyMap<string, Task>): boolean {
    const { blockSize } = this.#cache
    const { state, firstRow } = task
    if (owners.size === 0 || state.prefix(firstRow + 1) === undefined) return false
    const keys = this.#keysOf(task).slice(0, Math.floor(firstRow / blockSize))
    const blocks = keys.findLastIndex(key => owners.has(key)) + 1
    if (blocks * blockSize <= state.computed) return false
    this.#cuts.add(owners.get(keys[blocks - 1] as string) as Task, blocks * blockSize)
    return true
  }

  /** Notes the blocks that a task is going to compute. */
  #own(task: Task, owners: Map<string, Task>): void {
    const first = Math.floor(task.state.computed / this.#cache.blockSize)
    for (const key of this.#keysOf(task).slice(first)) if (!owners.has(key)) owners.set(key, task)
  }

  #keysOf(task: Task): readonly string[] {
    const { isLong, log, names } = task.state
    const known = this.#keys.get(task)
    if (known !== undefined && known.isLong === isLong) return known.keys
    const keys = this.#cache.keys(log.view(), names)
    this.#keys.set(task, { isLong, keys })
    return keys
  }
}
