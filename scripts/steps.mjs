// Runs commands one after the other, for the scripts of this folder.
import { spawn, spawnSync } from 'node:child_process'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The folder of the repository. */
export const root = fileURLToPath(new URL('..', import.meta.url))

const searchPath = () => [join(root, 'node_modules', '.bin'), process.env.PATH].join(delimiter)
const onWindows = process.platform === 'win32'

/** The triple that `napi build` builds for, so that cargo shares what is compiled with it. */
export function hostTarget() {
  const { stdout } = spawnSync('rustc', ['-vV'], { encoding: 'utf8', cwd: root })
  return /^host: (.+)$/m.exec(stdout ?? '')?.[1]
}

/** True when `command` can be run. */
export function exists(command) {
  return spawnSync(command, ['--version'], { stdio: 'ignore', cwd: root, shell: onWindows }).status === 0
}

/** What a command prints, or nothing where it cannot be run or fails. */
export function ask(command, args, options = {}) {
  const { status, stdout } = spawnSync(command, args, { encoding: 'utf8', cwd: root, maxBuffer: 2 ** 30, ...options })
  return status === 0 ? stdout : undefined
}

/** Runs a command, showing what it prints unless it is to be silent; answers its exit code and its output. */
export function run(command, args, { silent = false, ...options } = {}) {
  return new Promise(resolve => {
    const child = spawn(command, args, {
      cwd: root,
      shell: onWindows,
      stdio: ['ignore', 'pipe', 'pipe'],
      ...options,
      env: { ...process.env, PATH: searchPath(), ...options.env },
    })
    let output = ''
    for (const [from, to] of [[child.stdout, process.stdout], [child.stderr, process.stderr]]) {
      from.on('data', chunk => {
        output += chunk
        if (!silent) to.write(chunk)
      })
    }
    child.on('error', error => resolve({ code: 1, output: `${output}\n${error.message}` }))
    child.on('close', code => resolve({ code: code ?? 1, output }))
  })
}

/** Runs a command and ends the process when it fails. */
export async function must(command, args, options) {
  const { code, output } = await run(command, args, options)
  if (code !== 0) {
    console.error(`failed: ${command} ${args.join(' ')}`)
    process.exit(code)
  }
  return output
}
