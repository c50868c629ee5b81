// `npm run surface`: whether the types that kvtide promises, and the codes of its errors, are those that are recorded.
//
// `npm run surface -- --renew` records them as they are: what that changes in __test__/recorded belongs in CHANGELOG.md (docs/versioning.md).
// A code that was recorded stays recorded.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { ENTRIES, reachable } from '../compile.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { must, root, temporary } from '../steps.mjs'
import { holdAgainst } from './recorded.mjs'

const TYPES = join(root, '__test__/recorded/public-types.txt')
const CODES = join(root, '__test__/recorded/error-codes.txt')

/** The statements of a declaration file, each from one first column to the next. What no caller can use, and imports, are left out. */
function statements(file) {
  const lines = readFileSync(file, 'utf8').split('\n')
  const kept = lines.filter(line => line !== '' && !/^(\/\/|import )|^\s+(#private;|private )/.test(line))
  return kept.join('\n').split(/\n(?=[^\s}])/)
}

const nameOf = statement => /\b(?:class|interface|type|const|let|function|enum|namespace) (\w+)/.exec(statement)?.[1] ?? ''

/** What entries export, then every declaration that they are made of, by its name: one that moves to another file stays where it is. */
export function surfaceOf(...entries) {
  const others = [...reachable(entries)].filter(file => !entries.includes(file))
  const behind = others.flatMap(statements).filter(statement => !/^export (type )?[{*]/.test(statement))
  // Overloads keep their order.
  const ordered = [...new Set(behind)].sort((one, other) => Number(nameOf(one) > nameOf(other)) - Number(nameOf(one) < nameOf(other)))
  return `${[...entries.flatMap(statements), ...ordered].join('\n\n')}\n`
}

async function declared() {
  const folder = temporary('surface')
  await must('tsc', ['-p', 'tsconfig.build.json', '--emitDeclarationOnly', '--removeComments', '--outDir', folder])
  return surfaceOf(...ENTRIES.map(entry => join(folder, entry)))
}

/** The recorded codes with those that are new behind them; refused where one is gone. */
export function withNewCodes(recorded, codes) {
  const gone = recorded.filter(code => !codes.includes(code))
  if (gone.length > 0) throw new Refusal(`codes of errors stay for ever, and ${gone.join(', ')} is gone`)
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

await main(import.meta.url, 'the surface is not what it was', surface)
