// Starts programs, in a clone and on a GPU's machine alike.
import { spawn } from 'node:child_process'

/**
 * Runs a program, showing what it prints unless it is to be silent; answers its exit code, which is nothing where the program is not there,
 * and its output. One that has not ended at the time `until` is ended, and `late`.
 */
export function run(command, args, { silent = false, until = Infinity, ...options } = {}) {
  return new Promise(resolve => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options, env: { ...process.env, ...options.env } })
    let output = ''
    let late = false
    for (const [from, to] of [[child.stdout, process.stdout], [child.stderr, process.stderr]]) {
      from.on('data', chunk => {
        output += chunk
        if (!silent) to.write(chunk)
      })
    }
    const end = () => {
      late = true
      child.kill('SIGKILL')
    }
    const timer = Number.isFinite(until) ? setTimeout(end, Math.max(until - Date.now(), 0)) : undefined
    const ended = outcome => {
      clearTimeout(timer)
      resolve({ ...outcome, late })
    }
    child.on('error', error => ended({ code: error.code === 'ENOENT' ? undefined : 1, output: `${output}\n${error.message}` }))
    child.on('close', code => ended({ code: code ?? 1, output }))
  })
}
