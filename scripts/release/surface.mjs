// `npm run surface`: compares the public types and error codes with the recorded ones.
//
// `npm run surface -- --renew` records the current ones; list what that changes in __test__/recorded in CHANGELOG.md (docs/versioning.md).
// A recorded code stays recorded.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { ENTRIES, reachable } from '../compile.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { must, root, temporary } from '../steps.mjs'
import { holdAgainst } from './recorded.mjs'

const TYPES = join(root, '__test__/recorded/public-types.txt')
const CODES = join(root, '__test__/recorded/error-codes.txt')

/** Returns the statements of a declaration file, split at lines that start in the first column. Imports and private members are left out. */
function statements(file) {
  const lines = readFileSync(file, 'utf8').split('\n')
  const kept = lines.filter(line => line !== '' && !/^(\/\/|import )|^\s+(#private;|private )/.test(line))
  return kept.join('\n').split(/\n(?=[^\s}])/)
}

const nameOf = statement =>
  /\b(?:class|interface|type|const|let|function|enum|namespace) (\w+)/.exec(statement)?.[1] ?? ''

/** Returns the exports of entries, then every declaration that they use, sorted by name, so that moving one to another file changes nothing. */
export function surfaceOf(...entries) {
  const others = [...reachable(entries)].filter(file => !entries.includes(file))
  const behind = others.flatMap(statements).filter(statement => !/^export (type )?[{*]/.test(statement))
  // Overloads keep their order.
  const ordered = [...new Set(behind)].sort(
    (one, other) => Number(nameOf(one) > nameOf(other)) - Number(nameOf(one) < nameOf(other)),
  )
  return `${[...entries.flatMap(statements), ...ordered].join('\n\n')}\n`
}

async function declared() {
  const folder = temporary('surface')
  await must('tsc', ['-p', 'tsconfig.build.json', '--emitDeclarationOnly', '--removeComments', '--outDir', folder])
  return surfaceOf(...ENTRIES.map(entry => join(folder, entry)))
}

/** Returns the recorded codes with new ones appended; refuses if a recorded code is missing. */
export function withNewCodes(recorded, codes) {
  const gone = recorded.filter(code => !codes.includes(code))
  if (gone.length > 0) throw new Refusal(`error codes are permanent, but ${gone.join(', ')} is missing`)
  return [...new Set([...recorded, ...codes])]
}

async function surface() {
  const { renew } = given({ renew: { type: 'boolean' } })
  const types = await declared()
  const codes = [.../ERROR_CODES: readonly \[([^\]]*)\]/.exec(types)[1].matchAll(/'(\w+)'/g)].map(([, code]) => code)
  const all = withNewCodes(readFileSync(CODES, 'utf8').trim().split(/\r?\n/), codes)
  holdAgainst(TYPES, types, renew, 'surface')
  holdAgainst(CODES, `${all.join('\n')}\n`, renew, 'surface')
}

await main(import.meta.url, 'public types check failed', surface)
