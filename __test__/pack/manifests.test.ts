// What the published packages say of themselves.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { PLATFORMS } from '../../lib/loading/platform.js'
import { folder, refuses } from '../support/packaging/scripts.js'
import { CUDA_FILE, CUDA_PACKAGE, VERSION } from '../support/packaging/package-copy.js'
import { cudaPackage, platform, platformPackage, rootManifest } from '../../scripts/pack/manifests.mjs'
import { addonPackages, report } from '../../scripts/pack/packages.mjs'
import { NODES } from '../../scripts/pack/runtimes.mjs'
import { repository } from '../../scripts/steps.mjs'

/** The packages that users may install beside it. */
const RUNTIMES = {
  '@huggingface/jinja': '^0.5.0',
  '@huggingface/tokenizers': '>=0.2.0',
  '@huggingface/transformers': '^4.0.0',
  'onnxruntime-node': '>=1.17.3',
}

test('targets have the names that npm gives their systems', t => {
  t.deepEqual(platform('x86_64-unknown-linux-gnu'), { suffix: 'linux-x64-gnu', os: 'linux', cpu: 'x64', libc: 'glibc' })
  t.deepEqual(platform('aarch64-unknown-linux-musl'), {
    suffix: 'linux-arm64-musl',
    os: 'linux',
    cpu: 'arm64',
    libc: 'musl',
  })
  t.deepEqual(platform('aarch64-apple-darwin'), { suffix: 'darwin-arm64', os: 'darwin', cpu: 'arm64' })
  t.deepEqual(platform('x86_64-pc-windows-msvc'), { suffix: 'win32-x64-msvc', os: 'win32', cpu: 'x64' })
  t.throws(() => platform('riscv64gc'), { message: /npm has no name for the system of the target riscv64gc/ })
})

test('kvtide depends on the addon of each platform that the loader knows, in its own version', t => {
  const { optionalDependencies, peerDependencies, peerDependenciesMeta } = rootManifest(repository)
  t.deepEqual(optionalDependencies, Object.fromEntries(PLATFORMS.map(name => [`kvtide-${name}`, VERSION])))
  const taken = [CUDA_PACKAGE, ...PLATFORMS.map(name => `kvtide-net-${name}`)]
  t.deepEqual(peerDependencies, { ...RUNTIMES, ...Object.fromEntries(taken.map(name => [name, VERSION])) })
  t.deepEqual(peerDependenciesMeta, {
    ...Object.fromEntries(Object.keys(RUNTIMES).map(name => [name, { optional: true }])),
    ...Object.fromEntries(taken.map(name => [name, { optional: true }])),
  })
})

test('the repository itself depends on no package that has to be published first', t => {
  const { optionalDependencies, peerDependencies } = repository
  t.deepEqual([optionalDependencies, peerDependencies], [undefined, RUNTIMES])
})

test('no package runs anything where it is installed, or tells of the repository', t => {
  const manifests = [
    rootManifest(repository),
    ...(addonPackages(repository) as { manifest: { name: string; version: string; imports?: object } }[]).map(
      ({ manifest }) => manifest,
    ),
  ]
  t.is(manifests.length, 2 * PLATFORMS.length + 2)
  for (const manifest of manifests) {
    for (const field of ['scripts', 'devDependencies', 'dependencies', 'private', 'ava', 'napi', 'overrides', 'files'])
      t.false(field in manifest, `${manifest.name}: ${field}`)
    t.is(manifest.version, VERSION)
  }
  t.deepEqual(manifests[0]?.imports, { '#package': './package.json' })
})

test('each addon has a package with its file, its system and a README', t => {
  const musl = platformPackage(repository, 'aarch64-unknown-linux-musl')
  t.is(musl.file, 'kvtide.linux-arm64-musl.node')
  t.like(musl.manifest, {
    name: 'kvtide-linux-arm64-musl',
    main: musl.file,
    os: ['linux'],
    cpu: ['arm64'],
    libc: ['musl'],
    license: '(MIT OR Apache-2.0)',
  })
  t.true(musl.readme.startsWith('# kvtide-linux-arm64-musl\n'))
  t.false('libc' in platformPackage(repository, 'x86_64-apple-darwin').manifest)
  const cuda = cudaPackage(repository)
  t.like(cuda.manifest, { name: CUDA_PACKAGE, main: CUDA_FILE, os: ['linux'], cpu: ['x64'], libc: ['glibc'] })
  t.true(cuda.readme.includes(`npm install kvtide@${VERSION} ${CUDA_PACKAGE}@${VERSION}`))
})

test('an addon that is not there is named', t => {
  const made = [{ name: 'kvtide', version: '1.2.3', bytes: 1234, unpackedBytes: 5678 }]
  t.is(
    report({ made, skipped: ['kvtide.x.node'] }),
    'kvtide@1.2.3  1 kB, 6 kB unpacked\nSKIPPED: kvtide.x.node is not there, its package is not made',
  )
})

test('a release with a missing addon is refused before anything is made', async t => {
  const addons = folder(t)
  const files = addonPackages(repository).map(({ file }: { file: string }) => file)
  for (const file of files.slice(1)) writeFileSync(join(addons, file), '')
  const to = join(addons, 'made')
  await refuses(
    t,
    'pack/packages.mjs',
    ['--addons', addons, '--to', to, '--complete'],
    new RegExp(`lacks ${files[0]}$`, 'm'),
  )
  t.false(existsSync(to))
})

test('the lines of node that packages are tried on begin with the oldest that is supported', t => {
  const { engines } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    engines: { node: string }
  }
  t.deepEqual(
    (NODES as { node: { version: string } }[]).map(({ node }) => node.version.split('.')[0]),
    ['20', '22', '24'],
  )
  t.is(engines.node, '>=20')
})
