// What a built addon is: its size, and the libraries and the glibc that it needs.
import { readFileSync } from 'node:fs'

import { ask } from '../steps.mjs'

/** The addon with CUDA, as the package's loader looks for it. */
export const ADDON = 'kvtide-cuda.linux-x64-gnu.node'

/** The libraries that have to be there before the file loads, from `readelf --dynamic`. */
export function neededLibraries(dynamic) {
  return [...dynamic.matchAll(/\(NEEDED\).*\[(.+)\]/g)].map(([, name]) => name)
}

/** The newest version of glibc that the file asks for, from `readelf --version-info`. */
export function glibcVersion(versionInfo) {
  const asked = [...versionInfo.matchAll(/\bGLIBC_(\d+(?:\.\d+)+)/g)].map(([, version]) => version)
  return asked.sort(compareVersions).at(-1)
}

export const compareVersions = new Intl.Collator('en', { numeric: true }).compare

/** What an addon of Linux needs and how large it is, as `readelf` and the file say. */
export function measured(file) {
  const read = what => ask('readelf', ['--wide', what, file]) ?? ''
  const bytes = readFileSync(file)
  return { bytes: bytes.length, glibc: glibcVersion(read('--version-info')), libraries: neededLibraries(read('--dynamic')), stripped: !bytes.includes('.symtab') }
}

export function describe(file) {
  const { bytes, glibc = 'none', libraries } = measured(file)
  return `size       ${(bytes / 2 ** 20).toFixed(1)} MiB\nlibraries  ${libraries.join(', ') || 'none'}\nglibc      ${glibc} or later`
}
