// `npm run build:cuda`: builds the addon with CUDA, next to the ordinary one, on a machine that needs neither GPU nor driver nor CUDA.
//
//   toolkit (CUDA_HOME, or wheels)  ->  link stubs  ->  napi build --features cuda,net  ->  strip, describe
//
// Compiled crates are in target/ with all others: cargo keeps builds with and without the feature apart, and compiles neither of them twice.
import { renameSync } from 'node:fs'
import { join } from 'node:path'

import { must, root } from '../steps.mjs'
import { ADDON, describe } from './binary.mjs'
import { cudaEnvironment, cudaFolder } from './environment.mjs'
import { main } from '../refusal.mjs'

async function build() {
  const env = await cudaEnvironment()
  // The generated types are written to a separate folder, because the package has those of the ordinary build.
  const output = join(cudaFolder, 'output')
  const named = ['--config-path', 'scripts/cuda/napi.json', '--output-dir', output, '--no-js', '--dts', 'binding.d.cts']
  await must('napi', ['build', '--platform', '--release', '--no-const-enum', '--features', 'cuda,net', ...named], {
    env,
  })

  const built = join(output, ADDON)
  await must('strip', ['--strip-all', built])
  console.log(`\n${ADDON}\n${describe(built)}`)
  renameSync(built, join(root, ADDON))
}

await main(import.meta.url, 'cannot build for CUDA', build)
