// Rounds of the same work in Rust, in a process of their own that runs and times one when it is asked to: see
// bench/peers/src/paged_step.rs.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const PROGRAM = join(fileURLToPath(new URL('.', import.meta.url)), 'peers', 'target', 'release', process.platform === 'win32' ? 'kvtide-peers.exe' : 'kvtide-peers')

export interface RustSteps {
  /** Answers its nanoseconds. */
  round(): Promise<number>
  end(): void
}

/** Rounds of so many steps; `undefined` when bench/peers is not built. */
export function rustSteps(steps: number): RustSteps | undefined {
  if (!existsSync(PROGRAM)) return undefined
  const child = spawn(PROGRAM, ['--paged-step', String(steps)], { stdio: ['pipe', 'pipe', 'inherit'] })
  const answers = createInterface({ input: child.stdout })
  return {
    round: () =>
      new Promise((resolve, reject) => {
        const ended = (): void => reject(new Error(`${PROGRAM} ended`))
        child.once('exit', ended)
        answers.once('line', line => {
          child.off('exit', ended)
          resolve(Number(line))
        })
        child.stdin.write('\n')
      }),
    end: () => child.stdin.end(),
  }
}
