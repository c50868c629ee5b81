// Chooses the addon for this process: the file that `NAPI_RS_NATIVE_LIBRARY_PATH` names, then the addon with CUDA, the one with the network, the
// ordinary one. An addon of another version than the package, and a second addon in the same process, are refused.
import { existsSync, realpathSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'

import { invalid, KvTideError } from '../errors/errors.js'
import { PLATFORMS, type Platform } from './platform.js'
import { requireFrom } from './projects.js'

/** The addon with CUDA: its only platform, its file next to the ordinary addon, and its package. */
const CUDA_PLATFORM = 'linux-x64-gnu'
const CUDA_FILE = `kvtide-cuda.${CUDA_PLATFORM}.node`
const CUDA_PACKAGE = `kvtide-cuda-${CUDA_PLATFORM}`

/** The addon that this process uses: the ordinary one, the one with the network, or the one with CUDA and the network. */
export interface BindingChoice {
  readonly kind: 'cpu' | 'net' | 'cuda'
  /** The file of the addon. */
  readonly file: string
  /** The reason for the choice. */
  readonly reason: string
}

/** The inputs of the choice. */
export interface Surroundings {
  /** The folder of the package; its version is in `version`. */
  readonly folder: string
  readonly version: string
  /** `KVTIDE_DEVICE`. */
  readonly wanted: string | undefined
  /** `NAPI_RS_NATIVE_LIBRARY_PATH`: a file that takes precedence over every other choice. */
  readonly named: string | undefined
  readonly platform: Platform
}

/** Chooses the addon with CUDA if it is installed, unless `KVTIDE_DEVICE` is `cpu`. It has all functions of the other addons. */
export function chooseBinding(around: Surroundings): BindingChoice {
  const { wanted = '', named = '', platform } = around
  if (!['', 'auto', 'cpu', 'cuda'].includes(wanted)) {
    throw invalid('KVTIDE_DEVICE', wanted, 'auto, cpu or cuda')
  }
  if (named !== '') {
    const kind = /^kvtide-(cuda|net)\./.exec(basename(named))?.[1] as 'cuda' | 'net' | undefined
    return { kind: kind ?? 'cpu', file: resolve(named), reason: 'NAPI_RS_NATIVE_LIBRARY_PATH names it' }
  }
  if (wanted === 'cpu') return withoutCuda(around, 'KVTIDE_DEVICE is cpu')
  const hasCuda = platform.name === CUDA_PLATFORM
  const file = hasCuda ? found(around, CUDA_FILE, CUDA_PACKAGE) : undefined
  if (file !== undefined) return { kind: 'cuda', file, reason: 'it is installed' }
  if (wanted === 'cuda') {
    const reason = hasCuda
      ? `install it with \`npm install ${CUDA_PACKAGE}@${around.version}\``
      : 'there is none for this platform'
    throw notFound(`KVTIDE_DEVICE is cuda, but the addon with CUDA was not found: ${reason}`, platform, reason)
  }
  return withoutCuda(around, 'the addon with CUDA is not installed')
}

/** Chooses the addon with the network if it is installed, which has all functions of the ordinary one; otherwise the ordinary one. */
function withoutCuda(around: Surroundings, reason: string): BindingChoice {
  const { name } = around.platform
  const net = found(around, `kvtide-net.${name}.node`, `kvtide-net-${name}`)
  if (net !== undefined) return { kind: 'net', file: net, reason: `it is installed; ${reason}` }
  return { kind: 'cpu', file: ordinaryFile(around), reason }
}

/** The file of the ordinary addon of this platform. */
function ordinaryFile(around: Surroundings): string {
  const { name } = around.platform
  const file = found(around, `kvtide.${name}.node`, `kvtide-${name}`)
  if (file !== undefined) return file
  const reason = missing(around)
  throw notFound(`the native addon was not found: ${reason}`, around.platform, reason)
}

/** Returns the reason why the addon is missing, and how to install it. */
function missing({ folder, version, platform: { name } }: Surroundings): string {
  if (!(PLATFORMS as readonly string[]).includes(name)) {
    return `there is no prebuilt addon for ${name}, only for ${PLATFORMS.join(', ')}; build it from a checkout of kvtide`
  }
  const other = PLATFORMS.find(of => packageOf(folder, `kvtide-${of}`) !== undefined)
  if (other !== undefined) {
    return `kvtide-${other} is installed, but this system is ${name}: remove node_modules, and run \`npm install\` on the system that runs it`
  }
  return (
    `the package kvtide-${name} is not installed: run \`npm install kvtide-${name}@${version}\`, or install again without --no-optional or --omit=optional; ` +
    'if a package-lock.json came from another system, remove it and node_modules first'
  )
}

/** The file of an addon, next to this package or in a package of its own; `undefined` if it is not installed. */
function found({ folder, version, platform }: Surroundings, file: string, name: string): string | undefined {
  const beside = join(folder, file)
  if (existsSync(beside)) return beside
  const own = packageOf(folder, name)
  if (own === undefined) return undefined
  const inside = join(own.folder, own.main)
  if (own.version !== version) {
    const message = `${name} has version ${own.version}, but kvtide has ${version}: install the same version of both, with \`npm install kvtide@${version} ${name}@${version}\``
    throw new KvTideError('BINDING_MISMATCH', message, { file: inside, version: own.version, expected: version })
  }
  if (existsSync(inside)) return inside
  const reason = `${inside} is missing from its package: remove node_modules and run \`npm install\` again`
  throw notFound(`the native addon was not found: ${reason}`, platform, reason)
}

/** Resolves a package as node does from the folder of kvtide. */
function packageOf(folder: string, name: string): { folder: string; version: string; main: string } | undefined {
  const require = requireFrom(join(folder, 'package.json'))
  let file: string
  try {
    file = require.resolve(`${name}/package.json`)
  } catch {
    return undefined
  }
  const { version = 'unknown', main = 'missing' } = require(file) as { version?: string; main?: string }
  return { folder: dirname(file), version, main }
}

/** @internal */
export function notFound(message: string, { name: platform }: Platform, reason: string, cause?: unknown): KvTideError {
  return new KvTideError('BINDING_NOT_FOUND', message, { platform, reason }, cause === undefined ? {} : { cause })
}

/** The global under which a thread notes its addon, for systems that do not list mapped files. */
const CHOSEN: unique symbol = Symbol.for('kvtide.binding') as never

/** Refuses a second addon in this process: each would have its own threads, memory limits and errors. */
export function refuseSecond(choice: BindingChoice, loaded: readonly string[], chosen: string | undefined): void {
  const file = realpathSync(choice.file)
  const other = chosen !== undefined && chosen !== choice.file ? chosen : loaded.find(addon => addon !== file)
  if (other === undefined) return
  throw new KvTideError(
    'BINDING_CONFLICT',
    `this process already uses ${other} and cannot load ${choice.file} too: use one copy of kvtide (\`npm ls kvtide\` lists them, \`npm dedupe\` merges them) and one KVTIDE_DEVICE for all threads`,
    { file: choice.file, loaded: other },
  )
}

/** The addon that this thread already uses, if any. */
export function notedBinding(): string | undefined {
  return (globalThis as { [CHOSEN]?: string })[CHOSEN]
}

/** Notes the addon that this thread uses. */
export function noteBinding(choice: BindingChoice): void {
  Object.defineProperty(globalThis, CHOSEN, { value: choice.file, configurable: true })
}

/** The kvtide addons among the files that the process has mapped, in any thread. */
export function loadedAddons(maps: string): string[] {
  const files = maps.matchAll(/ (\/.*\/kvtide[\w.-]*\.node)(?: \(deleted\))?$/gm)
  return [...new Set([...files].map(([, file]) => Buffer.from(file ?? '', 'latin1').toString()))]
}
