// One version for everything, raised by one command: tried on a copy.
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'
import semver from 'semver'

import { folder, refuses, root, runScript } from '../support/packaging/scripts.js'
import { notesOf, present, released, sections, versions } from '../../scripts/release/version.mjs'

const FILES = [
  'package.json',
  'package-lock.json',
  'packages/serve/package.json',
  'packages/ai-sdk/package.json',
  'packages/serve/docker/Dockerfile',
  'Cargo.toml',
  'Cargo.lock',
  'bench/peers/Cargo.lock',
  'fuzz/Cargo.lock',
  'lib/loading/version.ts',
  'CHANGELOG.md',
]
const text = (at: string, file: string): string => readFileSync(join(at, file), 'utf8')
const everywhere = (at: string): string[] => (versions(at) as { version: string }[]).map(({ version }) => version)
const all = (at: string): string[] => FILES.map(file => text(at, file))

function copy(t: ExecutionContext): string {
  const at = folder(t)
  for (const inside of ['bench/peers', 'lib/loading', 'packages/ai-sdk', 'packages/serve/docker'])
    mkdirSync(join(at, inside), { recursive: true })
  for (const file of FILES) cpSync(join(root, file), join(at, file))
  writeFileSync(join(at, 'CHANGELOG.md'), '# Changelog\n\n## Unreleased\n\n### Added\n\n- Something.\n')
  return at
}

const raise = (at: string, ...args: string[]): ReturnType<typeof runScript> =>
  runScript('release/version.mjs', ['--in', at, ...args])
const dated = (changelog: string): string => changelog.replace(/\d{4}-\d{2}-\d{2}/, 'TODAY')
const here = present(root)

test('all packages and crates of this repository have one version', t => {
  t.deepEqual(new Set(everywhere(root)), new Set([here]))
  t.is(semver.valid(here), here)
})

test('one command raises it everywhere', async t => {
  const at = copy(t)
  const { code, out } = await raise(at, '99.1.0')
  t.is(code, 0)
  t.is(
    out,
    `${here} -> 99.1.0: package.json, package-lock.json, packages/serve/package.json, packages/ai-sdk/package.json, packages/serve/docker/Dockerfile, Cargo.toml, Cargo.lock, bench/peers/Cargo.lock, fuzz/Cargo.lock, lib/loading/version.ts, CHANGELOG.md\n`,
  )
  t.deepEqual(new Set(everywhere(at)), new Set(['99.1.0']))
  t.is(
    dated(text(at, 'CHANGELOG.md')),
    '# Changelog\n\n## Unreleased\n\n## 99.1.0 - TODAY\n\n### Added\n\n- Something.\n',
  )

  // Nothing else has changed: with the old version in its stead, the files are those of before.
  for (const file of FILES.filter(name => name !== 'CHANGELOG.md'))
    t.is(text(at, file).replaceAll('99.1.0', here), text(root, file), file)
  t.is((await raise(at, '99.1.0')).code, 1, 'twice')
})

test('the first release has the version that is there', async t => {
  const at = copy(t)
  t.is((await raise(at, here)).code, 0)
  t.true(dated(text(at, 'CHANGELOG.md')).includes(`## ${here} - TODAY\n`))
  t.regex((await raise(at, here)).err, new RegExp(`${here} is not newer than ${here}`))
})

test('what is refused changes nothing', async t => {
  const at = copy(t)
  const before = all(at)
  const refused = async (said: RegExp, ...args: string[]): Promise<void> => {
    const { code, err } = await raise(at, ...args)
    t.is(code, 1)
    t.regex(err, said)
    t.is(err.trim().split('\n').length, 1, err)
    t.deepEqual(all(at), before)
  }
  await refused(/the version is missing/)
  for (const none of ['2', '1.2', 'v1.2.3', '1.2.3.4', '01.2.3', '1.2.3-', '1.2.3-rc.01', '1.2.x', '9.9.9+1'])
    await refused(/is no version, expected one like 0\.2\.0/, none)
  await refused(/0\.0\.1 is not newer than/, '0.0.1')
  await refused(/unexpected argument "more"/, '99.0.0', 'more')
})

test('a changelog without anything to release is refused, and versions that differ are', async t => {
  const at = copy(t)
  writeFileSync(join(at, 'CHANGELOG.md'), '# Changelog\n\n## Unreleased\n')
  t.regex((await raise(at, '99.0.0')).err, /there is nothing to release/)
  writeFileSync(join(at, 'CHANGELOG.md'), '# Changelog\n')
  t.regex((await raise(at, '99.0.0')).err, /has no heading "## Unreleased"/)
  writeFileSync(
    join(at, 'package.json'),
    text(at, 'package.json').replace(`"version": "${here}"`, '"version": "0.0.9"'),
  )
  t.regex((await raise(at, '99.0.0')).err, /package\.json has version 0\.0\.9, package-lock\.json has/)
  writeFileSync(join(at, 'package.json'), '{}')
  t.regex((await raise(at, '99.0.0')).err, /package\.json names the version 0 times, expected at least 1/)
})

const LOG = '# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-01-31\n\n- Two.\n\n## 0.1.0 - 2026-01-01\n\n- One.\n'

test('a version has its notes', t => {
  t.deepEqual(
    (sections(LOG) as { version?: string; date?: string }[]).map(({ version, date }) => [version, date]),
    [
      ['Unreleased', undefined],
      ['0.2.0', '2026-01-31'],
      ['0.1.0', '2026-01-01'],
    ],
  )
  t.is(notesOf(LOG, '0.2.0'), '- Two.')
  t.throws(() => notesOf(LOG, '0.3.0'), { message: /has no heading for 0\.3\.0/ })
  t.throws(() => notesOf(LOG.replace('- Two.', ''), '0.2.0'), { message: 'CHANGELOG.md says nothing of 0.2.0' })
  t.throws(() => released(LOG, '0.2.0', '2026-02-02'), { message: /has a heading for 0\.2\.0 already/ })
})

test('the changelog is of the form that the commands read', t => {
  const [first, ...rest] = sections(text(root, 'CHANGELOG.md'))
  t.is(first?.heading, '## Unreleased')
  for (const { heading, version, date } of rest)
    t.true(semver.valid(version) === version && date !== undefined, heading)
  for (const [at, { version }] of rest.slice(1).entries()) t.true(semver.gt(rest[at].version, version), version)
  for (const [, kind = ''] of text(root, 'CHANGELOG.md').matchAll(/^### (.*)$/gm)) {
    t.true(['Added', 'Changed', 'Deprecated', 'Removed', 'Fixed', 'Security'].includes(kind), kind)
  }
})

test('a tag of another version is refused', async t => {
  await refuses(t, 'release/version.mjs', ['--tag', 'v99.0.0'], /the tag is v99\.0\.0, expected v/)
  await refuses(t, 'release/version.mjs', ['--tag'], /the tag is missing/)
})
