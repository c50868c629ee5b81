// `node scripts/release/addon.mjs <target>`: the addon of a target as it is published, into `--to`, a folder (target/addons unless given).
//
// Linux is linked against old libraries: glibc 2.28 at most by napi's toolchains, musl by zig; macOS and Windows are built on their own
// machines. No folder of the machine goes into it, so that two builds are the same.
import { mkdirSync, readdirSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

import { glibcVersion } from '../cuda/binary.mjs'
import { refusable, Refusal } from '../refusal.mjs'
import { ask, must, root } from '../steps.mjs'
import { given } from '../arguments.mjs'
import { remapped } from './remapped.mjs'
import { addons } from './shipped.mjs'

/** The newest glibc that an addon may ask for. */
const GLIBC_MAX = [2, 28]

/** What `napi build` is told for a target. */
export function buildArgs(target) {
  const known = addons().find(({ name }) => name === target && name !== 'cuda')
  if (known === undefined) {
    throw new Refusal(`${JSON.stringify(target)} is no target, expected one of ${addons().map(({ name }) => name).filter(name => name !== 'cuda').join(', ')}`)
  }
  const linker = target.endsWith('linux-gnu') ? ['--use-napi-cross'] : target.endsWith('linux-musl') ? ['--cross-compile'] : []
  return ['--platform', '--release', '--strip', '--no-const-enum', '--target', target, ...known.features.flatMap(feature => ['--features', feature]), ...linker]
}

/** Refuses an addon that asks for a newer glibc than users have. */
export function checkGlibc(name, version) {
  const [major, minor] = (version ?? 'unknown').split('.').map(Number)
  if (!(major < GLIBC_MAX[0] || (major === GLIBC_MAX[0] && minor <= GLIBC_MAX[1]))) {
    throw new Refusal(`${name} needs glibc ${version ?? 'of no known version'}, and may need ${GLIBC_MAX.join('.')}`)
  }
  return `${name} needs glibc ${version}, and may need ${GLIBC_MAX.join('.')}`
}

async function build() {
  const { to = join(root, 'target', 'addons'), words } = given({ to: { type: 'string' } }, ['the target'])
  const [target] = words
  const args = buildArgs(target)
  const output = resolve(to)
  mkdirSync(output, { recursive: true })
  await must('napi', ['build', ...args, '--output-dir', output, '--no-js', '--dts', 'binding.d.cts'], { env: remapped(root) })
  const name = readdirSync(output).find(file => file.endsWith('.node'))
  if (name === undefined) throw new Refusal(`napi has built nothing for ${target}`)
  if (target.endsWith('linux-gnu')) console.log(checkGlibc(name, glibcVersion(ask('readelf', ['--wide', '--version-info', join(output, name)]) ?? '')))
  console.log(`${name} is in ${output}`)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await refusable('there is no addon', build)
