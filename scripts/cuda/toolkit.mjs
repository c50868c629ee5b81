// Provides CUDA's compiler: the toolkit that CUDA_HOME names, or wheels from the Python registry in a folder of target/.
//
// A folder gets its final name once everything is in it, so an existing folder is complete.
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

import { ask, run } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

const PINNED = fileURLToPath(new URL('toolkit.txt', import.meta.url))

/** The oldest compiler that cudarc's declarations and candle's kernels support. */
const OLDEST_MAJOR = 12

/** Returns a usable toolkit: its folder and its version. */
export async function toolkit(folder, given = process.env.CUDA_HOME) {
  if (given) return checked(resolve(given), `CUDA_HOME is ${given}`)
  const home = join(folder, `toolkit-${pinnedName()}`)
  if (existsSync(home) && version(inner(home)) === undefined) rmSync(home, { recursive: true })
  if (!existsSync(home)) await install(folder, home)
  return checked(inner(home), `the toolkit in ${home}`)
}

export function nvccVersion(text) {
  const [, major, minor] = /release (\d+)\.(\d+)/.exec(text ?? '') ?? []
  return major === undefined ? undefined : [Number(major), Number(minor)]
}

/** Returns the version in cudarc's form: 13.0 is 13000. */
export const cudarcVersion = ([major, minor]) => String(major * 1000 + minor * 10)

function checked(home, what) {
  const found = version(home)
  if (found === undefined) {
    throw new Refusal(
      `${what}, whose bin/nvcc cannot be run: it must be a CUDA toolkit; without CUDA_HOME one is installed into target/`,
    )
  }
  if (found[0] < OLDEST_MAJOR)
    throw new Refusal(`${what}, which is CUDA ${found.join('.')}: ${OLDEST_MAJOR}.0 or later is needed`)
  return { home, version: found }
}

const version = home => nvccVersion(ask(join(home, 'bin', 'nvcc'), ['--version']))

/** The folder of the wheels' own files. */
const inner = home => join(home, 'nvidia', 'cu13')

/** Returns a folder named for the pinned wheels, so that another pin uses another folder. */
const pinnedName = () => createHash('sha256').update(readFileSync(PINNED)).digest('hex').slice(0, 8)

async function install(folder, home) {
  if (ask('python3', ['-m', 'pip', '--version']) === undefined) {
    throw new Refusal(
      'python3 with pip is missing, which gets the CUDA compiler: install both (Debian: python3-pip), or set CUDA_HOME to a CUDA toolkit',
    )
  }
  mkdirSync(folder, { recursive: true })
  const partial = `${home}.partial`
  for (const name of readdirSync(folder)) {
    if (name.endsWith('.partial')) rmSync(join(folder, name), { recursive: true })
  }
  const only = [
    '--no-deps',
    '--only-binary=:all:',
    '--no-compile',
    '--require-hashes',
    '--quiet',
    '--disable-pip-version-check',
    '--root-user-action=ignore',
  ]
  const { code } = await run('python3', ['-m', 'pip', 'install', ...only, '--target', partial, '-r', PINNED])
  if (code !== 0)
    throw new Refusal(
      'pip could not install the CUDA compiler: see its output above; with CUDA_HOME set, nothing is installed',
    )
  for (const programs of ['bin', 'nvvm/bin']) {
    const place = join(inner(partial), programs)
    for (const entry of readdirSync(place, { withFileTypes: true }))
      if (entry.isFile()) chmodSync(join(place, entry.name), 0o755)
  }
  renameSync(partial, home)
}
