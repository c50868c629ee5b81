// A redis-server of a workload's own: in memory, on the loopback, on a port that is free.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'

const SERVERS = ['redis-server', 'valkey-server']

const server = SERVERS.find(name => spawnSync(name, ['--version']).status === 0)

/** Why a workload that needs one is skipped; nothing where there is one. */
export const missing: string | undefined = server === undefined ? `${SERVERS.join(' or ')} is not installed` : undefined

async function freePort(): Promise<number> {
  const listening = createServer()
  await new Promise<void>(resolve => listening.listen(0, '127.0.0.1', resolve))
  const { port } = listening.address() as AddressInfo
  await new Promise(resolve => listening.close(resolve))
  return port
}

/** One that runs. */
export class Redis {
  readonly url: string
  readonly #process: ChildProcess

  private constructor(port: number, started: ChildProcess) {
    this.url = `redis://127.0.0.1:${port}`
    this.#process = started
  }

  static async start(): Promise<Redis> {
    const port = await freePort()
    const started = spawn(server as string, ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--dir', tmpdir()], { stdio: ['ignore', 'pipe', 'ignore'] })
    await new Promise<void>((resolve, reject) => {
      started.once('exit', code => reject(new Error(`${server} ended with ${code}`)))
      started.stdout.on('data', (text: Buffer) => {
        if (text.includes('Ready to accept connections')) resolve()
      })
    })
    return new Redis(port, started)
  }

  /** Stops answering; its connections stay open. */
  stop(): void {
    this.#process.kill('SIGSTOP')
  }

  /** Ends at once. */
  async end(): Promise<void> {
    const ended = new Promise(resolve => this.#process.once('exit', resolve))
    this.#process.kill('SIGKILL')
    await ended
  }
}
