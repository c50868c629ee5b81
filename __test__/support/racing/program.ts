// Runs random programs in a process of its own, which ends in the middle of its work, or in worker threads, which are terminated in the middle of theirs.
import { once } from 'node:events'
import { setTimeout } from 'node:timers/promises'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'

import { memoryStats } from '../../../index.js'
import { tsxUrl } from '../packaging/child.js'
import { Chance } from './rows.js'
import { Racing } from './racing.js'

/** The end of a process: by `process.exit`, by an error that nothing catches, not by itself, or after its workers were terminated. */
export type Ending = 'exit' | 'throw' | 'never' | 'workers'

/** The task of a process. */
export interface Task {
  readonly folder: string
  readonly seed: number
  readonly ending: Ending
  readonly rounds?: number
}

/** Runs programs one after the other, and tells when the first one is in the middle of its work. */
async function forever({ folder, seed }: Task, tell: () => void): Promise<never> {
  for (let program = seed; ; program++) {
    const racing = new Racing(program, folder)
    for (let step = 0; step < 60; step++) {
      await racing.step()
      if (program === seed && step === 20) tell()
    }
    await racing.settle()
  }
}

/** Starts workers, two at a time, and terminates each at a random moment. */
async function workers({ folder, seed, rounds = 0 }: Task): Promise<void> {
  const chance = new Chance(seed)
  const script = `
    const { register } = await import(${JSON.stringify(tsxUrl)})
    register()
    await import(${JSON.stringify(import.meta.url)})`
  const one = async (number: number): Promise<void> => {
    const task: Task = { folder, seed: seed + number * 1000, ending: 'never' }
    const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(script)}`), { workerData: task })
    await Promise.race([once(worker, 'message'), once(worker, 'error').then(([error]) => Promise.reject(error))])
    await setTimeout(chance.below(60))
    await worker.terminate()
  }
  for (let round = 0; round < rounds; round++) await Promise.all([one(2 * round), one(2 * round + 1)])
  console.log(memoryStats().usedBytes)
}

async function main(task: Task): Promise<void> {
  if (task.ending === 'workers') return workers(task)
  const after = new Chance(task.seed).below(60)
  return forever(task, () => {
    console.log('running')
    if (task.ending === 'exit') void setTimeout(after).then(() => process.exit(0))
    if (task.ending === 'throw')
      globalThis.setTimeout(() => {
        throw new Error('thrown by the program')
      }, after)
  })
}

const [, script, given] = process.argv
if (!isMainThread) await forever(workerData as Task, () => parentPort?.postMessage('running', []))
else if (script === import.meta.filename && given !== undefined) await main(JSON.parse(given) as Task)
