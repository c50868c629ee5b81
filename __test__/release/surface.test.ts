// The public types and the codes of errors: what is recorded is what is there.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { ERROR_CODES } from '../../index.js'
import { folder, root, runScript } from '../support/packaging/scripts.js'
import { surfaceOf, written } from '../../scripts/release/declarations.mjs'
import { addedCodes, difference } from '../../scripts/release/surface.mjs'

/** The surface of a package of these files. */
function of(t: ExecutionContext, files: Readonly<Record<string, string>>): string {
  const at = folder(t)
  mkdirSync(join(at, 'lib'))
  for (const [file, text] of Object.entries(files)) writeFileSync(join(at, file), text)
  return written(surfaceOf(join(at, 'index.d.ts')))
}

const INDEX = "export { Cache, type Options as CacheOptions } from './lib/cache.js';\n"
const CACHE = `import { type Base } from './base.js';
import type { Native } from '#binding';
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
export type Unused = Native;
`
const BASE = 'export type Base = {\n    readonly bytes: number;\n};\n'
const FILES = { 'index.d.ts': INDEX, 'lib/cache.d.ts': CACHE, 'lib/base.d.ts': BASE }

test('exports come first, by name, then what stands behind them', t => {
  t.is(
    of(t, FILES),
    `// What kvtide exports.

export declare class Cache {
    constructor(options: Options);
    held(): Hidden;
}

// Options as CacheOptions
export interface Options {
    readonly size: number;
}

// What stands behind it, and cannot be named by a caller.

export type Base = {
    readonly bytes: number;
};

type Hidden = Base;
`,
  )
})

test('a declaration that moves to another file, or what no caller sees, changes nothing', t => {
  const before = of(t, FILES)
  const moved = { ...FILES, 'lib/base.d.ts': "export { Base } from './other.js';\n", 'lib/other.d.ts': BASE }
  t.is(of(t, moved), before)
  t.is(of(t, { ...FILES, 'lib/cache.d.ts': CACHE.replace('private secret;', 'private other;').replace('export type Unused = Native;\n', '') }), before)
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
  t.throws(() => of(t, { ...FILES, 'index.d.ts': "export { Gone } from './lib/cache.js';\n" }), { message: 'Gone is exported and declared nowhere' })
})

test('a difference names the lines', t => {
  t.is(difference('a\nb\nc', 'a\nd\nc'), '- b\n+ d')
  t.is(difference('a\nb', 'b\na'), '  the order of lines')
})

test('a code that was recorded is there for ever, and a new one has to be recorded', t => {
  t.deepEqual(addedCodes(['A', 'B'], ['B', 'A', 'C']), ['C'])
  t.throws(() => addedCodes(['A', 'B'], ['A']), { message: 'codes of errors stay for ever, and B is gone' })
  const recorded = readFileSync(join(root, '__test__/recorded/error-codes.txt'), 'utf8').trim().split('\n')
  t.deepEqual(addedCodes(recorded, ERROR_CODES), [])
})

test('the public types are those that are recorded', async t => {
  const { code, out, err } = await runScript('release/surface.mjs')
  t.is(code, 0, `${out}${err}`)
})
