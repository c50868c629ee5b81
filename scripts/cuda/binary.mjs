// Describes a built addon: its size, and the libraries and the glibc that it needs.
import { readFileSync } from 'node:fs'

import { ask } from '../steps.mjs'

/** The file name of the addon with CUDA that the package's loader looks for. */
export const ADDON = 'kvtide-cuda.linux-x64-gnu.node'

/** Returns the libraries that are needed to load the file, from `readelf --dynamic`. */
export function neededLibraries(dynamic) {
  return [...dynamic.matchAll(/\(NEEDED\).*\[(.+)\]/g)].map(([, name]) => name)
}

/** Returns the newest glibc version that the file requires, from `readelf --version-info`. */
export function glibcVersion(versionInfo) {
  const asked = [...versionInfo.matchAll(/\bGLIBC_(\d+(?:\.\d+)+)/g)].map(([, version]) => version)
  return asked.sort(compareVersions).at(-1)
}

export const compareVersions = new Intl.Collator('en', { numeric: true }).compare

/** Returns the requirements and the size of an addon for Linux, from `readelf` and the file. */
export function measured(file) {
  const read = what => ask('readelf', ['--wide', what, file]) ?? ''
  const bytes = readFileSync(file)
  return {
    bytes: bytes.length,
    glibc: glibcVersion(read('--version-info')),
    libraries: neededLibraries(read('--dynamic')),
    stripped: !bytes.includes('.symtab'),
  }
}

export function describe(file) {
  const { bytes, glibc = 'none', libraries } = measured(file)
  return `size       ${(bytes / 2 ** 20).toFixed(1)} MiB\nlibraries  ${libraries.join(', ') || 'none'}\nglibc      ${glibc} or later`
}
