// Starts a private redis-server for workloads and tests: in memory, on the loopback, on a free port.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'

const SERVERS = ['redis-server', 'valkey-server']

const server = SERVERS.find(name => spawnSync(name, ['--version']).status === 0)

/** The reason why workloads that need redis-server are skipped, or undefined if it is installed. */
export const missing: string | undefined = server === undefined ? `${SERVERS.join(' or ')} is not installed` : undefined

export async function freePort(): Promise<number> {
  const listening = createServer()
  await new Promise<void>(resolve => listening.listen(0, '127.0.0.1', resolve))
  const { port } = listening.address() as AddressInfo
  await new Promise(resolve => listening.close(resolve))
  return port
}

/** Suspends a process or resumes it. On Linux, waits until none of its threads runs any more, because until then it may answer. */
export async function signal(running: ChildProcess | undefined, name: 'SIGSTOP' | 'SIGCONT'): Promise<void> {
  running?.kill(name)
  const tasks = `/proc/${running?.pid}/task`
  if (name === 'SIGCONT' || !existsSync(tasks)) return
  const isStopped = (task: string): boolean => /\) [Tt] /.test(readFileSync(join(tasks, task, 'stat'), 'utf8'))
  while (!readdirSync(tasks).every(isStopped)) await setTimeout(1)
}

/** A running server. */
export class Redis {
  readonly url: string
  readonly #port: number
  readonly #folder: string
  #process: ChildProcess | undefined

  private constructor(port: number, folder: string) {
    this.#port = port
    this.#folder = folder
    this.url = `redis://127.0.0.1:${port}`
  }

  static async start(...settings: string[]): Promise<Redis> {
    const redis = new Redis(await freePort(), await mkdtemp(join(tmpdir(), 'kvtide-redis-')))
    await redis.run(...settings)
    return redis
  }

  async run(...settings: string[]): Promise<void> {
    const own = ['--port', String(this.#port), '--bind', '127.0.0.1', '--save', '', '--dir', this.#folder, ...settings]
    const started = spawn(server as string, own, { stdio: ['ignore', 'pipe', 'ignore'] })
    this.#process = started
    await new Promise<void>((resolve, reject) => {
      started.once('exit', code => reject(new Error(`${server} ended with ${code}`)))
      started.stdout.on('data', (text: Buffer) => {
        if (text.includes('Ready to accept connections')) resolve()
      })
    })
  }

  /** Suspends the server, or resumes it. */
  signal(name: 'SIGSTOP' | 'SIGCONT'): Promise<void> {
    return signal(this.#process, name)
  }

  async kill(): Promise<void> {
    const running = this.#process
    this.#process = undefined
    if (running === undefined) return
    const ended = new Promise(resolve => running.once('exit', resolve))
    running.kill('SIGKILL')
    await ended
  }

  async stop(): Promise<void> {
    await this.kill()
    await rm(this.#folder, { recursive: true, force: true })
  }
}
