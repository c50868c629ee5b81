// Runs the suites, each in a process of its own, one after the other: bench/peers, the TypeScript one, the native ones.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import type { Measured } from './pool.js'
import { readReport, type Report } from './report.js'

export const root: string = fileURLToPath(new URL('..', import.meta.url))

/** Where reports go unless told: not in the repository. */
export const REPORTS: string = join(root, 'target', 'bench')

/** Everything that a run has measured. */
export interface Run {
  readonly peers: Report
  readonly javascript: Report
  /** What the native benches printed. */
  readonly native: string
  /** The pool as it grows; reports of before there was this suite have none. */
  readonly pool?: Measured | undefined
}

/** What can be measured by itself. */
export const SUITES = ['peers', 'javascript', 'native', 'pool'] as const
export type Suite = (typeof SUITES)[number]

interface Wanted {
  readonly only: string
  readonly rounds: number
}

/** Tells glibc's allocator to keep what it has: see bench/peers/src/memory.rs. */
const REUSED = { GLIBC_TUNABLES: 'glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=68719476736' }

interface How {
  readonly capture?: boolean
  readonly env?: Readonly<Record<string, string>>
}

function must(command: string, args: readonly string[], { capture = false, env = {} }: How = {}): string {
  const { status, stdout, error } = spawnSync(command, args, {
    cwd: root,
    encoding: 'utf8',
    stdio: ['ignore', capture ? 'pipe' : 'inherit', 'inherit'],
    maxBuffer: 1 << 26,
    env: { ...process.env, ...env },
    shell: process.platform === 'win32',
  })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} failed${error === undefined ? '' : `: ${error.message}`}`)
  return stdout ?? ''
}

/** The triple that the addon is built for, so that what is compiled is shared. */
function hostTarget(): readonly string[] {
  const host = /^host: (.+)$/m.exec(must('rustc', ['-vV'], { capture: true }))?.[1]
  return host === undefined ? [] : ['--target', host]
}

/** Compiles what the suites measure: an old build would be a claim about other code. */
export function build(): void {
  must('npm', ['run', '--silent', 'build'])
  must('cargo', ['build', '--release', '--manifest-path', 'bench/peers/Cargo.toml'])
}

function report(suite: string, command: string, args: readonly string[], { only, rounds }: Wanted, env = {}): Report {
  mkdirSync(REPORTS, { recursive: true })
  const out = join(REPORTS, `${suite}.json`)
  rmSync(out, { force: true })
  must(command, [...args, '--only', only, '--rounds', String(rounds), '--out', out], { env })
  return readReport(out)
}

/** The suite that runs the peers' caches too. */
export function runPeers(wanted: Wanted): Report {
  return report('peers', 'cargo', ['run', '--release', '--quiet', '--manifest-path', 'bench/peers/Cargo.toml', '--'], wanted)
}

/** The suite of the TypeScript API. */
export function runJavaScript(wanted: Wanted): Report {
  return report('javascript', process.execPath, ['--import=tsx', 'bench/javascript.ts'], wanted, REUSED)
}

function bench(crate: string, name: string): string {
  return must('cargo', ['bench', '-p', crate, '--bench', name, ...hostTarget()], { capture: true })
}

/** The native benches of single calls; answers what they print. */
export function runNative(): string {
  // The planner's: how the pool's calls, prefixes and steps go from 1,000 blocks to 1,000,000.
  const planner = ['paged', 'sequences', 'steps'].map(name => bench('kvtide-core', name))
  const printed = [bench('kvtide-tensor', 'caches'), ...planner].join('\n')
  mkdirSync(REPORTS, { recursive: true })
  writeFileSync(join(REPORTS, 'native.txt'), printed)
  return printed
}

/** What the pool's calls cost as it grows. */
export function runPool(): Measured {
  const load = (loadavg()[0] ?? 0).toFixed(2)
  const measured: Measured = { load, ...(JSON.parse(bench('kvtide-core', 'pool')) as Omit<Measured, 'load'>) }
  mkdirSync(REPORTS, { recursive: true })
  writeFileSync(join(REPORTS, 'pool.json'), `${JSON.stringify(measured)}\n`)
  return measured
}

/** What a run has left in a folder. */
export function readRun(folder: string): Run {
  const [native, pool] = [join(folder, 'native.txt'), join(folder, 'pool.json')]
  return {
    peers: readReport(join(folder, 'peers.json')),
    javascript: readReport(join(folder, 'javascript.json')),
    native: existsSync(native) ? readFileSync(native, 'utf8') : '',
    pool: existsSync(pool) ? (JSON.parse(readFileSync(pool, 'utf8')) as Measured) : undefined,
  }
}
