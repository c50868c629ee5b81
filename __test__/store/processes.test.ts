// Processes that share a folder and a Redis that is too small, while some are stopped or killed and one has a bad connection to Redis. Every row that a match
// finds is checked, and none is ever wrong.
import { type ChildProcess, fork } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

import { BrokenProxy } from '../support/broken-proxy.js'
import { Redis, withRedis } from '../support/redis.js'
import { Computing, type Progress, type Work } from '../support/tiered-process.js'

const SCRIPT = fileURLToPath(new URL('../support/tiered-process.ts', import.meta.url))
const ROUNDS = 3
const PROMPTS = 20
const LIMIT_MS = 60_000

/** A process that computes prompts, and that can be killed and started again. */
class Running {
  readonly #work: Work
  #process: ChildProcess
  #ended: Promise<{ code: number | null; signal: string | null }>
  #said = ''
  progress: Progress = { prompts: 0, found: 0, brought: 0 }
  /** The blocks restored by earlier processes. */
  brought = 0

  constructor(work: Work) {
    this.#work = work
    ;[this.#process, this.#ended] = this.#start()
  }

  #start(): [ChildProcess, Promise<{ code: number | null; signal: string | null }>] {
    const started = fork(SCRIPT, [JSON.stringify(this.#work)], {
      execArgv: ['--import=tsx'],
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    })
    started.on('message', said => (this.progress = said as Progress))
    started.stderr?.on('data', chunk => (this.#said += String(chunk)))
    return [started, new Promise(resolve => started.once('exit', (code, signal) => resolve({ code, signal })))]
  }

  /** Waits until it has computed this many more prompts. */
  async computes(more: number): Promise<void> {
    const { prompts } = this.progress
    for (const start = performance.now(); this.progress.prompts < prompts + more; await setTimeout(5)) {
      if (this.#process.exitCode !== null) throw new Error(`it ended with ${this.#process.exitCode}: ${this.#said}`)
      if (performance.now() - start > LIMIT_MS)
        throw new Error(`it is stuck after ${this.progress.prompts} prompts: ${this.#said}`)
    }
  }

  signal(name: 'SIGSTOP' | 'SIGCONT'): void {
    this.#process.kill(name)
  }

  async restart(): Promise<void> {
    this.#process.kill('SIGKILL')
    await this.#ended
    this.brought += this.progress.brought
    this.progress = { prompts: 0, found: 0, brought: 0 }
    ;[this.#process, this.#ended] = this.#start()
  }

  /** Stops it, and returns its code and its output. */
  async stop(): Promise<{ code: number | null; said: string }> {
    this.#process.send('stop')
    const { code } = await this.#ended
    return { code, said: this.#said }
  }

  kill(): void {
    this.#process.kill('SIGKILL')
  }
}

for (const secret of [undefined, 'ab'.repeat(32)]) {
  withRedis.serial(
    `processes that are stopped, killed and lied to find no wrong row, ${secret === undefined ? 'without' : 'with'} a secret`,
    async t => {
      const seed = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
      t.log(`KVTIDE_SEED=${seed}`)
      let state = seed
      const below = (limit: number): number => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0
        return Math.floor((state / 2 ** 32) * limit)
      }
      const folder = await mkdtemp(join(tmpdir(), 'kvtide-processes-'))
      t.teardown(() => rm(folder, { recursive: true, force: true, maxRetries: 20 }))
      const redis = await Redis.start('--maxmemory', '3mb', '--maxmemory-policy', 'allkeys-lru')
      t.teardown(() => redis.stop())
      const proxy = await BrokenProxy.start(Number(new URL(redis.url).port), below)
      t.teardown(() => proxy.stop())
      const work = (url: string, more: number): Work => ({
        folder,
        url,
        seed: seed + more,
        ...(secret === undefined ? {} : { secret }),
      })
      const lied = new Running(work(`redis://127.0.0.1:${proxy.port}`, 1))
      const told = new Running(work(redis.url, 2))
      t.teardown(() => [lied, told].forEach(running => running.kill()))
      await Promise.all([lied.computes(PROMPTS), told.computes(PROMPTS)])
      for (let round = 0; round < ROUNDS; round++) {
        const [stopped, other] = round % 2 === 0 ? [lied, told] : [told, lied]
        stopped.signal('SIGSTOP')
        await other.computes(PROMPTS)
        stopped.signal('SIGCONT')
        if (round === 1) await other.restart()
        await Promise.all([lied.computes(PROMPTS), told.computes(PROMPTS)])
      }
      for (const running of [lied, told]) t.deepEqual(await running.stop(), { code: 0, said: '' })
      // A later process, which has only the folder.
      const after = new Computing({ folder, seed: seed + 3 })
      for (let turn = 0; turn < 50; turn++) await after.step()
      t.true(after.progress.brought > 0)
      t.true(await after.cache.flush(LIMIT_MS))
      after.dispose()
      t.log(
        `${JSON.stringify(proxy.broken)}, blocks brought: ${lied.brought + lied.progress.brought}, ${told.brought + told.progress.brought}`,
      )
      t.true(lied.brought + lied.progress.brought > 0 && told.brought + told.progress.brought > 0)
    },
  )
}
