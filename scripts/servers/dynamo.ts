import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'

import { freePort, signal } from './redis.js'

const folder = process.env['KVTIDE_DYNAMO_PYTHON']
const python = folder === undefined ? 'python3' : join(folder, 'python3')

/** The reason why tests that need Dynamo's indexer are skipped, or undefined if it is installed. `KVTIDE_DYNAMO_PYTHON` is the folder of a python that has it. */
export const missing: string | undefined =
  spawnSync(python, ['-c', 'import dynamo.indexer.main']).status === 0
    ? undefined
    : 'ai-dynamo-runtime is not installed'

/** Dynamo's indexer on a port of this machine. */
export class Indexer {
  readonly url: string
  readonly #process: ChildProcess

  private constructor(url: string, running: ChildProcess) {
    this.url = url
    this.#process = running
  }

  static async start(port?: number): Promise<Indexer> {
    const own = port ?? (await freePort())
    const running = spawn(python, ['-m', 'dynamo.indexer', '--port', String(own)], { stdio: 'ignore' })
    const indexer = new Indexer(`http://127.0.0.1:${own}`, running)
    for (const start = performance.now(); performance.now() - start < 60_000; await setTimeout(50)) {
      if (running.exitCode !== null) break
      if (
        await fetch(`${indexer.url}/health`).then(
          ({ ok }) => ok,
          () => false,
        )
      )
        return indexer
    }
    await indexer.stop()
    throw new Error('the indexer does not answer')
  }

  get port(): number {
    return Number(new URL(this.url).port)
  }

  /** Stops the process, or lets it continue. */
  signal(name: 'SIGSTOP' | 'SIGCONT'): Promise<void> {
    return signal(this.#process, name)
  }

  async stop(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    const ended = new Promise(resolve => this.#process.once('exit', resolve))
    this.#process.kill('SIGKILL')
    await ended
  }
}
