// Plays a new user of kvtide: an empty folder, the programs on a PATH, and the checks that run there.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Refusal } from '../refusal.mjs'
import { root, run } from '../steps.mjs'

export function quickStart() {
  const text = /## The first cache[\s\S]*?```ts\n([\s\S]*?)```/.exec(readFileSync(join(root, 'README.md'), 'utf8'))?.[1]
  if (text === undefined) throw new Error('the README has no first cache')
  return text
}

const STARTED = /^1 \[ 1, 8, 1, 128 \]$/m

/** A program that also uses kvtide in a worker thread; the arguments are its imports, and the expression for its own file. */
const worker = (imports, file) => `${imports}
if (workers.isMainThread) {
  const worker = new workers.Worker(${file})
  worker.on('error', error => { throw error })
  worker.on('message', seen => { console.log('worker', seen); worker.terminate() })
  console.log('main', kvtide.Tensor.from(new Float32Array([3]), [1]).toArray()[0])
} else {
  workers.parentPort.postMessage(kvtide.Tensor.from(new Float32Array([7]), [1]).toArray()[0])
}`

const WORKED = /main 3\s[\s\S]*worker 7/

/** The programs to run. Those without a text are made from the quick start. */
export const PROGRAMS = [
  { file: 'quick-start.mjs', printed: STARTED },
  { file: 'quick-start.cjs', printed: STARTED },
  {
    file: 'worker.mjs',
    text: worker(
      "import * as workers from 'node:worker_threads'\nimport * as kvtide from 'kvtide'",
      'new URL(import.meta.url)',
    ),
    printed: WORKED,
  },
  {
    file: 'worker.cjs',
    text: worker("const workers = require('node:worker_threads')\nconst kvtide = require('kvtide')", '__filename'),
    printed: WORKED,
  },
  {
    // Imported or required, there is only one of each class.
    file: 'both.cjs',
    text: `const required = require('kvtide')
import('kvtide').then(imported => {
  try { new imported.KvCache({}) } catch (error) { console.log(error.code, error instanceof required.KvTideError, imported.KvCache === required.KvCache) }
})`,
    printed: /^INVALID_ARGUMENT true true$/m,
  },
]

const USED = `const options: KvCacheOptions = { batchSize: 1, numKvHeads: 8, initialCapacity: 256, maxSeqLen: 8192, headDim: 128 }
export const cache: KvCache = new KvCache(options)
export const count: number = cache.seqLen
export const code = (error: KvTideError<'BUSY'>): 'BUSY' => error.code
// @ts-expect-error: there are types, not any.
export const wrong: string = cache.seqLen
`
const IMPORTED = `import { KvCache, KvTideError, type KvCacheOptions } from 'kvtide'\n${USED}`
const REQUIRED = `import kvtide = require('kvtide')\n${USED.replace('new KvCache(', 'new kvtide.KvCache(').replaceAll(/: (KvCacheOptions|KvCache|KvTideError)\b/g, ': kvtide.$1')}`

const TYPED = [
  { file: 'node16.mts', module: 'node16', resolution: 'node16', text: IMPORTED },
  { file: 'node16.cts', module: 'node16', resolution: 'node16', text: IMPORTED },
  { file: 'required16.cts', module: 'node16', resolution: 'node16', text: REQUIRED },
  { file: 'nodenext.mts', module: 'nodenext', resolution: 'nodenext', text: IMPORTED },
  { file: 'nodenext.cts', module: 'nodenext', resolution: 'nodenext', text: IMPORTED },
  { file: 'required.cts', module: 'nodenext', resolution: 'nodenext', text: REQUIRED },
  { file: 'bundler.ts', module: 'esnext', resolution: 'bundler', text: IMPORTED },
]

const INSTALL_SCRIPTS = new Set(['preinstall', 'install', 'postinstall', 'prepare', 'prepublish'])

const COMPILERS = ['cc', 'gcc', 'g++', 'clang', 'cargo', 'rustc', 'make', 'python3']

export class Stranger {
  /** `path` is the whole `PATH`, and `registry` the only registry for npm; by default, they are those of this process. */
  constructor(folder, { path, registry } = {}) {
    this.folder = folder
    this.path = path
    mkdirSync(join(folder, 'home'), { recursive: true })
    this.app = join(folder, 'app')
    mkdirSync(this.app, { recursive: true })
    this.env = {
      ...Object.fromEntries(
        ['KVTIDE_DEVICE', 'NAPI_RS_NATIVE_LIBRARY_PATH', 'NODE_OPTIONS', 'npm_config_user_agent'].map(name => [
          name,
          undefined,
        ]),
      ),
      ...(path === undefined ? {} : { PATH: path, HOME: join(folder, 'home') }),
      ...(registry === undefined ? {} : { npm_config_registry: registry, BUN_CONFIG_REGISTRY: registry }),
      npm_config_cache: join(folder, 'home', 'cache'),
      npm_config_update_notifier: 'false',
    }
  }

