// `npm run bundle:cuda`: one archive with which a GPU machine tests kvtide that has neither Rust nor node nor a network.
//
//   the addon (npm run build:cuda)  +  kernels' tests  +  bench/cuda  +  package and tests, compiled  +  ava  +  node  ->  target/cuda/*.tar.xz
//
// There: `tar xf <archive>`, and `<folder>/run.sh`, or `<folder>/run.sh bench`.
import { chmodSync, copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { basename, join, relative } from 'node:path'

import { unpacked } from '../fetched.mjs'
import { main, Refusal } from '../refusal.mjs'
import { must, root } from '../steps.mjs'
import { ADDON } from './binary.mjs'
import { bundleName, CARRIED, compiledPackage, IMPORTED, isNeeded, NODE, packageFolders, sizeLine } from './contents.mjs'
import { cudaEnvironment, cudaFolder } from './environment.mjs'
import { buildBench, buildKernelTests } from './programs.mjs'

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))

async function node(to) {
  const from = await unpacked(NODE, cudaFolder)
  for (const file of ['bin/node', 'LICENSE']) copyFileSync(join(from, file), join(to, basename(file)))
  chmodSync(join(to, 'node'), 0o755)
  await must('strip', [join(to, 'node')])
}

/** The compiled package with its addon, the tests of caches, and what these import. */
async function compiled(to) {
  await must('tsc', ['--project', 'scripts/cuda/tsconfig.json', '--outDir', to])
  writeFileSync(join(to, 'package.json'), `${JSON.stringify(compiledPackage(manifest), null, 2)}\n`)
  for (const file of [ADDON, 'LICENSE-MIT', 'LICENSE-APACHE']) copyFileSync(join(root, file), join(to, file))
  for (const folder of packageFolders(IMPORTED)) {
    const from = join(root, folder)
    const wanted = file => !relative(from, file).split('/').includes('node_modules') && isNeeded(relative(from, file) + (statSync(file).isDirectory() ? '/' : ''))
    cpSync(from, join(to, folder), { recursive: true, filter: file => file === from || wanted(file) })
  }
}

/** Programs in a folder of their own, without symbols. */
async function programs(to, found) {
  mkdirSync(to)
  for (const { name, file } of found) {
    copyFileSync(file, join(to, name))
    chmodSync(join(to, name), 0o755)
    await must('strip', [join(to, name)])
  }
}

async function bundle() {
  if (!existsSync(join(root, ADDON))) throw new Refusal(`${ADDON} is not there: run npm run build:cuda first`)
  const name = bundleName(manifest.version)
  const folder = join(cudaFolder, name)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(join(folder, 'package'), { recursive: true })
  for (const file of CARRIED) copyFileSync(new URL(`carried/${file}`, import.meta.url), join(folder, file))
  await node(folder)
  await compiled(join(folder, 'package'))
  const env = await cudaEnvironment()
  await programs(join(folder, 'kernels'), await buildKernelTests(env))
  await programs(join(folder, 'bench'), await buildBench(env))
  copyFileSync(join(root, 'bench', 'cuda', 'peers.py'), join(folder, 'bench', 'peers.py'))

  const archive = `${folder}.tar.xz`
  // Every program has the same kernels in it: a dictionary that is larger than what lies between two of them has them once.
  await must('tar', ['--create', '--owner=0', '--group=0', '--sort=name', '--use-compress-program', 'xz --lzma2=preset=6,dict=192MiB', '--file', archive, '--directory', cudaFolder, name])
  rmSync(folder, { recursive: true })
  console.log(sizeLine(relative(root, archive), statSync(archive).size))
}

await main(import.meta.url, 'cannot make the bundle', bundle)
