// Finding and loading onnxruntime-node: the package in the project, its version, and its native library. It is loaded at most once per thread. Errors name the
// installed version and the command that fixes the installation.
import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'

import type { NativeOnnxLibrary } from '#binding'

import { KvTideError, messageOf } from '../errors/errors.js'
import type { TensorData } from '../border/host-array.js'
import type { OnnxTensor } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { mappedFiles, platformOf } from '../loading/platform.js'
import { projects, requireFrom } from '../loading/projects.js'

/** An onnxruntime-node tensor. */
export interface RuntimeTensor {
  readonly type: string
  readonly dims: readonly number[]
  readonly data: ArrayLike<unknown>
  dispose?(): void
}

/** @internal The elements of a tensor in place: floats, or the bits of half floats, which newer engines return as a `Float16Array`. */
export function elementsOf({ type, data }: Pick<OnnxTensor, 'type' | 'data'>): TensorData {
  if (type === 'float32') return data as Float32Array
  const { buffer, byteOffset, length } = data as Uint16Array
  return new Uint16Array(buffer, byteOffset, length)
}

/** @internal Integers in the array of a type: 32-bit ones for `int32`, otherwise 64-bit ones. */
export function integersOf(type: string, numbers: ArrayLike<number>): Int32Array | BigInt64Array {
  return type === 'int32' ? Int32Array.from(numbers) : BigInt64Array.from(numbers, BigInt)
}

/** An onnxruntime-node session. */
export interface RuntimeSession {
  readonly inputNames: readonly string[]
  readonly outputNames: readonly string[]
  run(
    feeds: Readonly<Record<string, RuntimeTensor>>,
    fetches?: readonly string[],
  ): Promise<Readonly<Record<string, RuntimeTensor>>>
  release(): Promise<void>
}

/** The members of onnxruntime-node that are used here. Its own types need those of a browser. */
export interface OnnxRuntimeModule {
  readonly Tensor: new (type: string, data: ArrayLike<unknown>, dims: readonly number[]) => RuntimeTensor
  readonly InferenceSession: { create(model: string | Uint8Array, options?: object): Promise<RuntimeSession> }
}

/** @internal The onnxruntime-node that the project has installed. */
export interface OnnxPackage {
  readonly version: string
  /** The folder of the package. */
  readonly folder: string
}

/** @internal The package, loaded. */
export interface OnnxRuntime extends OnnxPackage {
  readonly module: OnnxRuntimeModule
}

/** The oldest version that has all functions that are used here. */
const MINOR_MIN = 17
/** @internal The first version from 1.22 on that a process may load again after all threads that had loaded it have ended. */
export const RELOADED_MINOR = 25
/** On Linux x64, its install downloads CUDA libraries, and fails where they cannot be reached. */
const SKIPPED = process.platform === 'linux' && process.arch === 'x64' ? 'ONNXRUNTIME_NODE_INSTALL=skip ' : ''
const INSTALL = `run \`${SKIPPED}npm install onnxruntime-node@latest\``
/** The names of its libraries, by system and version. */
const LIBRARY = /^(libonnxruntime\.so(\.[\d.]+)?|libonnxruntime(\.[\d.]+)?\.dylib|onnxruntime\.dll)$/

let runtime: OnnxRuntime | undefined
let library: NativeOnnxLibrary | undefined

function unavailable(reason: string, cause?: unknown): KvTideError<'RUNTIME_UNAVAILABLE'> {
  const details = { runtime: 'onnxruntime-node', reason }
  return new KvTideError(
    'RUNTIME_UNAVAILABLE',
    `onnxruntime-node cannot be used: ${reason}`,
    details,
    cause === undefined ? undefined : { cause },
  )
}

/** The path of its package.json. */
function found(): string {
  for (const project of projects()) {
    try {
      return requireFrom(project).resolve('onnxruntime-node/package.json')
    } catch {
      continue
    }
  }
  throw unavailable(`it is not installed: ${INSTALL}`)
}

