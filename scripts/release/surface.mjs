// `npm run surface`: whether the types that kvtide promises, and the codes of its errors, are those that are recorded.
//
// `npm run surface -- --renew` records them as they are: what that changes in __test__/recorded belongs in CHANGELOG.md (docs/versioning.md).
// A code that was recorded stays recorded.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { must, root } from '../steps.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { surfaceOf, written } from './declarations.mjs'

const TYPES = join(root, '__test__/recorded/public-types.txt')
const CODES = join(root, '__test__/recorded/error-codes.txt')

async function declared() {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-surface-'))
  // A command that fails ends the process.
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  await must('tsc', ['-p', 'tsconfig.build.json', '--emitDeclarationOnly', '--removeComments', '--outDir', folder])
  return written(surfaceOf(join(folder, 'index.d.ts')))
}

function lacking(lines, others, mark) {
  const known = new Set(others)
  return lines.filter(line => !known.has(line)).map(line => `${mark} ${line}`)
}

/** The lines that one text has and the other lacks, a screenful of them. */
export function difference(before, after) {
  const [old, now] = [before, after].map(text => text.split('\n'))
  const lines = [...lacking(old, now, '-'), ...lacking(now, old, '+')]
  return (lines.length === 0 ? ['  the order of lines'] : lines).slice(0, 60).join('\n')
}

/** The codes that are new since they were recorded; refused where one is gone. */
export function addedCodes(recorded, codes) {
  const gone = recorded.filter(code => !codes.includes(code))
  if (gone.length > 0) throw new Refusal(`codes of errors stay for ever, and ${gone.join(', ')} is gone`)
  return codes.filter(code => !recorded.includes(code))
}

async function surface() {
  const { renew } = given({ renew: { type: 'boolean' } })
  const types = await declared()
  const codes = [.../ERROR_CODES: readonly \[([^\]]*)\]/.exec(types)[1].matchAll(/'(\w+)'/g)].map(([, code]) => code)
  const recorded = readFileSync(CODES, 'utf8').split('\n').filter(line => line !== '')
  const added = addedCodes(recorded, codes)
  if (renew) {
    writeFileSync(TYPES, types)
    writeFileSync(CODES, `${[...recorded, ...added].join('\n')}\n`)
    return console.log('recorded: the public types and the codes of errors')
  }
  const before = readFileSync(TYPES, 'utf8')
  if (types !== before) {
    throw new Refusal(`the public types are not those that are recorded; where that is meant, npm run surface -- --renew\n${difference(before, types)}`)
  }
  if (added.length > 0) throw new Refusal(`${added.join(', ')} is not recorded yet: npm run surface -- --renew`)
  console.log(`the public types are those that are recorded, and so are ${codes.length} codes of errors`)
}

await main(import.meta.url, 'the surface is not what it was', surface)
