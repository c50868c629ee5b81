// Starts programs, in a clone and on a GPU machine.
import { spawn } from 'node:child_process'

/**
 * Runs a program and returns its exit code, which is undefined if the program doesn't exist, and its output, which is also shown unless it is to
 * be silent. A program that is still running at the time `until` is ended, and `late` is true.
 */
export function run(command, args, { silent = false, until = Infinity, ...options } = {}) {
  return new Promise(resolve => {
    const child = spawn(command, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      ...options,
      env: { ...process.env, ...options.env },
    })
    let output = ''
    let late = false
    for (const [from, to] of [
      [child.stdout, process.stdout],
      [child.stderr, process.stderr],
    ]) {
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
    child.on('error', error =>
      ended({ code: error.code === 'ENOENT' ? undefined : 1, output: `${output}\n${error.message}` }),
    )
    child.on('close', code => ended({ code: code ?? 1, output }))
  })
}
