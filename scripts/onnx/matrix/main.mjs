// Makes the tiny models of all families with all exporters, runs them, and writes docs/models.md: `npm run models -- [--keep] [--only gemma2 ..]`.
// With `--keep` an interrupted run goes on: the families that it has made are kept.
// Fails if a graph gives wrong tokens, or fails after it was loaded.
import { join } from 'node:path'

import { must, root } from '../../steps.mjs'
import { exporters, folder } from '../python.mjs'

const [keep, only] = [process.argv.includes('--keep'), process.argv.slice(2).filter(word => word !== '--keep')]
const found = await exporters()
if (found !== undefined) {
  const models = join(folder, 'matrix')
  const make = join(root, 'scripts', 'onnx', 'matrix', 'make.py')
  const hybrid = join(root, 'scripts', 'onnx', 'matrix', 'hybrid.py')
  await must(found.python, [
    make,
    models,
    '--builder',
    found.builder,
    '--mobius',
    ...found.mobius,
    ...(keep ? ['--keep'] : []),
    ...only,
  ])
  // The folder of the builders has the newer transformers, which knows the hybrids.
  const env = { PYTHONPATH: join(found.builder, '..', '..') }
  await must(found.python, [hybrid, models, '--builder', found.builder, '--mobius', ...found.mobius, ...only], { env })
  const inputs = join(folder, 'inputs')
  if (only.length === 0) {
    await must(found.python, [
      join(root, 'scripts', 'onnx', 'matrix', 'encoder_decoder.py'),
      inputs,
      '--builder',
      found.builder,
    ])
    await must(found.python, [join(root, 'scripts', 'onnx', 'matrix', 'vision.py'), inputs, '--builder', found.builder])
  }
  const page = only.length === 0 ? [join(root, 'docs', 'models.md'), inputs] : []
  await must('node', [join(root, 'scripts', 'onnx', 'matrix', 'run.mjs'), models, ...page])
}
