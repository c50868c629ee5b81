// The lists of what kvtide is made of: everything that the lock files name, with its checksum and its licence.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder, root, runScript } from '../support/packaging/scripts.js'

interface Bom {
  readonly specVersion: string
  readonly components: readonly {
    readonly name: string
    readonly version: string
    readonly scope?: string
    readonly hashes?: readonly object[]
    readonly licenses?: readonly object[]
  }[]
}

test('both lists have what they should, and the second one where cargo-cyclonedx is installed', async t => {
  const at = folder(t)
  const { code, err } = await runScript('release/sbom.mjs', ['--to', at])
  const read = (file: string): Bom['components'] => (JSON.parse(readFileSync(join(at, file), 'utf8')) as Bom).components
  const npm = read('npm.cdx.json')
  const { devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    devDependencies: Record<string, string>
  }
  for (const [name, version] of Object.entries(devDependencies))
    t.true(
      npm.some(found => [name, name.split('/').at(-1)].includes(found.name) && found.version === version),
      name,
    )
  // The packages of this repository come from no registry.
  const own = readdirSync(join(root, 'packages'))
  t.deepEqual(
    npm.filter(({ hashes }) => hashes?.length !== 1).map(({ name }) => name),
    own,
  )
  if (code !== 0)
    return t.regex(
      err,
      /^cannot write the bills of materials: cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx@[\d.]+$/m,
    )
  const crates = read('kvtide.cdx.json')
  for (const name of ['candle-core', 'napi', 'cudarc', 'objc2-metal', 'blake3', 'kvtide-core', 'nvidia-cuda-runtime'])
    t.is(crates.find(found => found.name === name)?.scope, 'required', name)
  for (const { name, hashes, licenses } of crates)
    t.deepEqual([hashes?.length, licenses?.length], [name.startsWith('kvtide') ? undefined : 1, 1], name)
  t.false(existsSync(join(root, 'kvtide.cdx.json')))
})
