import { mkdtempSync, rmSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import type { ExecutionContext } from 'ava'

const made = (): Promise<string> => mkdtemp(join(tmpdir(), 'kvtide-'))

/** Removes a folder. A cache that was disposed of without waiting may still be writing its last blocks: files that appear meanwhile are removed as well. */
const remove = (folder: string): Promise<void> => rm(folder, { recursive: true, force: true, maxRetries: 20 })

/** Makes a new folder. It is removed after the test, and after the objects that the test holds with `using` were disposed of. */
export async function folderOf(t: ExecutionContext): Promise<string> {
  const folder = await made()
  t.teardown(() => remove(folder))
  return folder
}

const kept: string[] = []

/** Makes a new folder, which is removed when the process ends. */
export function keptFolder(name = 'kept'): string {
  if (kept.length === 0)
    process.once('exit', () => {
      // Windows removes no folder that a process is in.
      process.chdir(tmpdir())
      for (const folder of kept) rmSync(folder, { recursive: true, force: true })
    })
  const folder = mkdtempSync(join(tmpdir(), `kvtide-${name}-`))
  kept.push(folder)
  return folder
}

/** Works in a new folder, which is removed afterwards. */
export async function inFolder(work: (folder: string) => Promise<void>): Promise<void> {
  const folder = await made()
  try {
    await work(folder)
  } finally {
    await remove(folder)
  }
}
