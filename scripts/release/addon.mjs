// `node scripts/release/addon.mjs <target>`: builds the addon of a target as it is published, into the folder `--to` (target/addons by default);
// with `--net`, the addon with the network.
//
// Addons for Linux are linked on x64 against old libraries: glibc 2.28 at most with napi's toolchains, each pinned by hash, musl with zig. Addons for
// macOS and Windows are built on their own systems. The addon contains no folder name of the build machine, so two builds are identical.
import { existsSync, mkdirSync, readdirSync, renameSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

import { compareVersions, measured } from '../cuda/binary.mjs'
import { unpacked } from '../fetched.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { must, root } from '../steps.mjs'
import { addons } from './cargo.mjs'

/** Linkers with an old system's libraries, from the npm registry; C code is compiled with them too. */
const TOOLCHAINS = {
  'x86_64-unknown-linux-gnu': {
    name: '@napi-rs/cross-toolchain-x64-target-x86_64',
    version: '1.0.0',
    sha256: '351f6ee9bc8e444dfb8ac6eddfe9daed02c9508399bd20c511e3f9e027d6e988',
  },
  'aarch64-unknown-linux-gnu': {
    name: '@napi-rs/cross-toolchain-x64-target-aarch64',
    version: '1.0.3',
    sha256: '8ec59a37c2a8cac720d0f92e9c19b2940a427ef1f32ddde43e800a8043301e51',
  },
}

/** The newest glibc that an addon may require: that of Debian 10, RHEL 8 and Ubuntu 20.04. */
const GLIBC_MAX = '2.28'
const BYTES_MAX = 12e6

/** The size limit of the addon with the network. */
const NET_BYTES_MAX = 22e6

/** The libraries of every system with glibc, and the one that comes with gcc. */
const LIBRARIES = /^(lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux-(x86-64|aarch64)\.so\.\d+)$/

export function buildArgs(target, net = false) {
  const known = addons().filter(({ name }) => name !== 'cuda' && !name.startsWith('net '))
  if (!known.some(({ name }) => name === target))
    throw new Refusal(
      `${JSON.stringify(target)} is no target, expected one of ${known.map(({ name }) => name).join(', ')}`,
    )
  const { features } = addons().find(({ name }) => name === (net ? `net ${target}` : target))
  const cross = target.endsWith('linux-musl') ? ['--cross-compile'] : []
  return [
    '--platform',
    '--release',
    '--no-const-enum',
    '--target',
    target,
    ...features.flatMap(feature => ['--features', feature]),
    ...cross,
  ]
}

/** Returns flags that make a build in `folder` independent of its place: file names in messages begin with `/kvtide` and `/cargo` instead. */
export function remapped(folder, env = process.env) {
  const cargo = env.CARGO_HOME || join(homedir(), '.cargo')
  const flags = env.CARGO_ENCODED_RUSTFLAGS
    ? env.CARGO_ENCODED_RUSTFLAGS.split('\x1f')
    : (env.RUSTFLAGS ?? '').split(' ').filter(flag => flag !== '')
  const own = [`--remap-path-prefix=${cargo}=/cargo`, `--remap-path-prefix=${folder.replace(/[\\/]$/, '')}=/kvtide`]
  return { CARGO_ENCODED_RUSTFLAGS: [...flags, ...own].join('\x1f') }
}

/** Returns the prefix of a target's linker and other programs, which come as an archive within a package. */
async function toolchain(target) {
  const packed = await unpacked(TOOLCHAINS[target], join(root, 'target', 'pack', 'downloads'))
  const to = join(packed, 'toolchain')
  if (!existsSync(join(to, 'bin'))) {
    mkdirSync(to, { recursive: true })
    await must('tar', ['--extract', '--xz', '--file', join(packed, `${target}.tar.xz`), '--directory', to])
  }
  return join(to, 'bin', `${target}-`)
}

export function addonLine(name, { bytes, glibc, libraries, stripped }) {
  const size = `${(bytes / 1e6).toFixed(1)} MB`
  const unknown = libraries.filter(library => !LIBRARIES.test(library))
  if (glibc === undefined) throw new Refusal(`${name} names no version of glibc`)
  if (compareVersions(glibc, GLIBC_MAX) > 0)
    throw new Refusal(`${name} needs glibc ${glibc}, and may need ${GLIBC_MAX}`)
  if (unknown.length > 0) throw new Refusal(`${name} needs ${unknown.join(', ')}, which not every system has`)
  if (!stripped) throw new Refusal(`${name} is not stripped`)
  const most = name.startsWith('kvtide-net.') ? NET_BYTES_MAX : BYTES_MAX
  if (bytes >= most) throw new Refusal(`${name} has ${size}, and may have less than ${most / 1e6} MB`)
  return `${name}  ${size} of less than ${most / 1e6} MB, glibc ${glibc} or later (at most ${GLIBC_MAX})`
}

export async function buildAddon(target, to, more = [], net = false) {
  const args = buildArgs(target, net)
  mkdirSync(to, { recursive: true })
  const tools = target in TOOLCHAINS ? await toolchain(target) : undefined
  const underscored = target.replaceAll('-', '_')
  const programs = tools && {
    [`CARGO_TARGET_${underscored.toUpperCase()}_LINKER`]: `${tools}gcc`,
    [`CC_${underscored}`]: `${tools}gcc`,
    [`AR_${underscored}`]: `${tools}ar`,
  }
  const env = { ...remapped(root), ...programs }
  await must('napi', ['build', ...args, ...more, '--output-dir', to, '--no-js', '--dts', 'binding.d.cts'], { env })
  const built = readdirSync(to).find(file => /^kvtide\..*\.node$/.test(file))
  if (built === undefined) throw new Refusal(`napi built no addon for ${target}`)
  const name = net ? built.replace(/^kvtide/, 'kvtide-net') : built
  if (net) renameSync(join(to, built), join(to, name))
  if (tools !== undefined) {
    // napi's own flag would have no effect: cargo ignores RUSTFLAGS if the encoded ones are set.
    await must(`${tools}strip`, ['--strip-all', join(to, name)])
    console.log(addonLine(name, measured(join(to, name))))
  }
  return join(to, name)
}

async function build() {
  const {
    to = join(root, 'target', 'addons'),
    net,
    words,
  } = given({ to: { type: 'string' }, net: { type: 'boolean' } }, ['the target'])
  console.log(`${await buildAddon(words[0], resolve(to), [], net)} is built`)
}

await main(import.meta.url, 'cannot build the addon', build)
