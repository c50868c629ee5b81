// `npm run version:raise -- 0.2.0`: sets one version in all packages and crates, and its heading in CHANGELOG.md. Everything is checked
// first, so a refusal changes nothing. The first release may keep the current version.
//
// `npm run version:check -- v0.2.0`: checks that a tag names the current version. It prints the notes of CHANGELOG.md on this version, for the
// release page.
//
// CHANGELOG.md follows Keep a Changelog: `## Unreleased`, then `## 0.2.0 - 2026-01-31` and so on, newest first.
import { readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'

import semver from 'semver'

import { given, main, Refusal } from '../refusal.mjs'
import { root } from '../steps.mjs'

/** Crates of this repository in a Cargo.lock: those without a source. */
const LOCKED = /(\[\[package\]\]\nname = "(?:kvtide(?:-[a-z-]+)?|decoder)"\nversion = ")([^"]+)("\n(?!source))/g

/** The places of the version: text before it, the version, text after it. */
const PLACES = [
  { file: 'package.json', pattern: /^(\s{2}"version": ")([^"]+)(")/gm, least: 1 },
  {
    file: 'package-lock.json',
    pattern:
      /^(\s{2}"name": "kvtide",\n\s{2}"version": "|\s{4}"": \{\n\s{6}"name": "kvtide",\n\s{6}"version": "|\s{6}"name": "kvtide-[a-z-]+",\n\s{6}"version": "|\s{8}"kvtide": ")(\d[^"]*)(")/gm,
    least: 6,
  },
  ...['serve', 'ai-sdk'].map(name => ({
    // Its own version, and that of kvtide among its dependencies.
    file: `packages/${name}/package.json`,
    pattern: /^(\s{2}"version": "|\s{4}"kvtide": ")(\d[^"]*)(")/gm,
    least: 2,
  })),
  { file: 'packages/serve/docker/Dockerfile', pattern: /^(ARG VERSION=)(\S+)()$/gm, least: 1 },
  {
    file: 'Cargo.toml',
    pattern: /(^\[workspace\.package\]\nversion = "|^kvtide-\w+ = \{ version = ")([^"]+)(")/gm,
    least: 4,
  },
  { file: 'Cargo.lock', pattern: LOCKED, least: 6 },
  { file: 'bench/peers/Cargo.lock', pattern: LOCKED, least: 3 },
  { file: 'fuzz/Cargo.lock', pattern: LOCKED, least: 4 },
  { file: 'lib/loading/version.ts', pattern: /^(export const version: string = ')([^']+)(')/gm, least: 1 },
]

export function versions(folder) {
  return PLACES.flatMap(({ file, pattern, least }) => {
    const found = [...readFileSync(join(folder, file), 'utf8').matchAll(pattern)].map(([, , version]) => ({
      file,
      version,
    }))
    if (found.length < least)
      throw new Refusal(`${file} names the version ${found.length} times, expected at least ${least}`)
    return found
  })
}

export function present(folder) {
  const found = versions(folder)
  const { file: first, version } = found[0]
  const other = found.find(place => place.version !== version)
  if (other !== undefined) throw new Refusal(`${first} has version ${version}, ${other.file} has ${other.version}`)
  return version
}

export function write(folder, version) {
  for (const { file, pattern } of PLACES) {
    const path = join(folder, file)
    writeFileSync(
      path,
      readFileSync(path, 'utf8').replaceAll(pattern, (_, before, _old, after) => `${before}${version}${after}`),
    )
  }
  return PLACES.map(({ file }) => file)
}

const UNRELEASED = '## Unreleased'

/** Returns the sections of a changelog: headings and notes. */
export function sections(text) {
  return text
    .split(/^(?=## )/m)
    .slice(1)
    .map(part => {
      const [heading, ...lines] = part.split('\n')
      const [, version, date] = /^## (\S+)(?: - (\d{4}-\d{2}-\d{2}))?$/.exec(heading) ?? []
      return { heading, version, date, notes: lines.join('\n').trim() }
    })
}

export function notesOf(text, version) {
  const found = sections(text).find(section => section.version === version && section.date !== undefined)
  if (found === undefined)
    throw new Refusal(`CHANGELOG.md has no heading for ${version}: run npm run version:raise -- ${version}`)
  if (found.notes === '') throw new Refusal(`CHANGELOG.md says nothing of ${version}`)
  return found.notes
}

/** Returns the changelog with the unreleased notes under the heading of `version`. */
export function released(text, version, date) {
  if (sections(text).some(section => section.version === version))
    throw new Refusal(`CHANGELOG.md has a heading for ${version} already`)
  const unreleased = sections(text).find(({ heading }) => heading === UNRELEASED)
  if (unreleased === undefined) throw new Refusal(`CHANGELOG.md has no heading "${UNRELEASED}"`)
  if (unreleased.notes === '')
    throw new Refusal(`CHANGELOG.md says nothing under "${UNRELEASED}": there is nothing to release`)
  return text.replace(`${UNRELEASED}\n`, `${UNRELEASED}\n\n## ${version} - ${date}\n`)
}

function checkNext(version, before, changelog) {
  if (semver.valid(version) !== version)
    throw new Refusal(`${JSON.stringify(version)} is no version, expected one like 0.2.0 or 0.2.0-rc.1`)
  const isFirst = version === before && sections(changelog).every(section => section.version !== version)
  if (semver.lte(version, before) && !isFirst) throw new Refusal(`${version} is not newer than ${before}`)
}

function raise(folder, version) {
  const before = present(folder)
  const file = join(folder, 'CHANGELOG.md')
  const changelog = readFileSync(file, 'utf8')
  checkNext(version, before, changelog)
  const text = released(changelog, version, new Date().toISOString().slice(0, 10))
  const written = write(folder, version)
  writeFileSync(file, text)
  console.log(`${before} -> ${version}: ${[...written, 'CHANGELOG.md'].join(', ')}`)
}

function checkTag(tag) {
  const version = present(root)
  if (tag !== `v${version}`) throw new Refusal(`the tag is ${tag}, expected v${version}`)
  console.log(notesOf(readFileSync(join(root, 'CHANGELOG.md'), 'utf8'), version))
}

await main(import.meta.url, 'the version is unchanged', () => {
  const isTag = process.argv.includes('--tag')
  const { in: place = root, words } = given({ in: { type: 'string' }, tag: { type: 'boolean' } }, [
    isTag ? 'the tag' : 'the version',
  ])
  return isTag ? checkTag(words[0]) : raise(resolve(place), words[0])
})
