// `npm run sbom -- --to <folder>`: writes bills of materials as CycloneDX 1.5: `kvtide.cdx.json`, the crates inside addons and their build
// dependencies, by cargo-cyclonedx, and `npm.cdx.json`, the tools that build and test the TypeScript layer, by npm. A release installs the first.
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'

import { given, main, Refusal } from '../refusal.mjs'
import { ask, must, root } from '../steps.mjs'
import { members, metadata } from './cargo.mjs'

const TOOL = 'cargo-cyclonedx@0.5.9'

function cudaRuntime() {
  const [, version, content] = /^nvidia-cuda-runtime==(\S+) --hash=sha256:(\w+)/m.exec(
    readFileSync(join(root, 'scripts/cuda/toolkit.txt'), 'utf8'),
  )
  const purl = `pkg:pypi/nvidia-cuda-runtime@${version}`
  const licenses = [{ license: { name: 'NVIDIA CUDA Toolkit licence agreement' } }]
  return {
    type: 'library',
    'bom-ref': purl,
    name: 'nvidia-cuda-runtime',
    version,
    scope: 'required',
    hashes: [{ alg: 'SHA-256', content }],
    licenses,
    purl,
  }
}

async function crates(to) {
  if (ask('cargo', ['cyclonedx', '--help']) === undefined)
    throw new Refusal(`cargo-cyclonedx is missing: cargo install --locked ${TOOL}`)
  await must(
    'cargo',
    [
      'cyclonedx',
      '--quiet',
      '--format',
      'json',
      '--spec-version',
      '1.5',
      '--all-features',
      '--target',
      'all',
      '--override-filename',
      'kvtide.cdx',
    ],
    { silent: true },
  )
  // It writes one for each crate of the workspace; the addon's contains everything that is published.
  renameSync(join(root, 'kvtide.cdx.json'), to)
  for (const { manifest_path: manifest } of members(metadata(['--no-deps'])))
    rmSync(join(dirname(manifest), 'kvtide.cdx.json'), { force: true })
  const bom = JSON.parse(
    readFileSync(to, 'utf8').replaceAll(`path+file://${root.replace(/\/$/, '')}`, 'path+file:///kvtide'),
  )
  bom.components.push(cudaRuntime())
  writeFileSync(to, `${JSON.stringify(bom, null, 2)}\n`)
}

async function sbom() {
  const { to = '.' } = given({ to: { type: 'string' } })
  const [npm, folder] = [ask('npm', ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only']), resolve(to)]
  if (npm === undefined) throw new Refusal('`npm sbom` failed: run it to see why')
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'npm.cdx.json'), npm)
  console.log(`${join(to, 'npm.cdx.json')} is written`)
  await crates(join(folder, 'kvtide.cdx.json'))
  console.log(`${join(to, 'kvtide.cdx.json')} is written`)
}

await main(import.meta.url, 'cannot write the bills of materials', sbom)
