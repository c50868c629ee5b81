// Builds the programs for GPUs that run without cargo, linked with the same stubs as the addon: the kernels' tests, and bench/cuda.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { Refusal } from '../refusal.mjs'
import { onTarget, root, run } from '../steps.mjs'

/** Returns the programs of a kind from the output of `cargo --message-format=json`: `[{ name, file }]`. */
export function programsOf(messages, kind) {
  const lines = messages
    .split('\n')
    .filter(line => line.startsWith('{'))
    .map(line => JSON.parse(line))
  const found = lines.filter(
    ({ reason, executable, target }) =>
      reason === 'compiler-artifact' && executable !== null && target.kind.includes(kind),
  )
  return found.map(({ executable, target }) => ({ name: target.name, file: executable }))
}

async function compiled(env, args, kind, features) {
  const { code, output } = await run(
    'cargo',
    [...args, '--release', '--features', features.join(), '--message-format', 'json-render-diagnostics', ...onTarget()],
    { env, silent: true },
  )
  const programs = programsOf(output, kind)
  if (code !== 0 || programs.length === 0)
    throw new Refusal(
      `cargo ${args.join(' ')} failed:\n${output
        .split('\n')
        .filter(line => !line.startsWith('{'))
        .join('\n')}`,
    )
  return programs
}

export const buildKernelTests = env =>
  compiled(env, ['test', '--no-run', '--package', 'kvtide-cuda', '--tests'], 'test', ['cuda'])

export const buildBench = env => compiled(env, ['build', '--package', 'kvtide-bench-cuda'], 'bin', ['cuda'])

/** Counts the tests of kernels in their sources, for machines on which no program is built. */
export function countKernelTests(folder = join(root, 'crates', 'kvtide-cuda', 'tests')) {
  const sources = readdirSync(folder, { recursive: true }).filter(name => name.endsWith('.rs'))
  return sources.reduce(
    (count, name) => count + (readFileSync(join(folder, name), 'utf8').match(/^\s*#\[test\]$/gm) ?? []).length,
    0,
  )
}
