import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { binding } from '../loading/binding.js'
import type { PagedKvCache } from '../sequences/paged-kv-cache.js'
import { StepRun } from '../sequences/step-run.js'
import type { Backend, BackendName, ModelStep } from './backend.js'
import { KeptPresents } from './kept-presents.js'
import { isAtLeast, onnxPackage } from './runtime.js'
import { type SessionHost, sessionHost } from './session-host.js'
import type { SessionsModel } from './sessions.js'

/** The first version of onnxruntime that takes a folder for the weights of a model that is given as bytes. */
const FOLDER_MINOR = 21

/** Models that were lost without being disposed of: their sessions end as well. */
const lost = new FinalizationRegistry<SessionHost>(host => void host.end())

/**
 * @internal A model in sessions of onnxruntime-node: in parts, or as it is. A step is one message to the thread that has them: it takes the
 * step's run, and does everything by itself.
 */
export class SessionBackend implements Backend {
  readonly name: BackendName
  readonly #host: SessionHost
  readonly #presents: KeptPresents | undefined

  private constructor(name: BackendName, host: SessionHost, presents: KeptPresents | undefined) {
    this.name = name
    this.#host = host
    this.#presents = presents
    lost.register(this, host, this)
  }

  /** The parts of a graph. */
  static async parts(graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten, threads: number): Promise<SessionBackend> {
    const common = commonOf(threads)
    const host = await opened(rewritten.share(), number => ({ kind: 'parts', rewritten: number, path: graph.path, ...common }))
    return new SessionBackend('parts', host, undefined)
  }

  /** A graph as it is, over a cache with its layers. */
  static async plain(graph: NativeOnnxGraph, cache: PagedKvCache, threads: number): Promise<SessionBackend> {
    const common = commonOf(threads)
    const { groups, dtype, keyFormat, valueFormat } = cache
    const facts = { groups: groups.map(group => ({ ...group })), dtype, keyFormat, valueFormat }
    const host = await opened(graph.share(), number => ({ kind: 'plain', graph: number, cache: facts, ...common }))
    return new SessionBackend('plain', host, new KeptPresents())
  }

  async run(step: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step.step)
    const { offsets, ids, positions, rows } = step
    const presents = this.#presents?.of(step)
    const number = run.share()
    try {
      await this.#host.compute(number, { offsets, ids, positions, rows, ...(presents === undefined ? {} : { pasts: presents.pasts }) })
      run.end()
      const logits = run.logits()
      presents?.done()
      return logits
    } catch (error) {
      presents?.failed()
      throw error
    } finally {
      binding.unshare(number)
    }
  }

  async dispose(): Promise<void> {
    lost.unregister(this)
    await this.#host.end()
  }
}

function commonOf(threads: number) {
  const { version, folder } = onnxPackage()
  return { runtime: { version, folder }, threads, takesFolder: isAtLeast(version, FOLDER_MINOR) }
}

/** Sessions of what was shared under a number. */
async function opened(number: number, model: (number: number) => SessionsModel): Promise<SessionHost> {
  try {
    return await sessionHost(model(number))
  } finally {
    binding.unshare(number)
  }
}
