// Fetches files from the npm registry, each with a pinned version and hash, and keeps them between runs.
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { Missing, Refusal } from './refusal.mjs'
import { must, run } from './steps.mjs'

/** Unpacks a package in `folder`. */
export async function unpacked({ name, version, sha256 }, folder) {
  mkdirSync(folder, { recursive: true })
  const file = join(folder, `${name.replace('@', '').replace('/', '-')}-${version}.tgz`)
  if (!existsSync(file)) {
    const { code, output } = await run(
      'npm',
      ['pack', `${name}@${version}`, '--silent', '--pack-destination', folder],
      { silent: true },
    )
    if (code !== 0) throw new Missing(`${name} ${version} could not be fetched: ${output.trim()}`)
  }
  const found = createHash('sha256').update(readFileSync(file)).digest('hex')
  if (found !== sha256) throw new Refusal(`${file} has the SHA-256 ${found}, expected ${sha256}: remove it`)
  const to = file.slice(0, -'.tgz'.length)
  if (!existsSync(join(to, 'package.json'))) {
    mkdirSync(to, { recursive: true })
    await must('tar', ['--extract', '--gzip', '--file', file, '--directory', to, '--strip-components', '1'])
  }
  return to
}
