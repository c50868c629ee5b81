// bench/cuda as a program for GPUs, linked with the same stubs as the addon: it starts where there is no driver, and says so.
import { join } from 'node:path'

import { hostTarget, root, run } from '../steps.mjs'
import { Refusal } from './refusal.mjs'

/** Its name, as the crate's. */
export const BENCH = 'kvtide-bench-cuda'

/** Where cargo puts it. */
export const benchFile = target => join(root, 'target', ...(target === undefined ? [] : [target]), 'release', BENCH)

/** Compiles it, in the environment of a build for CUDA. */
export async function buildBench(env) {
  const target = hostTarget()
  const onTarget = target === undefined ? [] : ['--target', target]
  const { code } = await run('cargo', ['build', '--release', '--package', BENCH, '--features', 'cuda', ...onTarget], { env })
  if (code !== 0) throw new Refusal(`${BENCH} could not be compiled: cargo says why above`)
  return benchFile(target)
}
