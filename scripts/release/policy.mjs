// `npm run check:policy`: licences, bans and sources of every crate that the workspace is built with, as deny.toml has them.
//
// A release runs `cargo deny` itself, which also knows of advisories; this needs nothing but cargo, and reads the same file.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { given, main, Refusal } from '../refusal.mjs'
import { root } from '../steps.mjs'
import { members, metadata } from './cargo.mjs'
import { choose } from './licences.mjs'

/** The registry of all crates, as cargo names it. */
const REGISTRY = 'registry+https://github.com/rust-lang/crates.io-index'

const list = (part, name) => new RegExp(`^${name} = \\[([\\s\\S]*?)^\\]`, 'm').exec(part)?.[1]

/** What deny.toml says of licences and bans. */
export function policyOf(text) {
  const section = name => new RegExp(`^\\[${name}\\]\\n([\\s\\S]*?)(?=^\\[|(?![\\s\\S]))`, 'm').exec(text)?.[1] ?? ''
  const allowed = list(section('licenses'), 'allow')
  const banned = list(section('bans'), 'deny')
  if (allowed === undefined || banned === undefined) throw new Refusal('deny.toml lacks the list of allowed licences, or of banned crates')
  return {
    allowed: [...allowed.matchAll(/^\s*"([^"]+)"/gm)].map(([, id]) => id),
    banned: new Map([...banned.matchAll(/crate = "([^"]+)", reason = "([^"]+)"/g)].map(([, name, reason]) => [name, reason])),
  }
}

/** What stands against a crate, one line each. */
export function faultsOf(crate, { allowed, banned }) {
  const named = `${crate.name} ${crate.version}`
  const faults = []
  if (!crate.license) faults.push(`${named} names no licence`)
  else if (choose(crate.license, allowed) === undefined) faults.push(`${named} is under ${crate.license}, of which none is allowed`)
  if (crate.source !== REGISTRY) faults.push(`${named} comes from ${crate.source ?? 'a folder outside the workspace'}`)
  const reason = banned.get(crate.name)
  if (reason !== undefined) faults.push(`${named} is banned: ${reason}`)
  return faults
}

/** Looks at every crate but the workspace's own; answers how many there are. */
export function checkAll(found, policy) {
  const own = new Set(members(found).map(({ id }) => id))
  const others = found.packages.filter(({ id }) => !own.has(id))
  const faults = others.flatMap(crate => faultsOf(crate, policy))
  if (faults.length > 0) throw new Refusal(faults.join('\n'))
  return others.length
}

function check() {
  given()
  const count = checkAll(metadata(['--all-features']), policyOf(readFileSync(join(root, 'deny.toml'), 'utf8')))
  console.log(`${count} crates: licences, bans and sources are those that deny.toml allows`)
}

await main(import.meta.url, 'a crate is not as deny.toml wants it', check)
