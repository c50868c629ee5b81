// The release scripts (JavaScript), run by tests as programs and as modules.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test, { type ExecutionContext, type Implementation } from 'ava'

import { exists } from '../../../scripts/steps.mjs'
import { root, runNode, type Ended } from './child.js'

export { root }

/** A crate as cargo describes it: the fields that the scripts use. */
export interface Crate {
  readonly name: string
  readonly version: string
  readonly manifest_path: string
  readonly license?: string | null
  readonly source?: string | null
  readonly rust_version?: string | null
  readonly [field: string]: unknown
}

/** The text of a file of the repository. */
export const text = (file: string): string => readFileSync(join(root, file), 'utf8')

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

/** The measurements of a program of `run.sh bench` in a turn. */
export interface TurnReport {
  readonly machine: { readonly device: string; readonly details: readonly string[] } | null
  readonly workloads: readonly {
    readonly id: string
    readonly title: string
    readonly lanes: readonly { readonly name: string; readonly nanoseconds: readonly number[] }[]
  }[]
  readonly skipped: readonly { readonly id: string; readonly skipped: string }[]
  readonly failed: readonly { readonly id: string; readonly error: string }[]
}

export type RunProgram = (
  command: string,
  args: readonly string[],
  options?: { readonly env?: NodeJS.ProcessEnv },
) => Promise<{ code: number; output: string; late?: boolean }>

/** True if stubs can be compiled and run here. */
export const canCompile = (): boolean =>
  process.platform === 'linux' && process.arch === 'x64' && ['gcc', 'ar'].every(exists)

/** A test that compiles: skipped by its name where that cannot be done. */
export const compiling: (title: string, implementation: Implementation<[]>) => void = canCompile() ? test : test.skip
