// Starts programs, in a clone and on a GPU's machine alike.
import { spawn } from 'node:child_process'

/**
 * Runs a program, showing what it prints unless it is to be silent; answers its exit code, which is nothing where the program is not there,
 * and its output.
 */
export function run(command, args, { silent = false, ...options } = {}) {
  return new Promise(resolve => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options, env: { ...process.env, ...options.env } })
    let output = ''
    for (const [from, to] of [[child.stdout, process.stdout], [child.stderr, process.stderr]]) {
      from.on('data', chunk => {
        output += chunk
        if (!silent) to.write(chunk)
      })
    }
    child.on('error', error => resolve({ code: error.code === 'ENOENT' ? undefined : 1, output: `${output}\n${error.message}` }))
    child.on('close', code => resolve({ code: code ?? 1, output }))
  })
}
