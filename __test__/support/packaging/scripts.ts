// The scripts of releases, which are JavaScript, as tests run them: as programs, and as modules.
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import type { ExecutionContext } from 'ava'

export const root: string = fileURLToPath(new URL('../../..', import.meta.url))

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

export interface ScriptEnd {
  readonly code: number | null
  readonly out: string
  readonly err: string
}

export function runScript(file: string, args: readonly string[] = [], options: { cwd?: string; env?: NodeJS.ProcessEnv } = {}): Promise<ScriptEnd> {
  const child = spawn(process.execPath, [join(root, 'scripts', file), ...args], {
    cwd: options.cwd ?? root,
    env: { ...process.env, ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const printed = { out: '', err: '' }
  child.stdout.on('data', chunk => (printed.out += String(chunk)))
  child.stderr.on('data', chunk => (printed.err += String(chunk)))
  return new Promise(resolve => {
    child.on('close', code => resolve({ code, ...printed }))
  })
}

/** Checks that a script refuses what it was given, in one line. */
export async function refuses(t: ExecutionContext, file: string, args: readonly string[], said: RegExp): Promise<void> {
  const { code, err } = await runScript(file, args)
  t.is(code, 1, err)
  t.regex(err, said)
  t.is(err.trim().split('\n').length, 1, err)
}

/** A folder that is gone when the test ends. */
export function folder(t: ExecutionContext): string {
  const made = mkdtempSync(join(tmpdir(), 'kvtide-scripts-'))
  t.teardown(() => rmSync(made, { recursive: true, force: true }))
  return made
}
