import { existsSync, readFileSync, realpathSync } from 'node:fs'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'

import { invalid, KvTideError } from './errors.js'

/** The addon with CUDA: its file beside the ordinary one, and the package that brings it. */
const CUDA_FILE = 'kvtide-cuda.linux-x64-gnu.node'
const CUDA_PACKAGE = 'kvtide-cuda-linux-x64-gnu'

/** Which of the package's two addons this process runs on. */
export interface BindingChoice {
  readonly kind: 'cpu' | 'cuda'
  /** What is loaded: the addon itself, or the generated loader, which finds the one of the platform. */
  readonly file: string
  /** Why this one. */
  readonly reason: string
}

/** What the choice depends on. */
export interface Surroundings {
  /** The generated loader, in the folder of the package. */
  readonly loader: string
  /** `KVTIDE_DEVICE`. */
  readonly wanted: string | undefined
  /** Whether the addon with CUDA exists for this system at all. */
  readonly cudaPlatform: boolean
}

/** Chooses: the addon with CUDA when it is installed, which has everything that the other one has, unless it is not wanted. */
export function chooseBinding({ loader, wanted = '', cudaPlatform }: Surroundings): BindingChoice {
  if (!['', 'auto', 'cpu', 'cuda'].includes(wanted)) {
    throw invalid('KVTIDE_DEVICE', wanted, 'auto, cpu or cuda')
  }
  if (wanted === 'cpu') return { kind: 'cpu', file: loader, reason: 'KVTIDE_DEVICE is cpu' }
  const file = cudaPlatform ? cudaFile(loader) : undefined
  if (file !== undefined) return { kind: 'cuda', file, reason: 'it is installed' }
  if (wanted === 'cuda') {
    const platform = `${process.platform}-${process.arch}`
    const reason = cudaPlatform ? `install it with \`npm install ${CUDA_PACKAGE}\`` : 'there is none for this platform'
    throw new KvTideError('BINDING_NOT_FOUND', `KVTIDE_DEVICE is cuda, and the addon with CUDA is not there: ${reason}`, { platform, reason })
  }
  return { kind: 'cpu', file: loader, reason: 'the addon with CUDA is not installed' }
}

/** The addon with CUDA, when there is one. */
function cudaFile(loader: string): string | undefined {
  const beside = join(dirname(loader), CUDA_FILE)
  if (existsSync(beside)) return beside
  try {
    return createRequire(loader).resolve(CUDA_PACKAGE)
  } catch {
    return undefined
  }
}

/** Where a thread keeps which addon it runs on: for systems that do not list what is loaded. */
const CHOSEN: unique symbol = Symbol.for('kvtide.binding') as never

/** Refuses a second addon in this process: each would have threads, memory limits and errors of its own. */
export function refuseSecond(choice: BindingChoice, loaded: readonly string[], chosen: string | undefined): void {
  const other = chosen !== undefined && chosen !== choice.file ? chosen : loaded.find(addon => !belongs(addon, choice))
  if (other === undefined) return
  throw new KvTideError(
    'BINDING_CONFLICT',
    `this process runs on ${other} already, and would get ${choice.file} besides: use one copy of kvtide, and one KVTIDE_DEVICE for all threads`,
    { file: choice.file, loaded: other },
  )
}

/** The addon that this thread runs on already, if it does. */
export function notedBinding(): string | undefined {
  return (globalThis as { [CHOSEN]?: string })[CHOSEN]
}

/** Notes that this thread runs on an addon. */
export function noteBinding(choice: BindingChoice): void {
  Object.defineProperty(globalThis, CHOSEN, { value: choice.file, configurable: true })
}

/** Whether a loaded file is what `choice` loads. The generated loader has its addons beside itself, or in packages of theirs. */
function belongs(addon: string, { kind, file }: BindingChoice): boolean {
  if (kind === 'cuda') return addon === realpathSync(file)
  if (basename(addon).startsWith('kvtide-cuda.')) return false
  return dirname(addon) === dirname(realpathSync(file)) || isOfPackage(addon, file) || addon === process.env['NAPI_RS_NATIVE_LIBRARY_PATH']
}

function isOfPackage(addon: string, loader: string): boolean {
  try {
    return createRequire(loader).resolve(basename(dirname(addon))) === addon
  } catch {
    return false
  }
}

/** Addons of kvtide that any thread of this process has loaded; none where the system does not list them. */
export function loadedAddons(): string[] {
  let maps: string
  try {
    maps = readFileSync('/proc/self/maps', 'latin1')
  } catch {
    return []
  }
  const files = maps.matchAll(/ (\/.*\/kvtide[\w.-]*\.node)(?: \(deleted\))?$/gm)
  return [...new Set([...files].map(([, file]) => Buffer.from(file ?? '', 'latin1').toString()))]
}
