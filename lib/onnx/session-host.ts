// The session thread: sessions of onnxruntime-node are on a worker thread of their own, since each of their calls blocks its thread.
//
//     this thread   open ----------.    step, the run's number ---.                        end ---.
//     the worker                    '-> sessions                   '-> every layer, logits         '-> released; it ends
//
// The worker keeps the process alive only while it has work. It ends by itself: if it were terminated during a call of onnxruntime-node, the process would
// crash, which exit-gate.ts prevents.
//
// Before 1.22, all threads share JavaScript objects of onnxruntime-node, and using it in two threads can crash the process. With such a version, the
// sessions are on this thread, and block it. Versions 1.22 to 1.24 cannot be loaded again once the last thread that had loaded them has ended: this thread
// loads them too.
import { existsSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { Worker } from 'node:worker_threads'

import { KvTideError, messageOf } from '../errors/errors.js'
import { here, packageFolder } from '../loading/projects.js'
import { type CrossedError, uncrossed } from './crossed-error.js'
import { ExitGate } from './exit-gate.js'
import { computeLent, openSessions } from './open-sessions.js'
import { isAtLeast, onnxRuntime, RELOADED_MINOR } from './runtime.js'
import type { SentTensor, Sessions, SessionsModel, SessionStep } from './sessions.js'

/** The first version that several threads may load. */
const THREADS_MINOR = 22

/** @internal Sessions, on a worker thread or on this one. */
export interface SessionHost {
  /** As in `Sessions`. */
  readonly isPruned: boolean
  /** Computes a step with the run of this number. The run is returned before the promise settles. */
  compute(run: number, step: SessionStep): Promise<void>
  /** Runs an encoder. */
  encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor>
  /** Releases the sessions, once nothing is computed. A second call does nothing. */
  end(): Promise<void>
}

/** @internal A request to the worker. It gets one at a time. */
export type SessionRequest =
  | { readonly open: SessionsModel }
  | { readonly run: number; readonly step: SessionStep }
  | { readonly encode: Readonly<Record<string, SentTensor>> }
  | { readonly end: true }

/** @internal The worker's answer: the error, if it refused the request. */
export interface SessionAnswer {
  readonly error?: CrossedError
  readonly isPruned?: boolean
  readonly encoded?: SentTensor
}

/** @internal Opens sessions. */
export async function sessionHost(model: SessionsModel): Promise<SessionHost> {
  const { runtime } = model
  if (!isAtLeast(runtime.version, THREADS_MINOR)) return sessionsHere(model)
  if (!isAtLeast(runtime.version, RELOADED_MINOR)) onnxRuntime(runtime)
  return SessionWorker.open(model)
}

async function sessionsHere(model: SessionsModel): Promise<SessionHost> {
  const sessions = (await openSessions(model, async call => call())) as Required<Sessions>
  let ended: Promise<void> | undefined
  return {
    get isPruned() {
      return sessions.isPruned
    },
    compute: (run, step) => computeLent(sessions, run, step),
    encode: inputs => sessions.encode(inputs),
    end: () => (ended ??= sessions.release()),
  }
}

/** The compiled program in a checkout; `undefined` if a source is newer. A thread starts four times as fast with it as with TypeScript. */
function compiledFile(): URL | undefined {
  const [sources, compiled] = [new URL('../', here), new URL('../../dist/lib/onnx/session-worker.js', here)]
  if (!existsSync(compiled)) return undefined
  const names = readdirSync(sources, { recursive: true, encoding: 'utf8' }).filter(name => name.endsWith('.ts'))
  const made = statSync(compiled).mtimeMs
  return names.every(name => statSync(new URL(name, sources)).mtimeMs < made) ? compiled : undefined
}

/** The worker's program: next to this file, or in the package if a bundler has moved this file. */
function workerFile(): string {
  const isSource = here.endsWith('.ts')
  const name = `session-worker.${isSource ? 'ts' : 'js'}`
  const beside = new URL(`../onnx/${name}`, here)
  if (existsSync(beside)) return ((isSource ? compiledFile() : undefined) ?? beside).href
  const folder = packageFolder()
  const inside = folder === undefined ? undefined : join(folder, 'dist', 'lib', 'onnx', name)
  if (inside !== undefined && existsSync(inside)) return pathToFileURL(inside).href
  const reason = `the program of its worker thread is not at ${fileURLToPath(beside)}, and the package kvtide is not installed: keep kvtide out of the bundle`
  throw new KvTideError('RUNTIME_UNAVAILABLE', `onnxruntime-node cannot be used: ${reason}`, {
    runtime: 'onnxruntime-node',
    reason,
  })
}

/** The module that lets a thread run TypeScript, in a checkout only. The name is assembled, because bundlers would resolve it. */
const READER = ['tsx', 'esm', 'api'].join('/')

/** @internal The code that the worker runs: it queues messages until its modules are loaded, and then listens. In a checkout it needs tsx, too. */
export function program(): string {
  const file = workerFile()
  const start = `import(${JSON.stringify(file)})`
  const reader = file.endsWith('.ts')
    ? `import(${JSON.stringify(import.meta.resolve(READER))}).then(({ register }) => { register(); return ${start} })`
    : start
  return `
    const keep = ({ parentPort }) => {
      const early = []
      const take = request => early.push(request)
      parentPort.on('message', take)
      return ${reader}.then(({ listen }) => (listen(early), parentPort.off('message', take)))
    }
    // A process that runs a module by --eval has its threads run modules as well.
    typeof require === 'function' ? keep(require('node:worker_threads')) : import('node:worker_threads').then(keep)`
}

/** @internal Sessions on a worker thread. */
export class SessionWorker implements SessionHost {
  readonly #worker: Worker
  readonly #gate = new ExitGate()
  #isPruned = false
  #waiting: { resolve(answer: SessionAnswer): void; reject(error: unknown): void } | undefined
  /** The reason why the worker has ended. */
  #gone: string | undefined
  #ended: Promise<void> | undefined
  #asked: Promise<unknown> = Promise.resolve()
  readonly #exit: Promise<void>

  /** `text` is the worker's code. */
  constructor(text: string = program()) {
    this.#worker = new Worker(text, { eval: true, workerData: this.#gate.memory })
    this.#worker.on('message', (answer: SessionAnswer) => {
      const { error, isPruned = false } = answer
      this.#isPruned = isPruned
      this.#settle(error === undefined ? undefined : uncrossed(error), answer)
    })
    this.#worker.on('error', cause => {
      this.#gone = messageOf(cause)
    })
    this.#exit = new Promise(resolve => {
      this.#worker.on('exit', () => {
        this.#gate.forget()
        this.#gone ??= 'it exited'
        this.#settle(this.#lost())
        resolve()
      })
    })
    this.#worker.unref()
  }

  get isPruned(): boolean {
    return this.#isPruned
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

  async compute(run: number, step: SessionStep): Promise<void> {
    await this.ask({ run, step })
  }

  async encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    const { encoded } = await this.ask({ encode: inputs })
    return encoded as SentTensor
  }

  end(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  /** Sends a request after earlier ones were answered. Refused with `RUNTIME_FAILED` if the worker has ended, or ends meanwhile. */
  ask(request: SessionRequest): Promise<SessionAnswer> {
    const asked = this.#asked.then(() => this.#send(request))
    this.#asked = asked.catch(() => undefined)
    return asked
  }

  async #send(request: SessionRequest): Promise<SessionAnswer> {
    if (this.#gone !== undefined) throw this.#lost()
    this.#worker.ref()
    try {
      return await new Promise<SessionAnswer>((resolve, reject) => {
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

  #settle(error: unknown, answer: SessionAnswer = {}): void {
    const waiting = this.#waiting
    this.#waiting = undefined
    if (error === undefined) waiting?.resolve(answer)
    else waiting?.reject(error)
  }

  #lost(): KvTideError<'RUNTIME_FAILED'> {
    const reason = `the thread of its sessions has ended: ${this.#gone}`
    return new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason })
  }
}
