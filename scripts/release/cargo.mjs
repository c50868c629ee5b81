// Reads the workspace from cargo: its crates, their dependencies, and the crates inside each addon.
import { spawnSync } from 'node:child_process'

import { Refusal } from '../refusal.mjs'
import { ask, repository, root } from '../steps.mjs'

const byName = (a, b) => (`${a.name} ${a.version}` < `${b.name} ${b.version}` ? -1 : 1)

/** Returns the output of `cargo metadata`. Missing crates are fetched, in the versions of Cargo.lock. */
export function metadata(args = [], cwd = root) {
  const { status, stdout, stderr, error } = spawnSync(
    'cargo',
    ['metadata', '--format-version', '1', '--locked', ...args],
    { encoding: 'utf8', cwd, maxBuffer: 2 ** 30 },
  )
  if (status !== 0) throw new Refusal(`cargo metadata failed: ${(error?.message ?? stderr).trim().split('\n')[0]}`)
  return JSON.parse(stdout)
}

export const members = ({ packages, workspace_members: ids }) => packages.filter(({ id }) => ids.includes(id))

/** Returns the published crates, in the order in which cargo packs and publishes them: dependencies first. */
export const published = found =>
  members(found)
    .filter(({ publish }) => publish === null || publish.length > 0)
    .sort(byName)

/** The addons: their names, targets and features. */
export function addons() {
  const cpu = repository.napi.targets.map(target => ({
    name: target,
    target,
    features: target === 'aarch64-apple-darwin' ? ['metal'] : [],
  }))
  const net = cpu.map(({ name, target, features }) => ({ name: `net ${name}`, target, features: [...features, 'net'] }))
  return [...cpu, ...net, { name: 'cuda', target: 'x86_64-unknown-linux-gnu', features: ['cuda', 'net'] }]
}

/** Returns the crates linked into an addon, as `name version`: no build scripts, no procedural macros, no tests. */
function linked({ target, features }) {
  const asked = features.length > 0 ? ['--features', features.join()] : []
  const tree = ask('cargo', [
    'tree',
    '--locked',
    '-p',
    'kvtide',
    '--target',
    target,
    ...asked,
    '--edges',
    'normal,no-proc-macro',
    '--prefix',
    'none',
  ])
  if (tree === undefined) throw new Refusal('`cargo tree` failed: run it to see why')
  return new Set([...tree.matchAll(/^(\S+) v(\S+)/gm)].map(([, name, version]) => `${name} ${version}`))
}

/** Returns every crate in any addon, with the names of the addons that contain it. */
export function shipped() {
  const inside = addons().map(addon => [addon.name, linked(addon)])
  const namesOf = ({ name, version }) =>
    inside.flatMap(([addon, crates]) => (crates.has(`${name} ${version}`) ? [addon] : []))
  const crates = metadata(['--all-features']).packages.map(crate => ({ ...crate, addons: namesOf(crate) }))
  return crates.filter(crate => crate.addons.length > 0).sort(byName)
}
