// Signals that end the process: the first one drains, the second one ends it at once.
import { setImmediate } from 'node:timers/promises'

/** Settles at the first SIGTERM or SIGINT. After it, another one ends the process. */
function untilSignal(): Promise<NodeJS.Signals> {
  return new Promise(resolve => {
    const onSignal = (signal: NodeJS.Signals): void => {
      for (const name of ['SIGTERM', 'SIGINT'] as const) {
        process.off(name, onSignal)
        process.once(name, () => process.exit(1))
      }
      resolve(signal)
    }
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, onSignal)
  })
}

/** A server that lets running requests finish. */
interface Draining {
  readonly active: number
  drain(): Promise<void>
}

/** Drains a server at the first signal, and says which requests it waits for. */
export async function drainAtSignal(server: Draining): Promise<void> {
  const signal = await untilSignal()
  const report = async (): Promise<void> => {
    // Requests that waited for a place have been refused after this.
    await setImmediate()
    const { active } = server
    if (active === 0) return
    const [requests, them] = active === 1 ? ['1 request is', 'it'] : [`${active} requests are`, 'them']
    console.error(`${requests} still running: ${signal === 'SIGINT' ? 'Ctrl-C' : signal} again ends ${them} now`)
  }
  await Promise.all([server.drain(), report()])
}