/** @internal True if a version is at least 1.`least`. */
export function isAtLeast(version: string, least: number): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  return major > 1 || (major === 1 && minor >= least)
}

/** Returns the reason why a version cannot be used, if there is one. */
export function versionProblem(version: string): string | undefined {
  return isAtLeast(version, MINOR_MIN)
    ? undefined
    : `its version is ${version}, at least 1.${MINOR_MIN} is needed: ${INSTALL}`
}

/** Returns the reason why the module was not loaded, and the remedy. */
function loadProblem(cause: unknown): string {
  const platform = platformOf(process.platform, process.arch, mappedFiles())
  const reason = cause instanceof Error ? (cause.message.split('\n', 1)[0] ?? '') : String(cause)
  if (platform.name.endsWith('-musl'))
    return `it has no library for ${platform.name}, only for systems with glibc (${reason})`
  if (/Cannot find module/.test(reason))
    return `it has no library for ${platform.system}-${platform.arch}, or its installation is incomplete: ${INSTALL} (${reason})`
  if (/version .*not found|already loaded|API version/i.test(reason))
    return `another version of it is already loaded: use a single version in the project (${reason})`
  if (/did not self-register/.test(reason))
    return `before version 1.${RELOADED_MINOR} it cannot be loaded again once all threads that had loaded it have ended: import it on the main thread as well, or ${INSTALL} (${reason})`
  return `loading it failed: ${reason}`
}

/** @internal The installed onnxruntime-node, without loading it. Refused if it is missing or too old. */
export function onnxPackage(): OnnxPackage {
  if (runtime !== undefined) return runtime
  const file = found()
  const { version } = requireFrom(file)(file) as { version: string }
  const problem = versionProblem(version)
  if (problem !== undefined) throw unavailable(problem)
  return { version, folder: dirname(file) }
}

/**
 * @internal Loads onnxruntime-node from the project, or the package that another thread has found. It is loaded once, and before its library is opened
 * otherwise: if the process had another version of the library, loading would fail.
 */
export function onnxRuntime({ version, folder }: OnnxPackage = onnxPackage()): OnnxRuntime {
  if (runtime !== undefined) return runtime
  let module: OnnxRuntimeModule
  try {
    module = requireFrom(join(folder, 'package.json'))(folder) as OnnxRuntimeModule
  } catch (cause) {
    throw unavailable(loadProblem(cause), cause)
  }
  return (runtime = { module, version, folder })
}

/** @internal Returns the runtime's result. An error becomes `RUNTIME_FAILED`, with the node that its message names, otherwise with `node`. */
export async function ran<T>(node: string | undefined, call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (cause) {
    const reason = messageOf(cause)
    const named = /(?:Name:\s*|with name )'([^']+)'/.exec(reason)?.[1] ?? node
    throw new KvTideError(
      'RUNTIME_FAILED',
      `onnxruntime-node failed: ${reason}`,
      { reason, ...(named === undefined ? {} : { node: named }) },
      { cause },
    )
  }
}

/** The library files in a package for this system. */
export function libraryFiles(folder: string, system: string = process.platform, arch: string = process.arch): string[] {
  const bin = join(folder, 'bin')
  if (!existsSync(bin)) return []
  const folders = readdirSync(bin)
    .filter(name => /^napi-v\d+$/.test(name))
    .map(name => join(bin, name, system, arch))
  return folders.filter(existsSync).flatMap(at =>
    readdirSync(at)
      .filter(name => LIBRARY.test(name))
      .map(name => join(at, name)),
  )
}

/** @internal The library that onnxruntime-node has loaded, opened a second time for kvtide's operator. */
export function onnxLibrary(): NativeOnnxLibrary {
  if (library !== undefined) return library
  const { folder, version } = onnxRuntime()
  const files = libraryFiles(folder)
  if (files.length === 0) throw unavailable(`version ${version} has no library for ${process.platform}-${process.arch}`)
  return (library = binding.onnxLibrary(files))
}
