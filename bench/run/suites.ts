// Runs the suites, each in a process of its own, one after the other: bench/peers, the TypeScript one, the native ones.
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

import { peersWorkload, type Outcome } from '../report/peers.js'
import type { Measured } from '../report/pool.js'
import { sectionOf, type Report, type Workload } from '../report/report.js'
import { machineHere } from './machine.js'

export const root: string = fileURLToPath(new URL('../..', import.meta.url))

export const PEERS: string = join(root, 'bench', 'peers', 'target', 'release', process.platform === 'win32' ? 'kvtide-peers.exe' : 'kvtide-peers')

/** Where reports go unless told: not in the repository. */
export const REPORTS: string = join(root, 'target', 'bench')

export interface Run {
  readonly peers: Report
  readonly javascript: Report
  readonly native: string
  /** The pool as it grows; reports of before there was this suite have none. */
  readonly pool?: Measured | undefined
}

export interface Wanted {
  readonly only: string
  readonly rounds: number
  readonly out?: string | undefined
  readonly record?: boolean
  /** A folder with reports of a run that has been made, in the place of a new one. */
  readonly from?: string | undefined
  /** A report of some workloads, to be put into the pages as they are. */
  readonly add?: string | undefined
}

export function readArguments(args: readonly string[]): Wanted {
  const text = { type: 'string' } as const
  const options = { only: { ...text, default: '' }, rounds: { ...text, default: '31' }, out: text, record: { type: 'boolean', default: false }, from: text, add: text } as const
  const { values } = parseArgs({ args: [...args], options })
  const rounds = Number(values.rounds)
  if (!Number.isInteger(rounds) || rounds < 1) throw new RangeError(`--rounds ${values.rounds}: expected a whole number above 0`)
  return { ...values, rounds }
}

/**
 * What tells glibc's allocator where large allocations lie. Sometimes asking the system and sometimes reusing what was freed, it would make
 * a lane slow or fast by what the lane before it has left: the first touch of a page costs as much as copying several.
 */
const MEMORY: Readonly<Record<Exclude<Workload['memory'], 'usual'>, string>> = {
  new: 'glibc.malloc.mmap_threshold=131072',
  reused: 'glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=68719476736',
}

function run(command: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): void {
  execFileSync(command, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'], env: { ...process.env, ...env }, shell: process.platform === 'win32' })
}

function ask(command: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): string {
  return execFileSync(command, args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 2 ** 26, env: { ...process.env, ...env } })
}

/** Compiles what the suites measure: an old build would be a claim about other code. */
export function build(): void {
  run('npm', ['run', '--silent', 'build'])
  // ggml is built for this machine, as its users build it; kvtide is not.
  const missing = ['cmake', 'clang'].filter(tool => spawnSync(tool, ['--version']).status !== 0)
  if (missing.length > 0) console.log(`SKIPPED: ggml's lanes, which need ${missing.join(' and ')}`)
  const native = { CFLAGS: '-march=native', CXXFLAGS: '-march=native' }
  run('cargo', ['build', '--release', '--manifest-path', 'bench/peers/Cargo.toml', ...(missing.length > 0 ? [] : ['--features', 'ggml'])], native)
}

function kept(name: string, text: string): void {
  mkdirSync(REPORTS, { recursive: true })
  writeFileSync(join(REPORTS, name), text)
}

export function runPeers({ only, rounds }: Wanted): Report {
  const machine = machineHere()
  // Some are not in the report: they are measured when they are named.
  const listed = ask(PEERS, only === '' ? ['--list'] : ['--list', 'all']).trim().split('\n').map(line => line.split(' ') as [string, keyof typeof MEMORY])
  const workloads = listed.filter(([id]) => id.startsWith(only)).map(([id, memory]) => {
    // Lanes work on one thread, unless they say otherwise.
    const env = { GLIBC_TUNABLES: MEMORY[memory], RAYON_NUM_THREADS: '1', KVTIDE_THREADS: '1' }
    const workload = peersWorkload(id, memory, JSON.parse(ask(PEERS, ['--measure', id, String(rounds)], env)) as Outcome)
    console.log(`\n${sectionOf(workload)}`)
    return workload
  })
  const report = { suite: 'peers', rounds, machine, workloads }
  kept('peers.json', `${JSON.stringify(report, null, 2)}\n`)
  return report
}

export function runJavaScript({ only, rounds }: Wanted, name = 'javascript.json'): Report {
  const out = join(REPORTS, name)
  mkdirSync(REPORTS, { recursive: true })
  rmSync(out, { force: true })
  run(process.execPath, ['--import=tsx', 'bench/run/javascript.ts', '--only', only, '--rounds', String(rounds), '--out', out], { GLIBC_TUNABLES: MEMORY.reused })
  return JSON.parse(readFileSync(out, 'utf8')) as Report
}

function bench(crate: string, name: string): string {
  // The triple that the addon is built for, so that what is compiled is shared.
  const host = /^host: (.+)$/m.exec(ask('rustc', ['-vV']))?.[1]
  return ask('cargo', ['bench', '-p', crate, '--bench', name, ...(host === undefined ? [] : ['--target', host])])
}

export function runNative(): string {
  // The planner's: how the pool's calls, prefixes and steps go from 1,000 blocks to 1,000,000.
  const planner = ['paged', 'sequences', 'steps'].map(name => bench('kvtide-core', name))
  const printed = [bench('kvtide-tensor', 'caches'), ...planner].join('\n')
  kept('native.txt', printed)
  return printed
}

export function runPool(): Measured {
  const load = (loadavg()[0] ?? 0).toFixed(2)
  const measured: Measured = { load, ...(JSON.parse(bench('kvtide-core', 'pool')) as Omit<Measured, 'load'>) }
  kept('pool.json', `${JSON.stringify(measured)}\n`)
  return measured
}

export function readRun(folder: string): Run {
  const read = (name: string): string => readFileSync(join(folder, name), 'utf8')
  const has = (name: string): boolean => existsSync(join(folder, name))
  return {
    peers: JSON.parse(read('peers.json')) as Report,
    javascript: JSON.parse(read('javascript.json')) as Report,
    native: has('native.txt') ? read('native.txt') : '',
    pool: has('pool.json') ? (JSON.parse(read('pool.json')) as Measured) : undefined,
  }
}
