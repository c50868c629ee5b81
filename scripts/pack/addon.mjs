// The addon for Linux x64 with glibc as it is published: linked against an old glibc, stripped, and looked at.
//
// What is linked against a newer glibc asks for it when it is loaded. The addon contains no C, so that a linker of such a system, with
// its libraries, is all it takes: a toolchain of the npm registry brings both. Cargo would compile everything again each time that the
// linker changes, so this build has a folder of its own; the first takes as long as that of a fresh checkout.
import { copyFileSync, existsSync, mkdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'

import { compareVersions, glibcVersion, neededLibraries } from '../cuda/binary.mjs'
import { unpacked } from '../fetched.mjs'
import { Missing, Refusal } from '../refusal.mjs'
import { ask, exists, must } from '../steps.mjs'

const TARGET = 'x86_64-unknown-linux-gnu'
export const ADDON = 'kvtide.linux-x64-gnu.node'

const TOOLCHAIN = {
  name: '@napi-rs/cross-toolchain-x64-target-x86_64',
  version: '1.0.0',
  sha256: '351f6ee9bc8e444dfb8ac6eddfe9daed02c9508399bd20c511e3f9e027d6e988',
}

/** The newest glibc that an addon may ask for: that of Debian 10, RHEL 8 and Ubuntu 20.04. */
const GLIBC_MAX = '2.28'
const BYTES_MAX = 12e6

/** Libraries of every system with glibc, and the one that comes with gcc. */
const LIBRARIES = /^(lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux-x86-64\.so\.2)$/

const PROGRAMS = ['cargo', 'tar', 'xz', 'strip', 'readelf']

/** What the build needs and this machine does not have, if anything. */
export function checkMachine({ platform = process.platform, arch = process.arch, found = exists } = {}) {
  if (platform !== 'linux' || arch !== 'x64') {
    throw new Missing(`the addon against an old glibc is built on Linux with x86-64, this is ${platform} with ${arch}`)
  }
  const missing = PROGRAMS.filter(program => !found(program))
  if (missing.length > 0) throw new Missing(`${missing.join(', ')} ${missing.length > 1 ? 'are' : 'is'} missing`)
}

/** Builds the addon, and answers its file. */
export async function buildAddon(folder) {
  checkMachine()
  const linker = join(await toolchain(folder), 'bin', `${TARGET}-gcc`)
  const output = join(folder, 'built')
  const named = ['--target-dir', join(folder, 'target'), '--output-dir', output, '--no-js', '--dts', 'binding.d.cts', '--no-const-enum']
  const env = { [`CARGO_TARGET_${TARGET.toUpperCase().replaceAll('-', '_')}_LINKER`]: linker }
  await must('napi', ['build', '--platform', '--release', '--target', TARGET, ...named], { env })
  const addons = join(folder, 'addons')
  mkdirSync(addons, { recursive: true })
  copyFileSync(join(output, ADDON), join(addons, ADDON))
  await must('strip', ['--strip-all', join(addons, ADDON)])
  return join(addons, ADDON)
}

/** The toolchain's folder. It comes as an archive within a package. */
async function toolchain(folder) {
  const packed = await unpacked(TOOLCHAIN, join(folder, 'downloads'))
  const to = join(packed, 'toolchain')
  if (!existsSync(join(to, 'bin'))) {
    mkdirSync(to, { recursive: true })
    await must('tar', ['--extract', '--xz', '--file', join(packed, `${TARGET}.tar.xz`), '--directory', to])
  }
  return to
}

/** What an addon needs and how large it is, as `readelf` and the file say. */
export function measured(file) {
  const read = what => ask('readelf', ['--wide', what, file]) ?? ''
  return {
    bytes: statSync(file).size,
    glibc: glibcVersion(read('--version-info')),
    libraries: neededLibraries(read('--dynamic')),
    stripped: !readFileSync(file).includes('.symtab'),
  }
}

/** One line for an addon that may be published; what must not be is refused. */
export function addonLine(name, { bytes, glibc, libraries, stripped }) {
  const size = `${(bytes / 1e6).toFixed(1)} MB`
  const unknown = libraries.filter(library => !LIBRARIES.test(library))
  if (glibc === undefined) throw new Refusal(`${name} names no version of glibc`)
  if (compareVersions(glibc, GLIBC_MAX) > 0) throw new Refusal(`${name} needs glibc ${glibc}, and may need ${GLIBC_MAX}`)
  if (unknown.length > 0) throw new Refusal(`${name} needs ${unknown.join(', ')}, which not every system has`)
  if (!stripped) throw new Refusal(`${name} is not stripped`)
  if (bytes >= BYTES_MAX) throw new Refusal(`${name} has ${size}, and may have less than ${BYTES_MAX / 1e6} MB`)
  return `${name}  ${size} of less than ${BYTES_MAX / 1e6} MB, glibc ${glibc} or later (at most ${GLIBC_MAX})`
}
