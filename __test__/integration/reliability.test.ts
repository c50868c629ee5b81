// docs/reliability.md lists faults, what happens, and the tests that show it: each test must exist and run, and each error code must have a row.
// SECURITY.md lists the files with unsafe code. The planted faults must fit the code.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

import test from 'ava'

import { ERROR_CODES } from '../../index.js'
import { mutants } from '../../scripts/mutants/list.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))
const PAGE = 'docs/reliability.md'
const page = readFileSync(join(root, PAGE), 'utf8')

interface Row {
  readonly fault: string
  readonly what: string
  readonly shown: string
}

function rowsOf(text: string): Row[] {
  return text
    .split('\n')
    .filter(line => line.startsWith('| ') && !line.startsWith('| ---') && !line.startsWith('| fault or bad input |'))
    .map(line => {
      const [, fault = '', what = '', shown = '', ...more] = line
        .split(' | ')
        .flatMap((cell, at) => (at === 0 ? ['', cell.slice(2)] : [cell]))
      return { fault, what, shown: [shown, ...more].join(' | ').replace(/ \|$/, '') }
    })
}

const rows = rowsOf(page)

interface Named {
  readonly file: string
  readonly titles: readonly string[]
}

/** Reads a cell: files, each with the titles of tests in it. Returns `undefined` for a cell in another form. */
function namedIn(shown: string): Named[] | undefined {
  const rust = /`\w+`(?:, `\w+`)*/
  const typescript = /“[^”]+”(?:, “[^”]+”)*/
  const form = new RegExp(`^\\[[^\\]]+\\]\\((\\.\\./[^)]+)\\) (${rust.source}|${typescript.source})(?:; |$)`)
  const found: Named[] = []
  for (let rest = shown; rest !== '';) {
    const match = form.exec(rest)
    if (match === null) return undefined
    const [whole, target = '', titles = ''] = match
    found.push({
      file: join(dirname(PAGE), target),
      titles: [...titles.matchAll(/“([^”]+)”|`(\w+)`/g)].map(([, title, name]) => (title ?? name) as string),
    })
    rest = rest.slice(whole.length)
  }
  return found.length === 0 ? undefined : found
}

/** Source without comments that fill a line. */
const bare = (source: string): string => source.replaceAll(/^\s*\/\/.*$/gm, '').replaceAll(/^\s*\/\*[\s\S]*?\*\//gm, '')

/** Titles of the tests of a TypeScript file that run, as they are written there. */
function titlesIn(source: string): Set<string> {
  const calls = bare(source).matchAll(
    /([\w.]+)\(\s*(?:'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`),\s*(?:async\s+)?(?:\w+|\([^)]*\))\s*=>/g,
  )
  const running = [...calls].filter(([, call = '']) => !/\.(?:skip|todo|failing)$/.test(call))
  return new Set(
    running.map(([, , single, double, template]) => (single ?? double ?? template ?? '').replaceAll(/\\(.)/g, '$1')),
  )
}

/** Names of the tests of a Rust file that run. */
function namesIn(source: string): Set<string> {
  const tests = bare(source).matchAll(/#\[test\]\s*((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([a-z]+\))? )?fn (\w+)/g)
  return new Set(
    [...tests].filter(([, attributes = '']) => !attributes.includes('ignore')).map(([, , name = '']) => name),
  )
}

/** The faults of the tests that a cell names. */
function wrongIn(shown: string, read: (file: string) => string | undefined): string[] {
  const named = namedIn(shown)
  if (named === undefined) return [`it names no tests: ${shown}`]
  return named.flatMap(({ file, titles }) => {
    const source = read(file)
    if (source === undefined) return [`${file} does not exist`]
    const there = file.endsWith('.rs') ? namesIn(source) : titlesIn(source)
    return titles.filter(title => !there.has(title)).map(title => `${file} has no test “${title}”`)
  })
}

const files = new Map<string, string | undefined>()
function readOnce(file: string): string | undefined {
  if (!files.has(file))
    files.set(file, existsSync(join(root, file)) ? readFileSync(join(root, file), 'utf8') : undefined)
  return files.get(file)
}

test('every test that a row names exists, and runs', t => {
  t.deepEqual(
    rows.flatMap(({ fault, shown }) => wrongIn(shown, readOnce).map(wrong => `${fault}: ${wrong}`)),
    [],
  )
  t.true(rows.length > 80, `${rows.length} rows`)
})

test('every row says what happens, and no fault has two rows', t => {
  for (const { fault, what } of rows) t.true(fault.length > 3 && what.length > 3, fault)
  t.is(new Set(rows.map(({ fault }) => fault)).size, rows.length)
})

test('every error code has a row', t => {
  const named = rows.map(({ what }) => what).join()
  t.deepEqual(
    ERROR_CODES.filter(code => !named.includes(`\`${code}\``)),
    [],
  )
})

test('a test that is missing, skipped, or only mentioned is noticed', t => {
  const sources: Readonly<Record<string, string>> = {
    'one.test.ts': `
      test('here', t => t.pass())
      serial.test("it's", async t => {})
      test(\`each \${name}\`, t => {})
      test.skip('skipped', t => {})
      // test('gone', t => {})
      t.is(it, 'mentioned')
      test.todo('later')`,
    'two.rs': `
      #[test]
      #[cfg(unix)]
      fn here() {}
      #[test]
      #[${'ignore'} = "slow"]
      fn ignored() {}
      fn no_test() {}`,
  }
  const wrong = (shown: string): string[] => wrongIn(shown, file => sources[file.replace('__test__/', '')])
  t.deepEqual(wrong("[one](../__test__/one.test.ts) “here”, “it's”, “each ${name}”; [two](../two.rs) `here`"), [])
  for (const shown of [
    ...['skipped', 'gone', 'mentioned', 'later', 'Here'].map(title => `[one](../__test__/one.test.ts) “${title}”`),
    ...['ignored', 'no_test'].map(name => `[two](../two.rs) \`${name}\``),
    '[three](../three.rs) `here`',
    '[one](../__test__/one.test.ts)',
    'a promise',
    '',
  ])
    t.is(wrong(shown).length, 1, shown)
})

test('SECURITY.md lists each file with unsafe code, and no other', t => {
  const tracked = execFileSync('git', ['ls-files', 'crates/*/src/*.rs', 'src/*.rs'], { cwd: root, encoding: 'utf8' })
  // The compiler refuses unsafe code in files without this attribute, unless their folder has it.
  const unsafe = tracked
    .trim()
    .split('\n')
    .filter(file =>
      /\b(?:(?:expect|allow)\(\s*unsafe_code\b|unsafe (?:\{|fn|impl|extern))/.test(bare(readOnce(file) ?? '')),
    )
  const listed = [...readFileSync(join(root, 'SECURITY.md'), 'utf8').matchAll(/^\| `([^`]+\.rs)` \|/gm)]
  t.deepEqual(listed.map(([, file = '']) => file).toSorted(), unsafe.toSorted())
  t.true(unsafe.length > 20)
})

test('each planted fault changes text that is in its file', t => {
  t.true(mutants.length > 50)
  for (const { name, file, from, to } of mutants) {
    t.true(readFileSync(join(root, file), 'utf8').includes(from), `${name}: ${file} has no longer: ${from}`)
    t.not(from, to, name)
  }
})
