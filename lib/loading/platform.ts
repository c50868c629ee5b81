// The platform of this process, as addons and packages are named.
import { readFileSync } from 'node:fs'

/** The platforms with prebuilt addons, as their packages and files name them. */
export const PLATFORMS = [
  'darwin-arm64',
  'darwin-x64',
  'linux-arm64-gnu',
  'linux-arm64-musl',
  'linux-x64-gnu',
  'linux-x64-musl',
  'win32-arm64-msvc',
  'win32-x64-msvc',
] as const

/** The Node-API version that the addon needs; available since node 18.17. */
const NODE_API = 9

/** The platform of this process. */
export interface Platform {
  /** The name in the platform's package, even if no such package exists. */
  readonly name: string
  readonly system: string
  readonly arch: string
}

/** The platform of a process; `maps` lists its mapped files, if the system lists them. */
export function platformOf(system: string, arch: string, maps: string): Platform {
  const suffix = system === 'linux' ? (isMusl(maps) ? '-musl' : '-gnu') : system === 'win32' ? '-msvc' : ''
  return { name: `${system}-${arch}${suffix}`, system, arch }
}

/** True if this process uses musl rather than glibc: musl's loader is mapped. */
function isMusl(maps: string): boolean {
  if (maps !== '') return /\/(ld-musl-|libc\.musl-)/.test(maps)
  const report = process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined
  return report?.header !== undefined && report.header.glibcVersionRuntime === undefined
}

/** The files that this process has mapped; empty if the system does not list them. */
export function mappedFiles(): string {
  try {
    return readFileSync('/proc/self/maps', 'latin1')
  } catch {
    return ''
  }
}

/** Returns the reason why this runtime cannot load an addon, if there is one; `versions` is `process.versions`. */
export function runtimeProblem(versions: Readonly<Record<string, string | undefined>>): string | undefined {
  const { napi, node } = versions
  if (napi === undefined || Number(napi) >= NODE_API) return undefined
  return `node ${node ?? ''} has Node-API ${napi}, kvtide needs ${NODE_API}: use node 20 or later`
}
