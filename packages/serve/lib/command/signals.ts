// Signals that end the process: the first one drains, the second one ends it at once.

/** Settles at the first SIGTERM or SIGINT. After it, another one ends the process. */
export function untilSignal(): Promise<NodeJS.Signals> {
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
