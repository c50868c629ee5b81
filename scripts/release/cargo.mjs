// What cargo knows of the workspace: its crates, and everything they are built with.
import { spawnSync } from 'node:child_process'

import { root } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

/** The answer of `cargo metadata`. Crates that are not here yet are fetched, in the versions of Cargo.lock. */
export function metadata(args = [], cwd = root) {
  const { status, stdout, stderr, error } = spawnSync('cargo', ['metadata', '--format-version', '1', '--locked', ...args], {
    encoding: 'utf8',
    cwd,
    maxBuffer: 2 ** 30,
  })
  if (status !== 0) throw new Refusal(`cargo metadata failed: ${(error?.message ?? stderr).trim().split('\n')[0]}`)
  return JSON.parse(stdout)
}

/** The workspace's own crates. */
export function members({ packages, workspace_members: ids }) {
  return packages.filter(({ id }) => ids.includes(id))
}

/** Those of them that go to the registry, what others depend on first. */
export function published(found) {
  const own = members(found).filter(({ publish }) => publish === null || publish.length > 0)
  const needs = crate => own.filter(({ name }) => crate.dependencies.some(dependency => dependency.name === name && dependency.path !== undefined))
  const depth = crate => Math.max(0, ...needs(crate).map(other => depth(other) + 1))
  return own.sort((a, b) => depth(a) - depth(b) || (a.name < b.name ? -1 : 1))
}
