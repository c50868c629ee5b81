import { existsSync, readdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

import type { NativeOnnxLibrary } from '#binding'

import { KvTideError } from '../border/errors.js'
import { binding } from '../loading/binding.js'
import { mappedFiles, platformOf } from '../loading/platform.js'
import { projects } from '../loading/projects.js'

/** A tensor of onnxruntime-node's. */
export interface RuntimeTensor {
  readonly type: string
  readonly dims: readonly number[]
  readonly data: ArrayLike<unknown>
  dispose?(): void
}

/** A session of onnxruntime-node's. */
export interface RuntimeSession {
  readonly inputNames: readonly string[]
  readonly outputNames: readonly string[]
  run(feeds: Readonly<Record<string, RuntimeTensor>>, fetches?: readonly string[]): Promise<Readonly<Record<string, RuntimeTensor>>>
  release(): Promise<void>
}

/** As much of onnxruntime-node as is used here. Its own types need those of a browser. */
export interface OnnxRuntimeModule {
  readonly Tensor: new (type: string, data: ArrayLike<unknown>, dims: readonly number[]) => RuntimeTensor
  readonly InferenceSession: { create(model: string | Uint8Array, options?: object): Promise<RuntimeSession> }
}

/** @internal onnxruntime-node as this project has it. */
export interface OnnxPackage {
  readonly version: string
  /** Where the package lies. */
  readonly folder: string
}

/** @internal The same, loaded. */
export interface OnnxRuntime extends OnnxPackage {
  readonly module: OnnxRuntimeModule
}

/** The oldest version that has what is used. */
const MINOR_MIN = 17
const INSTALL = 'run `npm install onnxruntime-node@latest`'
/** How its libraries are called, by system and version. */
const LIBRARY = /^(libonnxruntime\.so(\.[\d.]+)?|libonnxruntime(\.[\d.]+)?\.dylib|onnxruntime\.dll)$/

let runtime: OnnxRuntime | undefined
let library: NativeOnnxLibrary | undefined

function unavailable(reason: string, cause?: unknown): KvTideError<'RUNTIME_UNAVAILABLE'> {
  const details = { runtime: 'onnxruntime-node', reason }
  return new KvTideError('RUNTIME_UNAVAILABLE', `onnxruntime-node cannot be used: ${reason}`, details, cause === undefined ? undefined : { cause })
}

/** Its package.json. */
function found(): string {
  for (const project of projects()) {
    try {
      return createRequire(project).resolve('onnxruntime-node/package.json')
    } catch {
      continue
    }
  }
  throw unavailable(`it is not installed: ${INSTALL}`)
}

/** @internal Whether a version is 1.`least`, or later. */
export function isAtLeast(version: string, least: number): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  return major > 1 || (major === 1 && minor >= least)
}

/** Why a version cannot be used, if it cannot. */
export function versionProblem(version: string): string | undefined {
  return isAtLeast(version, MINOR_MIN) ? undefined : `its version is ${version}, at least 1.${MINOR_MIN} is needed: ${INSTALL}`
}

/** Why a module was not loaded, and what to do. */
function loadProblem(cause: unknown): string {
  const platform = platformOf(process.platform, process.arch, mappedFiles())
  const reason = cause instanceof Error ? (cause.message.split('\n', 1)[0] ?? '') : String(cause)
  if (platform.name.endsWith('-musl')) return `it has nothing for ${platform.name}, only for systems with glibc (${reason})`
  if (/Cannot find module/.test(reason)) return `it has nothing for ${platform.system}-${platform.arch}, or is not installed whole: ${INSTALL} (${reason})`
  if (/version .*not found|already loaded|API version/i.test(reason)) return `another version of it was loaded before: let the project have one (${reason})`
  return `it does not load: ${reason}`
}

/** @internal onnxruntime-node as it is installed: nothing of it is loaded. Refused where it is missing or too old. */
export function onnxPackage(): OnnxPackage {
  if (runtime !== undefined) return runtime
  const file = found()
  const { version } = createRequire(file)(file) as { version: string }
  const problem = versionProblem(version)
  if (problem !== undefined) throw unavailable(problem)
  return { version, folder: dirname(file) }
}

/**
 * @internal onnxruntime-node, loaded from the project, or as another thread has found it. It is loaded once, and before its library is touched:
 * another version of the library in the process would make it fail.
 */
export function onnxRuntime({ version, folder }: OnnxPackage = onnxPackage()): OnnxRuntime {
  if (runtime !== undefined) return runtime
  let module: OnnxRuntimeModule
  try {
    module = createRequire(join(folder, 'package.json'))(folder) as OnnxRuntimeModule
  } catch (cause) {
    throw unavailable(loadProblem(cause), cause)
  }
  return (runtime = { module, version, folder })
}

/** @internal What the runtime answers; what it throws, as a coded error with the node that it names, or else with `node`. */
export async function ran<T>(node: string | undefined, call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    const named = /(?:Name:\s*|with name )'([^']+)'/.exec(reason)?.[1] ?? node
    throw new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason, ...(named === undefined ? {} : { node: named }) }, { cause })
  }
}

/** The files of a package's library for this system. */
export function libraryFiles(folder: string, system: string = process.platform, arch: string = process.arch): string[] {
  const bin = join(folder, 'bin')
  if (!existsSync(bin)) return []
  const folders = readdirSync(bin)
    .filter(name => /^napi-v\d+$/.test(name))
    .map(name => join(bin, name, system, arch))
  return folders.filter(existsSync).flatMap(at => readdirSync(at).filter(name => LIBRARY.test(name)).map(name => join(at, name)))
}

/** @internal The library that onnxruntime-node has loaded, opened once more for the operator. */
export function onnxLibrary(): NativeOnnxLibrary {
  if (library !== undefined) return library
  const { folder, version } = onnxRuntime()
  const files = libraryFiles(folder)
  if (files.length === 0) throw unavailable(`version ${version} has no library for ${process.platform}-${process.arch}`)
  return (library = binding.onnxLibrary(files))
}
