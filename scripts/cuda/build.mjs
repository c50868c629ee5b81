// `npm run build:cuda`: the addon with CUDA, beside the ordinary one, on a machine that needs neither GPU nor driver nor CUDA.
//
//   toolkit (CUDA_HOME, or wheels)  ->  link stubs  ->  napi build --features cuda,net  ->  strip, describe
//
// What is compiled lies in target/ with everything else: cargo tells builds with and without the feature apart, and makes
// neither of them twice.
import { renameSync } from 'node:fs'
import { join } from 'node:path'

import { must, root } from '../steps.mjs'
import { ADDON, describe } from './binary.mjs'
import { cudaEnvironment, cudaFolder } from './environment.mjs'
import { main } from '../refusal.mjs'

async function build() {
  const env = await cudaEnvironment()
  // The generated types go to a folder of their own: the package has those of the ordinary build.
  const output = join(cudaFolder, 'output')
  const named = ['--config-path', 'scripts/cuda/napi.json', '--output-dir', output, '--no-js', '--dts', 'binding.d.cts']
  await must('napi', ['build', '--platform', '--release', '--no-const-enum', '--features', 'cuda,net', ...named], { env })

  const built = join(output, ADDON)
  await must('strip', ['--strip-all', built])
  console.log(`\n${ADDON}\n${describe(built)}`)
  renameSync(built, join(root, ADDON))
}

await main(import.meta.url, 'cannot build for CUDA', build)
