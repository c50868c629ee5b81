// The kernels' tests as programs of their own, which run without cargo.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { hostTarget, root, run } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

const TESTS = join(root, 'crates', 'kvtide-cuda', 'tests')

/** The test programs in what `cargo test --no-run --message-format=json` prints: `[{ name, file }]`. */
export function testPrograms(messages) {
  return messages
    .split('\n')
    .filter(line => line.startsWith('{'))
    .map(line => JSON.parse(line))
    .filter(({ reason, executable, target }) => reason === 'compiler-artifact' && executable !== null && target.kind.includes('test'))
    .map(({ executable, target }) => ({ name: target.name, file: executable }))
}

/** Compiles the programs for GPUs, in the environment of a build for CUDA. */
export async function buildKernelTests(env) {
  const target = hostTarget()
  const onTarget = target === undefined ? [] : ['--target', target]
  const args = ['test', '--no-run', '--release', '--package', 'kvtide-cuda', '--tests', '--features', 'cuda', '--message-format', 'json-render-diagnostics', ...onTarget]
  const { code, output } = await run('cargo', args, { env, silent: true })
  const programs = testPrograms(output)
  if (code !== 0 || programs.length === 0) throw new Refusal(`the kernels' tests could not be compiled:\n${output.split('\n').filter(line => !line.startsWith('{')).join('\n')}`)
  return programs
}

/** How many tests of kernels there are, from their sources: where no program is built. */
export function countKernelTests(folder = TESTS) {
  const sources = readdirSync(folder, { recursive: true }).filter(name => name.endsWith('.rs'))
  return sources.reduce((count, name) => count + (readFileSync(join(folder, name), 'utf8').match(/^\s*#\[test\]$/gm) ?? []).length, 0)
}
