import { join } from 'node:path'

/** @internal Where packages are looked for: as this one sees them, then as the project does that runs. */
export function* projects(): Generator<string> {
  yield import.meta.url
  try {
    yield join(process.cwd(), 'package.json')
  } catch {
    // The folder that the process was started in is gone.
  }
}
