// What tests of the CUDA build need: types of what its scripts answer, and whether stubs can be compiled.
import { execFileSync } from 'node:child_process'

import test, { type Implementation } from 'ava'

import type { GpuWorkload } from '../../../bench/report/gpu.js'

export { folder } from './scripts.js'

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
