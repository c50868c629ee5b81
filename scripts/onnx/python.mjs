// A Python with the exporters of ONNX models, in target/exporters: torch, optimum-onnx and onnxruntime-genai, and beside them the newer transformers that
// the model builder of onnxruntime-genai needs. About 3 GB, made once.
import { cpSync, existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { ask, root, run } from '../steps.mjs'

const PACKAGES = [
  'torch==2.8.0',
  'transformers==4.57.6',
  'optimum-onnx==0.1.0',
  'accelerate',
  'gguf',
  'onnx',
  'onnxruntime==1.31.1',
  'onnxruntime-genai==0.18.0',
]
const BUILDERS = ['transformers==5.24.0', 'onnx_ir']

export const folder = join(root, 'target', 'exporters')

/** The path of the Python, and the folder of the model builder; undefined if they cannot be made, with the reason on the console. */
export async function exporters() {
  const python = join(folder, 'python', 'bin', 'python')
  const apart = join(folder, 'builder')
  const found = { python, builder: join(apart, 'onnxruntime_genai', 'models') }
  const marker = join(folder, 'made')
  if (existsSync(marker)) return found
  rmSync(folder, { recursive: true, force: true })
  const pip = (...rest) => run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...rest])
  const steps = [
    () => run(process.env.KVTIDE_EXPORTERS_PYTHON ?? 'python3', ['-m', 'venv', join(folder, 'python')]),
    () => pip(...PACKAGES),
    () => pip('--target', apart, ...BUILDERS),
  ]
  for (const step of steps) {
    const { code } = await step()
    if (code === 0) continue
    console.log('SKIPPED: a Python with torch, optimum-onnx and onnxruntime-genai cannot be made')
    return undefined
  }
  const site = ask(python, ['-c', 'import sysconfig; print(sysconfig.get_paths()["purelib"])'])?.trim()
  cpSync(join(site, 'onnxruntime_genai'), join(apart, 'onnxruntime_genai'), { recursive: true })
  writeFileSync(marker, '')
  return found
}

/** Downloads wheels without installing them. Returns false if that is impossible. */
export async function wheels(python, names, to) {
  const { code } = await run(python, ['-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', to, ...names])
  return code === 0
}
