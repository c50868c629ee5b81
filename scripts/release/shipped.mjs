// Which crates are inside an addon: what is linked for each platform that there is a package for.
//
// Build scripts, procedural macros and tests are not in it.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { root } from '../steps.mjs'
import { metadata } from './cargo.mjs'

/** The addons: what each is called, the system it is for, the features that it is built with. */
export function addons(folder = root) {
  const { napi } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  const cpu = napi.targets.map(target => ({ name: target, target, features: target === 'aarch64-apple-darwin' ? ['metal'] : [] }))
  return [...cpu, { name: 'cuda', target: 'x86_64-unknown-linux-gnu', features: ['cuda'] }]
}

const isMacro = crate => crate.targets.some(({ kind }) => kind.includes('proc-macro'))

/** What is linked into the crate `name`, itself among it. */
export function linked({ packages, resolve }, name) {
  const crates = new Map(packages.map(crate => [crate.id, crate]))
  const nodes = new Map(resolve.nodes.map(node => [node.id, node]))
  const found = new Map()
  const waiting = [packages.find(crate => crate.name === name && crate.source === null).id]
  while (waiting.length > 0) {
    const id = waiting.pop()
    if (found.has(id)) continue
    found.set(id, crates.get(id))
    for (const { pkg, dep_kinds: kinds } of nodes.get(id).deps) {
      if (kinds.some(({ kind }) => kind === null) && !isMacro(crates.get(pkg))) waiting.push(pkg)
    }
  }
  return [...found.values()]
}

const byName = (a, b) => (a.name === b.name ? 0 : a.name < b.name ? -1 : 1) || (a.version < b.version ? -1 : Number(a.version > b.version))

/** Every crate of any addon, and the names of the addons that it is in. */
export function shipped() {
  const found = new Map()
  for (const { name, target, features } of addons()) {
    const asked = features.flatMap(feature => ['--features', `kvtide/${feature}`])
    for (const crate of linked(metadata(['--filter-platform', target, ...asked]), 'kvtide')) {
      const known = found.get(crate.id) ?? { ...crate, addons: [] }
      known.addons.push(name)
      found.set(crate.id, known)
    }
  }
  return [...found.values()].sort(byName)
}
