// Rounds of the same work in Rust, in a process of their own that runs and times one when it is asked to: see
// bench/peers/src/paged_step.rs.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createInterface } from 'node:readline'

import { PEERS } from '../run/suites.js'

export interface RustSteps {
  round(): Promise<number>
  end(): void
}

export function rustSteps(steps: number): RustSteps | undefined {
  if (!existsSync(PEERS)) return undefined
  const child = spawn(PEERS, ['--paged-step', String(steps)], { stdio: ['pipe', 'pipe', 'inherit'] })
  const answers = createInterface({ input: child.stdout })
  return {
    round: () =>
      new Promise((resolve, reject) => {
        const ended = (): void => reject(new Error(`${PEERS} ended`))
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
