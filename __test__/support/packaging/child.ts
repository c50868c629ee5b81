import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/** The package's sources, for scripts that run elsewhere. */
export const indexUrl: string = new URL('../../../index.ts', import.meta.url).href

/** What lets a worker read TypeScript. */
export const tsxUrl: string = import.meta.resolve('tsx/esm/api')

export interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly out: string
  readonly err: string
}

/** Runs a module in a process of its own, which sees the package as `kvtide`. */
export function runProcess(source: string, flags: readonly string[] = []): Promise<Ended> {
  const script = `const kvtide = await import(${JSON.stringify(indexUrl)})\n${source}`
  const child = spawn(process.execPath, ['--import=tsx', ...flags, '--input-type=module', '--eval', script], {
    cwd: fileURLToPath(new URL('../../..', import.meta.url)),
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const printed = { out: '', err: '' }
  child.stdout.on('data', chunk => (printed.out += String(chunk)))
  child.stderr.on('data', chunk => (printed.err += String(chunk)))
  return new Promise(resolve => {
    child.on('close', (code, signal) => resolve({ code, signal, ...printed }))
  })
}
