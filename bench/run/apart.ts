// A lane in a process of its own. The parent names a module whose `start` makes the lane, and asks for one round after the other.
import { fork } from 'node:child_process'
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

/** Starts a lane, and waits until it is ready. */
export async function apart(module: URL, of: object): Promise<Child> {
  // It has the allocator that its users have: nobody else's lane leaves it anything.
  const { GLIBC_TUNABLES: _, ...env } = process.env
  const child = fork(fileURLToPath(import.meta.url), [module.href, JSON.stringify(of)], { env })
  const answer = (): Promise<number> =>
    new Promise((resolve, reject) => {
      const ended = (code: number | null): void => reject(new Error(`${module.href} ${JSON.stringify(of)} ended with ${code}`))
      child.once('exit', ended)
      child.once('message', nanoseconds => {
        child.off('exit', ended)
        resolve(Number(nanoseconds))
      })
    })
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
