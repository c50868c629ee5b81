// A lane in a process of its own. The parent names a module whose `start` makes the lane, and asks for one round after the other.
import { fork, type ChildProcess } from 'node:child_process'
import type { EventEmitter } from 'node:events'
import { fileURLToPath } from 'node:url'

import { pause } from './rounds.js'

/** A lane as its module makes it. */
export interface Apart {
  /** Not timed; other lanes' threads have ended their search for work. */
  readonly before?: () => void | Promise<void>
  readonly round: () => Promise<void>
}

/** The same as its parent has it. */
export interface Child {
  /** The nanoseconds of a round. */
  round(): Promise<number>
  end(): void
}

/** The nanoseconds that a process says next, by an event of its own or of what reads from it; refused when it ends before. */
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
  // It has the allocator that its users have: nobody else's lane leaves it anything.
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
    // Threads of other lanes look for work for a while.
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
if (process.send !== undefined && file === fileURLToPath(import.meta.url) && module !== undefined && of !== undefined) await serve(module, of)
