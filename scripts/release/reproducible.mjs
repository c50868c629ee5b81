// `npm run check:reproducible`: checks that two builds of one commit, in two folders, give identical addons. It compiles everything twice.
//
// Uncommitted changes are not included.
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { ask, hostTarget, libraryFile, must, temporary } from '../steps.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { remapped } from './addon.mjs'

export function firstDifference(one, other) {
  if (one.equals(other)) return undefined
  const at = one.findIndex((byte, place) => byte !== other[place])
  const place = at < 0 ? Math.min(one.length, other.length) : at
  const around = bytes => bytes.toString('latin1', Math.max(0, place - 60), place + 60).replaceAll(/[^ -~]+/g, '·')
  return `the builds have ${one.length} and ${other.length} bytes and differ from byte ${place} on:\n${around(one)}\n${around(other)}`
}

async function build(commit, folder, target) {
  mkdirSync(folder, { recursive: true })
  const archive = join(folder, 'commit.tar')
  await must('git', ['archive', '--output', archive, commit])
  await must('tar', ['--extract', '--file', archive, '--directory', folder])
  const env = { ...remapped(folder), CARGO_TARGET_DIR: join(folder, 'target') }
  await must('cargo', ['build', '--release', '--locked', '--quiet', '--target', target, '-p', 'kvtide'], {
    cwd: folder,
    env,
  })
  return readFileSync(join(folder, 'target', target, 'release', libraryFile))
}

async function check() {
  given()
  const target = hostTarget()
  if (target === undefined) throw new Refusal('there is no Rust compiler')
  const commit = ask('git', ['rev-parse', 'HEAD'])?.trim()
  if (commit === undefined) throw new Refusal('this folder is not a git checkout')
  const above = temporary('reproducible')
  const one = await build(commit, join(above, 'one'), target)
  const other = await build(commit, join(above, 'another', 'deeper'), target)
  const difference = firstDifference(one, other)
  if (difference !== undefined) throw new Refusal(difference)
  console.log(
    `two builds of ${commit.slice(0, 9)} for ${target} are the same: SHA-256 ${createHash('sha256').update(one).digest('hex')}`,
  )
}

await main(import.meta.url, 'the build is not reproducible', check)
