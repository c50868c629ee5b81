// The compiler side of CUDA: the one that CUDA_HOME names, or wheels from the Python registry in a folder of target/.
//
// A folder gets its name once everything is in it, so that one which is there is whole.
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

import { ask, run } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

const PINNED = fileURLToPath(new URL('toolkit.txt', import.meta.url))

/** The oldest compiler that cudarc's declarations and candle's kernels are meant for. */
const OLDEST_MAJOR = 12

/** A toolkit that can be built with: its folder and its version. */
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

/** The version as cudarc wants to be told: 13.0 is 13000. */
export const cudarcVersion = ([major, minor]) => String(major * 1000 + minor * 10)

function checked(home, what) {
  const found = version(home)
  if (found === undefined) {
    throw new Refusal(`${what}, where bin/nvcc cannot be run: it has to be a CUDA toolkit; without CUDA_HOME one is installed into target/`)
  }
  if (found[0] < OLDEST_MAJOR) throw new Refusal(`${what}, which is CUDA ${found.join('.')}: ${OLDEST_MAJOR}.0 or later is needed`)
  return { home, version: found }
}

const version = home => nvccVersion(ask(join(home, 'bin', 'nvcc'), ['--version']))

/** The wheels lie in a folder of their own names. */
const inner = home => join(home, 'nvidia', 'cu13')

/** Named for what is pinned, so that another pin is another folder. */
const pinnedName = () => createHash('sha256').update(readFileSync(PINNED)).digest('hex').slice(0, 8)

async function install(folder, home) {
  if (ask('python3', ['-m', 'pip', '--version']) === undefined) {
    throw new Refusal('python3 with pip is missing, which gets the CUDA compiler: install both (Debian: python3-pip), or set CUDA_HOME to a CUDA toolkit')
  }
  mkdirSync(folder, { recursive: true })
  const partial = `${home}.partial`
  for (const name of readdirSync(folder)) {
    if (name.endsWith('.partial')) rmSync(join(folder, name), { recursive: true })
  }
  const only = ['--no-deps', '--only-binary=:all:', '--no-compile', '--require-hashes', '--quiet', '--disable-pip-version-check', '--root-user-action=ignore']
  const { code } = await run('python3', ['-m', 'pip', 'install', ...only, '--target', partial, '-r', PINNED])
  if (code !== 0) throw new Refusal('pip could not install the CUDA compiler: it says why above; with CUDA_HOME set, nothing is installed')
  for (const programs of ['bin', 'nvvm/bin']) {
    const place = join(inner(partial), programs)
    for (const entry of readdirSync(place, { withFileTypes: true })) if (entry.isFile()) chmodSync(join(place, entry.name), 0o755)
  }
  renameSync(partial, home)
}
