// A Python with the exporters of ONNX models, in target/exporters: torch, optimum-onnx and onnxruntime-genai, and beside them mobius-onnx and the newer transformers
// that it and the model builder of onnxruntime-genai need. About 3 GB, made once.
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
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
  // Of torch's newer exporter.
  'onnxscript==0.7.2',
]
const BUILDERS = ['transformers==5.24.0', 'onnx_ir']
/** mobius-onnx, and what it needs besides. */
const MOBIUS = ['mobius-onnx==0.1.0', 'onnx-shape-inference==0.4.0', 'onnxscript==0.7.2']

export const folder = join(root, 'target', 'exporters')

/**
 * The path of the Python, the folder of the model builder, and the folders with mobius-onnx and its transformers; undefined if they cannot be made, with the reason
 * on the console.
 */
export async function exporters() {
  const python = join(folder, 'python', 'bin', 'python')
  const [apart, mobius] = [join(folder, 'builder'), join(folder, 'mobius')]
  const found = { python, builder: join(apart, 'onnxruntime_genai', 'models'), mobius: [mobius, apart] }
  const marker = join(folder, 'made')
  const packages = [...PACKAGES, ...BUILDERS, ...MOBIUS].join('\n')
  if (existsSync(marker) && readFileSync(marker, 'utf8') === packages) return found
  rmSync(folder, { recursive: true, force: true })
  const pip = (...rest) => run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...rest])
  const steps = [
    () => run(process.env.KVTIDE_EXPORTERS_PYTHON ?? 'python3', ['-m', 'venv', join(folder, 'python')]),
    () => pip(...PACKAGES),
    () => pip('--target', apart, ...BUILDERS),
    () => pip('--target', mobius, '--no-deps', ...MOBIUS),
  ]
  for (const step of steps) {
    const { code } = await step()
    if (code === 0) continue
    console.log('SKIPPED: a Python with torch, optimum-onnx, onnxruntime-genai and mobius-onnx cannot be made')
    return undefined
  }
  const site = ask(python, ['-c', 'import sysconfig; print(sysconfig.get_paths()["purelib"])'])?.trim()
  cpSync(join(site, 'onnxruntime_genai'), join(apart, 'onnxruntime_genai'), { recursive: true })
  writeFileSync(marker, packages)
  return found
}

/** Downloads wheels without installing them. Returns false if that is impossible. */
export async function wheels(python, names, to) {
  const { code } = await run(python, ['-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', to, ...names])
  return code === 0
}
