// Runs of the command line in tests, and files to give it.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { main } from '../../lib/cli/cli.js'

/** Runs the command line, keeping what it prints. */
export async function run(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const { log, error } = console
  const printed = { out: '', err: '' }
  console.log = (text: unknown) => void (printed.out += `${String(text)}\n`)
  console.error = (text: unknown) => void (printed.err += `${String(text)}\n`)
  try {
    return { code: await main(args), ...printed }
  } finally {
    Object.assign(console, { log, error })
  }
}

/** Runs a test with a file of this content, in a folder of its own. */
export function withFile<T>(content: string, use: (file: string, folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-plan-'))
  const file = join(folder, 'config.json')
  writeFileSync(file, content)
  return use(file, folder).finally(() => rmSync(folder, { recursive: true }))
}
