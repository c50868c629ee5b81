// `npm run build:ts`: what the package has of TypeScript, compiled to dist/.
//
// Documentation is for editors, which read it in the declarations: the JavaScript goes without. Declarations that no caller can reach from
// the public entry go as well.
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

import { must, root } from './steps.mjs'

/** The declarations that `entry` leads to, itself among them. */
export function reachable(entry) {
  const found = new Set()
  const waiting = [entry]
  while (waiting.length > 0) {
    const file = waiting.pop()
    if (found.has(file)) continue
    found.add(file)
    const named = readFileSync(file, 'utf8').matchAll(/(?:from |import\()['"](\.[^'"]+)\.js['"]/g)
    for (const [, name] of named) waiting.push(join(dirname(file), `${name}.d.ts`))
  }
  return found
}

async function compile() {
  const dist = join(root, 'dist')
  rmSync(dist, { recursive: true, force: true })
  await must('tsc', ['-p', 'tsconfig.build.json', '--declaration', 'false', '--isolatedDeclarations', 'false', '--removeComments'])
  await must('tsc', ['-p', 'tsconfig.build.json', '--emitDeclarationOnly'])
  const kept = reachable(join(dist, 'index.d.ts'))
  for (const file of readdirSync(dist, { recursive: true })) {
    const path = join(dist, file)
    if (file.endsWith('.d.ts') && !kept.has(path)) rmSync(path)
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await compile()
