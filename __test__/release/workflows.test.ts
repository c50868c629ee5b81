// The workflows: for every target that there is a package for, with pinned actions and few rights, and as actionlint wants them.
import { readdirSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'
import { load } from 'js-yaml'

import { refuses, root, text, runScript } from '../support/packaging/scripts.js'
import { buildArgs } from '../../scripts/release/addon.mjs'
import { actions, faultsOf } from '../../scripts/release/workflows.mjs'

const workflow = (name: string): string => text(`.github/workflows/${name}.yml`)

interface Workflow {
  readonly jobs: Readonly<
    Record<
      string,
      {
        readonly strategy: {
          readonly matrix: Readonly<Record<string, unknown>> & {
            readonly include?: readonly { target: string; runner: string }[]
          }
        }
      }
    >
  >
}

const matrix = (name: string, job: string): NonNullable<Workflow['jobs'][string]>['strategy']['matrix'] =>
  (load(workflow(name)) as Workflow).jobs[job]?.strategy.matrix ?? {}
const included = (name: string, job: string): readonly { target: string; runner: string }[] =>
  matrix(name, job).include ?? []

/** The targets of a job: those that its matrix lists, or, where it has no list, those that it includes. */
const targetsOf = (name: string, job: string): string[] =>
  ((matrix(name, job)['target'] as string[] | undefined) ?? included(name, job).map(({ target }) => target)).toSorted()

const manifest = JSON.parse(text('package.json')) as {
  napi: { targets: string[] }
  scripts: object
  engines: { node: string }
}
const TARGETS = manifest.napi.targets.toSorted()

test('every target of package.json is built and tested before a release, and no other', t => {
  t.deepEqual(targetsOf('release', 'build'), TARGETS)
  t.deepEqual(targetsOf('release', 'test'), TARGETS)
  t.deepEqual([...targetsOf('ci', 'test'), ...targetsOf('ci', 'musl')].toSorted(), TARGETS)
})

test('each of them on the lines of Node that are supported, from the lowest on', t => {
  for (const [name, job] of [
    ['ci', 'test'],
    ['ci', 'musl'],
    ['release', 'test'],
  ] as const)
    t.deepEqual(matrix(name, job)['node'], [20, 22, 24], `${name} ${job}`)
  t.is(manifest.engines.node, '>=20')
})

test('each target has a runner of its own system', t => {
  for (const [name, job] of [
    ['release', 'build'],
    ['release', 'test'],
    ['ci', 'test'],
    ['ci', 'musl'],
  ] as const) {
    t.deepEqual(
      included(name, job)
        .map(({ target }) => target)
        .toSorted(),
      targetsOf(name, job),
      `${name} ${job}`,
    )
    for (const { target, runner } of included(name, job)) {
      const system =
        { linux: 'ubuntu', apple: 'macos', pc: 'windows' }[
          target.split('-').find(part => ['linux', 'apple', 'pc'].includes(part)) ?? ''
        ] ?? '?'
      t.true(runner.startsWith(system), `${target} on ${runner}`)
      if (job !== 'build' && !target.includes('apple'))
        t.is(runner.includes('arm'), target.startsWith('aarch64'), `${target} on ${runner}`)
    }
  }
})

test('the lowest Rust of the workflow is that of Cargo.toml', t => {
  const lowest = /^rust-version = "([\d.]+)"$/m.exec(text('Cargo.toml'))?.[1]
  t.true(workflow('ci').includes(`rustup toolchain install ${lowest} `))
  t.true(workflow('ci').includes(`cargo +${lowest} check --locked`))
})

test('one action has one pin, wherever it is used', t => {
  const pins = new Map<string, string>()
  const used = readdirSync(join(root, '.github/workflows')).flatMap(file => actions(text(`.github/workflows/${file}`)))
  t.true(used.length > 20)
  for (const { name, pin } of used) {
    t.is(pins.get(name) ?? pin, pin, name)
    pins.set(name, pin)
  }
})

test('workflows are as actionlint and this repository want them', async t => {
  const { code, err } = await runScript('release/workflows.mjs')
  t.is(code, 0, err)
})

const GOOD = `permissions:\n  contents: read\n\njobs:\n  one:\n    steps:\n      - uses: actions/checkout@${'0'.repeat(40)} # v1.0.0\n        with:\n          persist-credentials: false\n      - run: npm run known\n`

const faults = (changed: string): string[] => faultsOf('x.yml', changed, { known: '' })

test('what is wrong with a workflow is named', t => {
  t.deepEqual(faults(GOOD), [])
  t.deepEqual(faults(GOOD.replace('0'.repeat(40), 'v1')), [
    'x.yml: actions/checkout@v1 is not pinned by the hash of a commit with its version beside it',
  ])
  t.regex(String(faults(GOOD.replace(' # v1.0.0', ''))), /not pinned/)
  t.deepEqual(faults(GOOD.replace('contents: read', 'contents: write')), [
    'x.yml: does not begin with the right to read alone',
    'x.yml: asks for contents: write',
  ])
  t.deepEqual(faults(GOOD.replace('    steps', '    permissions:\n      id-token: write\n    steps')), [
    'x.yml: asks for id-token: write',
  ])
  t.deepEqual(faults(GOOD.replace('persist-credentials: false', 'fetch-depth: 0')), [
    'x.yml: leaves credentials behind at a checkout',
  ])
  t.deepEqual(faults(GOOD.replace('known', 'unknown')), ['x.yml: runs unknown, which package.json does not have'])
})

test('an addon is built for a target as it is published', async t => {
  const base = ['--platform', '--release', '--no-const-enum', '--target']
  t.deepEqual(buildArgs('x86_64-unknown-linux-gnu'), [...base, 'x86_64-unknown-linux-gnu'])
  t.deepEqual(buildArgs('aarch64-unknown-linux-gnu'), [...base, 'aarch64-unknown-linux-gnu'])
  t.deepEqual(buildArgs('aarch64-unknown-linux-musl'), [...base, 'aarch64-unknown-linux-musl', '--cross-compile'])
  t.deepEqual(buildArgs('aarch64-apple-darwin'), [...base, 'aarch64-apple-darwin', '--features', 'metal'])
  t.deepEqual(buildArgs('x86_64-pc-windows-msvc'), [...base, 'x86_64-pc-windows-msvc'])
  await refuses(
    t,
    'release/addon.mjs',
    ['riscv64'],
    /"riscv64" is no target, expected one of x86_64-unknown-linux-gnu, /,
  )
  await refuses(t, 'release/addon.mjs', [], /the target is missing/)
})
