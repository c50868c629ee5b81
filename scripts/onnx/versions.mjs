// Runs the tests of graphs in onnxruntime with several versions of onnxruntime-node: the oldest supported one, and some since.
//
//   node scripts/onnx/versions.mjs [version ..]
//
// npm installs each version below target/onnxruntime; a version that can't be installed is SKIPPED by name.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { root, run } from '../steps.mjs'

const VERSIONS = ['1.17.3', '1.20.1', '1.22.0', '1.24.3', '1.27.0', '1.30.0']

/** Returns the folder of a project with this version, installing it if needed, or undefined if that fails. */
function installed(version) {
  const folder = join(root, 'target', 'onnxruntime', version)
  if (existsSync(join(folder, 'node_modules', 'onnxruntime-node', 'package.json'))) return folder
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{ "private": true }\n')
  // Its install script would fetch files that only GPUs need.
  const { status } = spawnSync(
    'npm',
    ['install', '--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund', `onnxruntime-node@${version}`],
    { stdio: 'inherit', shell: process.platform === 'win32' },
  )
  return status === 0 ? folder : undefined
}

const failed = []
const wanted = process.argv.slice(2)
for (const version of wanted.length > 0 ? wanted : VERSIONS) {
  const folder = installed(version)
  if (folder === undefined) {
    console.log(`SKIPPED: onnxruntime-node ${version} could not be installed`)
    continue
  }
  console.log(`\n== onnxruntime-node ${version}`)
  const preload = join(root, 'scripts', 'onnx', 'another-runtime.cjs')
  const env = { KVTIDE_ONNXRUNTIME: folder, KVTIDE_ONNXRUNTIME_VERSION: version }
  const { code } = await run(
    'ava',
    [
      '__test__/onnx/session.test.ts',
      '__test__/onnx/runtime.test.ts',
      '__test__/onnx/threads.test.ts',
      `--node-arguments=--require=${preload}`,
    ],
    { env },
  )
  if (code !== 0) failed.push(version)
}
if (failed.length > 0) throw new Error(`failed with onnxruntime-node ${failed.join(', ')}`)
