import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/** The folder of the repository. */
export const root: string = fileURLToPath(new URL('../../..', import.meta.url))

/** The package's sources, for scripts in other processes. */
export const indexUrl: string = new URL('../../../index.ts', import.meta.url).href

/** A module that lets a worker thread load TypeScript. */
export const tsxUrl: string = import.meta.resolve('tsx/esm/api')

export interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly out: string
  readonly err: string
}

export function runNode(
  args: readonly string[],
  options: { readonly cwd?: string; readonly env?: NodeJS.ProcessEnv } = {},
): Promise<Ended> {
  const child = spawn(process.execPath, args, { cwd: root, ...options, stdio: ['ignore', 'pipe', 'pipe'] })
  const printed = { out: '', err: '' }
  child.stdout.on('data', chunk => (printed.out += String(chunk)))
  child.stderr.on('data', chunk => (printed.err += String(chunk)))
  return new Promise(resolve => {
    child.on('close', (code, signal) => resolve({ code, signal, ...printed }))
  })
}

/** Runs a module in a new process, in which the package is called `kvtide`. */
export function runProcess(source: string, flags: readonly string[] = []): Promise<Ended> {
  return runNode([
    '--import=tsx',
    ...flags,
    '--input-type=module',
    '--eval',
    `const kvtide = await import(${JSON.stringify(indexUrl)})\n${source}`,
  ])
}
