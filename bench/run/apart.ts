// Runs a lane in a separate process. The parent names a module whose `start` makes the lane, and requests one round after the other.
import { fork, type ChildProcess } from 'node:child_process'
import type { EventEmitter } from 'node:events'
import { fileURLToPath } from 'node:url'

import { pause } from '../../lib/cli/rounds.js'

/** A lane in the child process, as its module makes it. */
export interface Apart {
  /** Not timed. By then, the threads of other lanes have stopped polling for work. */
  readonly before?: () => void | Promise<void>
  readonly round: () => Promise<void>
}

/** The same lane as its parent sees it. */
export interface Child {
  /** Runs a round and returns its nanoseconds. */
  round(): Promise<number>
  end(): void
}

/** Waits for the next number of nanoseconds from a process, in an event of `from`. Rejects if the process ends first. */
export function nextAnswer(child: ChildProcess, from: EventEmitter, event: string, what: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const ended = (code: number | null): void => reject(new Error(`${what} ended with ${code}`))
    child.once('exit', ended)
    from.once(event, nanoseconds => {
      child.off('exit', ended)
      resolve(Number(nanoseconds))
    })
  })
}

/** Starts a lane, and waits until it is ready. */
export async function apart(module: URL, of: object): Promise<Child> {
  // It runs with its default allocator: it shares its process with no other lane.
  const { GLIBC_TUNABLES: _, ...env } = process.env
  const child = fork(fileURLToPath(import.meta.url), [module.href, JSON.stringify(of)], { env })
  const answer = (): Promise<number> => nextAnswer(child, child, 'message', `${module.href} ${JSON.stringify(of)}`)
  await answer()
  return {
    round: () => {
      const round = answer()
      child.send('round')
      return round
    },
    end: () => child.disconnect(),
  }
}

async function serve(module: string, of: string): Promise<void> {
  const { start } = (await import(module)) as { start(of: object): Promise<Apart> }
  const { before, round } = await start(JSON.parse(of) as object)
  const timed = async (): Promise<void> => {
    // Threads of other lanes poll for work for a while.
    pause()
    await before?.()
    const begun = process.hrtime.bigint()
    await round()
    process.send?.(Number(process.hrtime.bigint() - begun))
  }
  process.on('message', () => void timed())
  process.once('disconnect', () => process.exit())
  process.send?.(0)
}

const [, file, module, of] = process.argv
if (process.send !== undefined && file === fileURLToPath(import.meta.url) && module !== undefined && of !== undefined)
  await serve(module, of)
