// Measures the kernels on this machine's GPU, next to PyTorch and other installed programs: `run.sh bench`.
//
//   run.sh bench [<start of an id> ...] [--rounds <n>] [--turns <n>] [--python <program>]
//
// A turn is one run of kvtide's program and one of peers.py. There are several turns, so that both meet the GPU cold and warm.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

import { asked, merged, turnsOf } from './turns.mjs'

const here = fileURLToPath(new URL('.', import.meta.url))

/** Returns the summary for each start of ids, and writes its results to `results-<start>.json`, in the folder `out` or the current one. */
export async function measured(run, args, out = '.', gpu) {
  const { starts, ...options } = asked(args)
  const parts = []
  for (const only of starts) {
    const name = only === '' ? 'bench' : `bench ${only}`
    if (!gpu.usable) {
      parts.push({ name, reason: gpu.reason })
      continue
    }
    const results = await measure(run, { ...options, only })
    const file = resolve(out, `results${only === '' ? '' : `-${only}`}.json`)
    writeFileSync(file, `${JSON.stringify(results)}\n`)
    console.log(
      `\n${file}: ${results.workloads.length} workloads, ${results.skipped.length} skipped, ${results.failed.length} failed`,
    )
    for (const { id, skipped } of results.skipped) console.log(`SKIPPED: ${id}: ${skipped}`)
    for (const { id, error } of results.failed) console.log(`FAILED: ${id}: ${error}`)
    parts.push({
      name,
      passed: results.workloads.length,
      failed: results.failed.length,
      skipped: results.skipped.length,
    })
  }
  return parts
}

async function measure(run, { rounds, turns, only, python }) {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-bench-'))

  /** Returns the report that a program wrote, or its error message if it wrote none. */
  async function reported(suite, command, args, env) {
    const file = join(folder, `${suite}.json`)
    rmSync(file, { force: true })
    const { code, late } = await run(command, [...args, '--rounds', String(rounds), '--only', only, '--out', file], {
      env,
    })
    if (existsSync(file)) return JSON.parse(readFileSync(file, 'utf8'))
    const nothing = { suite, rounds, machine: null, workloads: [], skipped: [], failed: [] }
    if (code === undefined) return { ...nothing, skipped: [{ id: suite, skipped: `${command} was not found` }] }
    return {
      ...nothing,
      failed: [{ id: suite, error: late ? `${command} did not end in time` : `${command} has ended with ${code}` }],
    }
  }

  const programs = {
    cuda: () => reported('cuda', join(here, 'bench', 'kvtide-bench-cuda'), []),
    // PyTorch has libraries of its own, which must take precedence over those of the system.
    'cuda-peers': () =>
      reported('cuda-peers', python, ['-B', join(here, 'bench', 'peers.py')], {
        LD_LIBRARY_PATH: process.env.KVTIDE_LIBRARY_PATH_BEFORE ?? '',
      }),
  }
  try {
    return merged(await turnsOf(programs, turns), { turns, rounds })
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
