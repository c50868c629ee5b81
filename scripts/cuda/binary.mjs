// What a built addon is: its size, the code for GPUs inside, the libraries and the glibc that it needs.
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

/** Below zero when `first` is the older version. */
export function compareVersions(first, second) {
  const [a, b] = [first, second].map(version => version.split('.').map(Number))
  for (let place = 0; place < Math.max(a.length, b.length); place++) {
    const difference = (a[place] ?? 0) - (b[place] ?? 0)
    if (difference !== 0) return difference
  }
  return 0
}

/** The targets of PTX in a file, which newer GPUs compile for themselves: `['sm_80']`. */
export function ptxTargets(bytes) {
  const found = new Set()
  for (let at = bytes.indexOf('.target sm_'); at >= 0; at = bytes.indexOf('.target sm_', at + 1)) {
    found.add(/sm_\w+/.exec(bytes.toString('latin1', at, at + 24))[0])
  }
  return [...found].sort()
}

const FATBIN_MAGIC = 0xba55ed50
const ELF_KIND = 2

/** The GPUs that a file has machine code for, in the containers that nvcc puts into objects: `['sm_80']`. */
export function machineCode(bytes) {
  const magic = Buffer.alloc(4)
  magic.writeUInt32LE(FATBIN_MAGIC)
  const found = new Set()
  for (let at = bytes.indexOf(magic); at >= 0; at = bytes.indexOf(magic, at + 1)) {
    for (const target of entries(bytes, at)) found.add(target)
  }
  return [...found].sort()
}

/** A container is a header of 16 bytes (magic, version, its size; the size of what follows), then entries, each with a header. */
function* entries(bytes, start) {
  if (start + 16 > bytes.length) return
  let at = start + bytes.readUInt16LE(start + 6)
  const end = at + Number(bytes.readBigUInt64LE(start + 8))
  if (end > bytes.length) return
  while (at + 64 <= end) {
    const [kind, headerBytes, codeBytes] = [bytes.readUInt16LE(at), bytes.readUInt32LE(at + 4), Number(bytes.readBigUInt64LE(at + 8))]
    if (kind === ELF_KIND) yield `sm_${bytes.readUInt32LE(at + 28)}`
    if (headerBytes === 0) return
    at += headerBytes + codeBytes
  }
}

const listed = names => names.join(', ') || 'none'

/** One line for each thing worth knowing about a built addon. */
export function describe(file) {
  const bytes = readFileSync(file)
  return [
    `size       ${(bytes.length / 2 ** 20).toFixed(1)} MiB`,
    `PTX        ${listed(ptxTargets(bytes))} and later`,
    `GPU code   ${listed(machineCode(bytes))}`,
    `libraries  ${listed(neededLibraries(ask('readelf', ['--wide', '--dynamic', file]) ?? ''))}`,
    `glibc      ${glibcVersion(ask('readelf', ['--wide', '--version-info', file]) ?? '') ?? 'none'} or later`,
  ].join('\n')
}
