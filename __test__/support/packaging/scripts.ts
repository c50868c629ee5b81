// The scripts of releases, which are JavaScript, as tests run them: as programs, and as modules.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test, { type ExecutionContext, type Implementation } from 'ava'

import type { GpuWorkload } from '../../../bench/report/gpu.js'
import { root, runNode, type Ended } from './child.js'

export { root }

/** A crate as cargo describes it, as far as scripts look at it. */
export interface Crate {
  readonly name: string
  readonly version: string
  readonly manifest_path: string
  readonly license?: string | null
  readonly source?: string | null
  readonly rust_version?: string | null
  readonly [field: string]: unknown
}

export function runScript(file: string, args: readonly string[] = []): Promise<Ended> {
  return runNode([join(root, 'scripts', file), ...args])
}

export async function refuses(t: ExecutionContext, file: string, args: readonly string[], said: RegExp): Promise<void> {
  const { code, err } = await runScript(file, args)
  t.is(code, 1, err)
  t.regex(err, said)
  t.is(err.trim().split('\n').length, 1, err)
}

export function folder(t: ExecutionContext): string {
  const made = mkdtempSync(join(tmpdir(), 'kvtide-scripts-'))
  t.teardown(() => rmSync(made, { recursive: true, force: true }))
  return made
}

export interface Gpu {
  readonly usable: boolean
  readonly reason: string
}

/** What a program of `run.sh bench` has measured in a turn. */
export interface TurnReport {
  readonly machine: { readonly device: string; readonly details: readonly string[] } | null
  readonly workloads: readonly GpuWorkload[]
  readonly skipped: readonly { readonly id: string; readonly skipped: string }[]
  readonly failed: readonly { readonly id: string; readonly error: string }[]
}

export type RunProgram = (command: string, args: readonly string[], options?: { readonly env?: NodeJS.ProcessEnv }) => Promise<{ code: number; output: string }>

/** Whether stubs can be compiled and run here. */
export function canCompile(): boolean {
  if (process.platform !== 'linux' || process.arch !== 'x64') return false
  try {
    for (const program of ['gcc', 'ar']) execFileSync(program, ['--version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

/** A test that compiles: skipped by its name where that cannot be done. */
export const compiling: (title: string, implementation: Implementation<[]>) => void = canCompile() ? test : test.skip
