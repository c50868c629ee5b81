import { Worker } from 'node:worker_threads'

import { KvTideError } from '../border/errors.js'
import { type CrossedError, uncrossed } from './crossed-error.js'
import { ExitGate } from './exit-gate.js'
import { computeLent, openSessions } from './open-sessions.js'
import { isAtLeast } from './runtime.js'
import type { SessionsModel, SessionStep } from './sessions.js'

/**
 * Where sessions of onnxruntime-node are: on a worker thread of their own, since a call of theirs holds its thread up for as long as it takes.
 *
 * ```text
 * this thread   open ----------.    step, the run's number ---.                        end ---.
 * the worker                    '-> sessions                   '-> every layer, logits         '-> released; it ends
 * ```
 * The worker keeps the process alive only while it has something to do. It ends by itself: one that is ended in the middle of a call of
 * onnxruntime-node takes the process along, which `exit-gate.ts` is for.
 *
 * Before 1.22, onnxruntime-node has objects of JavaScript that all threads share, and a second thread with it ends the process. Its sessions
 * are on this thread then, and hold it up.
 */

/** The first version that several threads may load. */
const THREADS_MINOR = 22

/** @internal Sessions, wherever they are. */
export interface SessionHost {
  /** Computes a step whose run has this number. The run is back when the promise is settled. */
  compute(run: number, step: SessionStep): Promise<void>
  /** Releases them, once nothing is computed. A second time does nothing. */
  end(): Promise<void>
}

/** @internal What a worker is asked for, one thing at a time. */
export type SessionRequest =
  | { readonly open: SessionsModel }
  | { readonly run: number; readonly step: SessionStep }
  | { readonly end: true }

/** @internal What it answers: nothing, or why it was refused. */
export interface SessionAnswer {
  readonly error?: CrossedError
}

/** @internal Opens sessions. */
export async function sessionHost(model: SessionsModel): Promise<SessionHost> {
  return isAtLeast(model.runtime.version, THREADS_MINOR) ? SessionWorker.open(model) : sessionsHere(model)
}

async function sessionsHere(model: SessionsModel): Promise<SessionHost> {
  const sessions = await openSessions(model, async call => call())
  let ended: Promise<void> | undefined
  return { compute: (run, step) => computeLent(sessions, run, step), end: () => (ended ??= sessions.release()) }
}

/** What the worker runs: the sources need tsx there, too. */
function program(): string {
  const isSource = import.meta.url.endsWith('.ts')
  const start = `import(${JSON.stringify(new URL(`./session-worker.${isSource ? 'ts' : 'js'}`, import.meta.url).href)})`
  return isSource ? `import(${JSON.stringify(import.meta.resolve('tsx/esm/api'))}).then(({ register }) => { register(); return ${start} })` : start
}

/** @internal Sessions on a worker thread. */
export class SessionWorker implements SessionHost {
  readonly #worker: Worker
  readonly #gate = new ExitGate()
  #waiting: { resolve(): void; reject(error: unknown): void } | undefined
  /** Why there is no worker any more. */
  #gone: string | undefined
  #ended: Promise<void> | undefined
  #asked: Promise<void> = Promise.resolve()
  readonly #exit: Promise<void>

  /** `text` is what the worker runs. */
  constructor(text: string = program()) {
    this.#worker = new Worker(text, { eval: true, workerData: this.#gate.memory })
    this.#worker.on('message', ({ error }: SessionAnswer) => this.#settle(error === undefined ? undefined : uncrossed(error)))
    this.#worker.on('error', cause => {
      this.#gone = cause instanceof Error ? cause.message : String(cause)
    })
    this.#exit = new Promise(resolve => {
      this.#worker.on('exit', () => {
        this.#gate.forget()
        this.#gone ??= 'it was ended'
        this.#settle(this.#lost())
        resolve()
      })
    })
    this.#worker.unref()
  }

  static async open(model: SessionsModel): Promise<SessionWorker> {
    const host = new SessionWorker()
    try {
      await host.ask({ open: model })
      return host
    } catch (error) {
      await host.end()
      throw error
    }
  }

  compute(run: number, step: SessionStep): Promise<void> {
    return this.ask({ run, step })
  }

  end(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  /** Asks for one thing, behind what was asked before; refused with `RUNTIME_FAILED` where the worker has ended, or ends meanwhile. */
  ask(request: SessionRequest): Promise<void> {
    const asked = this.#asked.then(() => this.#send(request))
    this.#asked = asked.catch(() => undefined)
    return asked
  }

  async #send(request: SessionRequest): Promise<void> {
    if (this.#gone !== undefined) throw this.#lost()
    this.#worker.ref()
    try {
      await new Promise<void>((resolve, reject) => {
        this.#waiting = { resolve, reject }
        this.#worker.postMessage(request, [])
      })
    } finally {
      this.#worker.unref()
    }
  }

  async #end(): Promise<void> {
    await this.ask({ end: true }).catch(() => undefined)
    this.#worker.ref()
    await this.#exit
  }

  #settle(error: unknown): void {
    const waiting = this.#waiting
    this.#waiting = undefined
    if (error === undefined) waiting?.resolve()
    else waiting?.reject(error)
  }

  #lost(): KvTideError<'RUNTIME_FAILED'> {
    const reason = `the thread with its sessions has ended: ${this.#gone}`
    return new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason })
  }
}
