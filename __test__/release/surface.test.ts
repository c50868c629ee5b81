// The public types and the codes of errors: what is recorded is what is there.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { ERROR_CODES } from '../../index.js'
import { folder, root, runScript } from '../support/packaging/scripts.js'
import { difference, holdAgainst } from '../../scripts/release/recorded.mjs'
import { surfaceOf, withNewCodes } from '../../scripts/release/surface.mjs'

function of(t: ExecutionContext, files: Readonly<Record<string, string>>): string {
  const at = folder(t)
  mkdirSync(join(at, 'lib'))
  for (const [file, text] of Object.entries(files)) writeFileSync(join(at, file), text)
  return surfaceOf(join(at, 'index.d.ts'))
}

const INDEX = "export { Cache, type Options as CacheOptions } from './lib/cache.js';\n"
const CACHE = `import { type Base } from './base.js';
export interface Options {
    readonly size: number;
}
type Hidden = Base;
export declare class Cache {
    #private;
    private secret;
    constructor(options: Options);
    held(): Hidden;
}
`
const BASE = 'export type Base = {\n    readonly bytes: number;\n};\n'
const FILES = { 'index.d.ts': INDEX, 'lib/cache.d.ts': CACHE, 'lib/base.d.ts': BASE }

test('exports come first, then every declaration behind them', t => {
  t.is(
    of(t, FILES),
    `export { Cache, type Options as CacheOptions } from './lib/cache.js';

export type Base = {
    readonly bytes: number;
};

export declare class Cache {
    constructor(options: Options);
    held(): Hidden;
}

type Hidden = Base;

export interface Options {
    readonly size: number;
}
`,
  )
})

test('a declaration that moves to another file, or what no caller sees, changes nothing', t => {
  const before = of(t, FILES)
  const moved = { ...FILES, 'lib/base.d.ts': "export { Base } from './other.js';\n", 'lib/other.d.ts': BASE }
  t.is(of(t, moved), before)
  t.is(of(t, { ...FILES, 'lib/cache.d.ts': CACHE.replace('private secret;', 'private other;') }), before)
})

test('what a caller sees changes it, also where it is only stood behind', t => {
  const before = of(t, FILES)
  for (const [file, from, to] of [
    ['lib/cache.d.ts', 'held(): Hidden', 'held(): Hidden | undefined'],
    ['lib/base.d.ts', 'bytes: number', 'bytes: bigint'],
    ['index.d.ts', 'Options as CacheOptions', 'Options'],
    ['index.d.ts', 'Cache, ', ''],
  ] as const) {
    t.not(of(t, { ...FILES, [file]: FILES[file].replace(from, to) }), before, to)
  }
})

test('a difference names the lines', t => {
  t.is(difference('a\nb\nc', 'a\nd\nc'), '- b\n+ d')
  t.is(difference('a\nb', 'b\na'), '  the order of lines')
})

test('another text than the recorded one is refused, and recorded where that is asked for', t => {
  const file = join(folder(t), 'one.txt')
  t.throws(() => holdAgainst(file, 'a\n', false, 'it'), {
    message: 'one.txt is out of date; if the change is intended, run npm run it -- --renew\n+ a',
  })
  holdAgainst(file, 'a\n', true, 'it')
  t.notThrows(() => holdAgainst(file, 'a\n', false, 'it'))
})

test('a code that was recorded is there for ever, and a new one has to be recorded', t => {
  t.deepEqual(withNewCodes(['A', 'B'], ['B', 'A', 'C']), ['A', 'B', 'C'])
  t.throws(() => withNewCodes(['A', 'B'], ['A']), { message: 'error codes are permanent, but B is missing' })
  const recorded = readFileSync(join(root, '__test__/recorded/error-codes.txt'), 'utf8').trim().split('\n')
  t.deepEqual(withNewCodes(recorded, ERROR_CODES), recorded)
})

test('the public types are those that are recorded', async t => {
  const { code, out, err } = await runScript('release/surface.mjs')
  t.is(code, 0, `${out}${err}`)
})
