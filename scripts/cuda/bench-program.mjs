// bench/cuda as a program for GPUs, linked with the same stubs as the addon: it starts where there is no driver, and says so.
import { hostTarget, run } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

/** Its name, as the crate's. */
export const BENCH = 'kvtide-bench-cuda'

/** The program in what `cargo build --message-format=json` prints; nothing where it is not there. */
export function benchProgram(messages) {
  const lines = messages.split('\n').filter(line => line.startsWith('{')).map(line => JSON.parse(line))
  const built = lines.find(({ reason, executable, target }) => reason === 'compiler-artifact' && executable !== null && target.name === BENCH && target.kind.includes('bin'))
  return built?.executable
}

/** Compiles it, in the environment of a build for CUDA: where it is. */
export async function buildBench(env) {
  const target = hostTarget()
  const onTarget = target === undefined ? [] : ['--target', target]
  const args = ['build', '--release', '--package', BENCH, '--features', 'cuda', '--message-format', 'json-render-diagnostics', ...onTarget]
  const { code, output } = await run('cargo', args, { env, silent: true })
  const program = benchProgram(output)
  if (code !== 0 || program === undefined) throw new Refusal(`${BENCH} could not be compiled:\n${output.split('\n').filter(line => !line.startsWith('{')).join('\n')}`)
  return program
}
