// Runs the suites one after the other, each in a separate process: bench/peers, the TypeScript suite, bench/pool.
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

export const PEERS: string = join(
  root,
  'bench',
  'peers',
  'target',
  'release',
  process.platform === 'win32' ? 'kvtide-peers.exe' : 'kvtide-peers',
)

/** The default folder of reports, outside the repository. */
export const REPORTS: string = join(root, 'target', 'bench')

export interface Run {
  readonly peers: Report
  readonly javascript: Report
  /** The growing pool; older reports have none. */
  readonly pool?: Measured | undefined
}

export interface Wanted {
  readonly only: string
  readonly rounds: number
  readonly out?: string | undefined
  readonly record?: boolean
  /** A folder with the reports of an earlier run, used instead of a new run. */
  readonly from?: string | undefined
  /** A report of some workloads, to be put into the existing pages. */
  readonly add?: string | undefined
}

export function readArguments(args: readonly string[]): Wanted {
  const text = { type: 'string' } as const
  const options = {
    only: { ...text, default: '' },
    rounds: { ...text, default: '31' },
    out: text,
    record: { type: 'boolean', default: false },
    from: text,
    add: text,
  } as const
  const { values } = parseArgs({ args: [...args], options })
  const rounds = Number(values.rounds)
  if (!Number.isInteger(rounds) || rounds < 1)
    throw new RangeError(`--rounds ${values.rounds}: expected a whole number above 0`)
  return { ...values, rounds }
}

/**
 * Environment variables that fix where glibc's allocator places large allocations. By default it sometimes asks the system and sometimes reuses
 * freed memory, so a lane would be slow or fast depending on the lane before it: the first touch of a page costs as much as copying several.
 */
const MEMORY: Readonly<Record<Exclude<Workload['memory'], 'usual'>, string>> = {
  new: 'glibc.malloc.mmap_threshold=131072',
  reused: 'glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=68719476736',
}

function run(command: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): void {
  execFileSync(command, args, {
    cwd: root,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ...env },
    shell: process.platform === 'win32',
  })
}

function ask(command: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): string {
  return execFileSync(command, args, {
    cwd: root,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    maxBuffer: 2 ** 26,
    env: { ...process.env, ...env },
  })
}

/** Compiles the programs that the suites measure, because an old build would measure other code. */
export function build(): void {
  run('npm', ['run', '--silent', 'build'])
  // ggml is built for this machine's processor, as its users build it; kvtide is not.
  const missing = ['cmake', 'clang'].filter(tool => spawnSync(tool, ['--version']).status !== 0)
  if (missing.length > 0) console.log(`SKIPPED: ggml's lanes, which need ${missing.join(' and ')}`)
  const native = { CFLAGS: '-march=native', CXXFLAGS: '-march=native' }
  run(
    'cargo',
    [
      'build',
      '--release',
      '--manifest-path',
      'bench/peers/Cargo.toml',
      ...(missing.length > 0 ? [] : ['--features', 'ggml']),
    ],
    native,
  )
}

function kept(name: string, text: string): void {
  mkdirSync(REPORTS, { recursive: true })
  writeFileSync(join(REPORTS, name), text)
}

export function runPeers({ only, rounds }: Wanted): Report {
  const machine = machineHere()
  // Some workloads are not in the report: they are measured only by name.
  const listed = ask(PEERS, only === '' ? ['--list'] : ['--list', 'all'])
    .trim()
    .split('\n')
    .map(line => line.split(' ') as [string, keyof typeof MEMORY])
  const workloads = listed
    .filter(([id]) => id.startsWith(only))
    .map(([id, memory]) => {
      // Lanes use one thread unless their name says otherwise.
      const env = { GLIBC_TUNABLES: MEMORY[memory], RAYON_NUM_THREADS: '1', KVTIDE_THREADS: '1' }
      const workload = peersWorkload(
        id,
        memory,
        JSON.parse(ask(PEERS, ['--measure', id, String(rounds)], env)) as Outcome,
      )
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
  run(
    process.execPath,
    ['--import=tsx', 'bench/run/javascript.ts', '--only', only, '--rounds', String(rounds), '--out', out],
    { GLIBC_TUNABLES: MEMORY.reused },
  )
  return JSON.parse(readFileSync(out, 'utf8')) as Report
}

export function runPool(): Measured {
  const load = (loadavg()[0] ?? 0).toFixed(2)
  // The target triple of the addon, so that compiled crates are shared.
  const host = /^host: (.+)$/m.exec(ask('rustc', ['-vV']))?.[1]
  const printed = ask('cargo', [
    'run',
    '--release',
    '-p',
    'kvtide-bench-pool',
    ...(host === undefined ? [] : ['--target', host]),
  ])
  const measured: Measured = { load, ...(JSON.parse(printed) as Omit<Measured, 'load'>) }
  kept('pool.json', `${JSON.stringify(measured)}\n`)
  return measured
}

export function readRun(folder: string): Run {
  const read = (name: string): string => readFileSync(join(folder, name), 'utf8')
  return {
    peers: JSON.parse(read('peers.json')) as Report,
    javascript: JSON.parse(read('javascript.json')) as Report,
    pool: existsSync(join(folder, 'pool.json')) ? (JSON.parse(read('pool.json')) as Measured) : undefined,
  }
}
