// Runs commands, one after the other, for the scripts of this folder.
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

import { rustCounts } from './cuda/carried/parts.mjs'
import { run as runProgram } from './cuda/carried/program.mjs'

export const root = fileURLToPath(new URL('..', import.meta.url))

/** The repository's package.json. */
export const repository = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))

/** Makes a folder that is removed when the process ends, even if it ends because a command failed. */
export function temporary(name) {
  const folder = mkdtempSync(join(tmpdir(), `kvtide-${name}-`))
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  return folder
}

const searchPath = () => [join(root, 'node_modules', '.bin'), process.env.PATH].join(delimiter)
const onWindows = process.platform === 'win32'

/** The target triple of `napi build`, so that cargo shares compiled crates with it. */
export function hostTarget() {
  return /^host: (.+)$/m.exec(ask('rustc', ['-vV']) ?? '')?.[1]
}

/** The file in which cargo puts the library of the addon here. */
export const libraryFile = { linux: 'libkvtide.so', darwin: 'libkvtide.dylib', win32: 'kvtide.dll' }[process.platform]

/** The same as arguments of cargo. */
export function onTarget() {
  const target = hostTarget()
  return target === undefined ? [] : ['--target', target]
}

export function exists(command) {
  return ask(command, ['--version'], { shell: onWindows }) !== undefined
}

/** Returns the output of a command, or undefined if it can't be run or fails. */
export function ask(command, args, options = {}) {
  const { status, stdout } = spawnSync(command, args, { encoding: 'utf8', cwd: root, maxBuffer: 2 ** 30, ...options })
  return status === 0 ? stdout : undefined
}

/** Runs a command and returns its exit code and its output, which is also shown unless it is to be silent. */
export async function run(command, args, options = {}) {
  const { code = 1, output } = await runProgram(command, args, {
    cwd: root,
    shell: onWindows,
    ...options,
    env: { PATH: searchPath(), ...options.env },
  })
  return { code, output }
}

/** Returns the reason why a command that succeeded did nothing: it says SKIPPED, and no test of it has passed. */
export function skippedBy(output) {
  const [, reason] = /^(?:test .* \.\.\. )?SKIPPED: (.*)/m.exec(output) ?? []
  return rustCounts(output).passed > 0 || /^\s*[1-9]\d* tests? passed/m.test(output) ? undefined : reason
}

/** Runs a command, and ends the process if it fails. What a silent one has written is then shown. */
export async function must(command, args, options) {
  const { code, output } = await run(command, args, options)
  if (code !== 0) {
    if (options?.silent === true) console.error(output)
    console.error(`failed: ${command} ${args.join(' ')}`)
    process.exit(code)
  }
  return output
}
