// Packs kvtide and the addon that was built here as they are published, installs both in an empty folder and uses them from there: as
// modules and by require, with types. `npm run pack:local` does the same with the addon that is published, from a registry.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { makePackages, report } from './pack/packages.mjs'
import { main, Refusal } from './refusal.mjs'
import { root } from './steps.mjs'
import { Stranger } from './pack/stranger.mjs'

async function check(folder) {
  const built = readdirSync(root).filter(name => /^kvtide\..*\.node$/.test(name))
  if (built.length !== 1) throw new Refusal(`there are ${built.length} addons here, expected one: run npm run build:addon`)
  const packed = await makePackages({ addons: root, to: join(folder, 'packages'), only: built })
  console.log(report(packed))
  // Nobody is asked for the packages of other platforms: npm goes on without what it cannot have and does not need.
  const stranger = new Stranger(join(folder, 'stranger'))
  await stranger.install(...packed.made.map(({ tarball }) => tarball), '--offline')
  await stranger.checkAll(packed.made)
  console.log('the packed package works')
}

const folder = mkdtempSync(join(tmpdir(), 'kvtide-pack-'))
try {
  await main(import.meta.url, 'the packed package does not work', () => check(folder))
} finally {
  rmSync(folder, { recursive: true, force: true })
}
