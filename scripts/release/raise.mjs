// `npm run version:raise -- 0.2.0`: one version for all packages and crates, and its heading in CHANGELOG.md. What is written is checked
// first, so that a refusal changes nothing. The first release may have the version that is there already.
//
// `npm run version:check -- v0.2.0`: whether a tag names the version that is here. What CHANGELOG.md says of it goes to standard output, for
// the page of the release.
import { readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'

import semver from 'semver'

import { given, main, Refusal } from '../refusal.mjs'
import { root } from '../steps.mjs'
import { notesOf, present, released, sections, write } from './version.mjs'

function checkNext(version, before, changelog) {
  if (semver.valid(version) !== version) throw new Refusal(`${JSON.stringify(version)} is no version, expected one like 0.2.0 or 0.2.0-rc.1`)
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

await main(import.meta.url, 'the version stays as it is', () => {
  const isTag = process.argv.includes('--tag')
  const { in: place = root, words } = given({ in: { type: 'string' }, tag: { type: 'boolean' } }, [isTag ? 'the tag' : 'the version'])
  return isTag ? checkTag(words[0]) : raise(resolve(place), words[0])
})