  /** Runs a program in the folder, and returns its output. */
  async use(command, args, env = {}) {
    const { code, output } = await this.try(command, args, env)
    if (code !== 0) throw new Refusal(`${command} ${args.join(' ')} ended with ${code}:\n${output.trim()}`)
    return output
  }

  try(command, args, env = {}) {
    return run(command, args, { cwd: this.app, silent: true, env: { ...this.env, ...env } })
  }

  install(...what) {
    return this.use('npm', ['install', '--no-audit', '--no-fund', ...what])
  }

  async checkAll(made) {
    await this.checkPath()
    this.checkContents(made)
    await this.checkPrograms('node')
    await this.checkTypes()
    await this.checkDoctor(/^loaded from +.*[/\\]node_modules[/\\]kvtide-[^/\\]+[/\\]kvtide\.[^/\\]+\.node$/m)
  }

  /** Checks that the output of `npx kvtide doctor` contains all of `expected`. */
  async checkDoctor(...expected) {
    const printed = await this.use('npx', ['--no-install', 'kvtide', 'doctor'])
    for (const line of [/^device cpu +usable$/m, ...expected]) this.expect('npx kvtide doctor', printed, line)
  }

  checkPackages(...names) {
    const installed = readdirSync(join(this.app, 'node_modules')).filter(name => !name.startsWith('.'))
    if (installed.sort().join() !== names.sort().join())
      throw new Refusal(`${installed.join(', ')} were installed, expected ${names.join(', ')}`)
  }

  /** Checks that a given `PATH` has no compiler. */
  async checkPath() {
    for (const compiler of this.path === undefined ? [] : COMPILERS) {
      const { code } = await this.try('sh', ['-c', `command -v ${compiler}`])
      if (code === 0) throw new Refusal(`${compiler} is on the PATH of a machine without compilers`)
    }
  }

  /** Checks that installed packages have no install scripts, and that only addon packages have addons. */
  checkContents(made) {
    for (const { name } of made) {
      const folder = join(this.app, 'node_modules', name)
      const { scripts = {}, main = '' } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
      const running = Object.keys(scripts).filter(script => INSTALL_SCRIPTS.has(script))
      if (running.length > 0) throw new Refusal(`${name} has install scripts: ${running.join(', ')}`)
      const addons = readdirSync(folder, { recursive: true }).filter(file => file.endsWith('.node'))
      if (addons.join() !== (main.endsWith('.node') ? main : ''))
        throw new Refusal(`${name} has the addons ${addons.join(', ') || 'none'}`)
    }
  }

  async checkPrograms(runtime) {
    await this.writeQuickStart()
    for (const { file, text, printed } of PROGRAMS) {
      if (text !== undefined) writeFileSync(join(this.app, file), text)
      this.expect(`${runtime} ${file}`, await this.use(runtime, [file]), printed)
    }
  }

  /** Runs the README's first example, compiled for runtimes without `using`, as a module and with `require`. */
  async writeQuickStart() {
    const [source, options] = [
      quickStart(),
      [
        '--ignoreConfig',
        '--target',
        'es2022',
        '--module',
        'nodenext',
        '--lib',
        'es2023,esnext.disposable',
        '--strict',
        '--skipLibCheck',
        'false',
        ...this.types,
      ],
    ]
    for (const file of ['quick-start.mts', 'quick-start.cts']) writeFileSync(join(this.app, file), source)
    await this.compile([...options, 'quick-start.mts', 'quick-start.cts'])
  }

  /** Checks that TypeScript finds the package with each of its module resolutions. */
  async checkTypes() {
    for (const { file, text } of TYPED) writeFileSync(join(this.app, file), text)
    for (const { file, module, resolution } of TYPED) {
      const mode = [
        '--module',
        module,
        '--moduleResolution',
        resolution,
        '--target',
        'es2022',
        '--lib',
        'es2023,esnext.disposable',
      ]
      await this.compile([
        '--ignoreConfig',
        '--noEmit',
        '--strict',
        '--skipLibCheck',
        'false',
        ...mode,
        ...this.types,
        file,
      ])
    }
  }

  /** Runs the repository's TypeScript on the repository's node, because none is installed here. */
  compile(args) {
    return this.use(process.execPath, [join(root, 'node_modules', 'typescript', 'bin', 'tsc'), ...args])
  }

  get types() {
    return ['--types', 'node', '--typeRoots', join(root, 'node_modules', '@types')]
  }

  expect(what, output, printed) {
    if (!printed.test(output))
      throw new Refusal(`${what} printed something unexpected, expected ${printed}:\n${output.trim()}`)
  }
}
