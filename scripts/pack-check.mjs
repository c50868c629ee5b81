// Packs the npm package, installs it in an empty folder and runs the README's quick start from there.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { must, root } from './steps.mjs'

const folder = mkdtempSync(join(tmpdir(), 'kvtide-pack-'))
try {
  const packed = await must('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', folder])
  const tarball = join(folder, packed.trim().split('\n').at(-1))
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'quick-start', private: true, type: 'module' }))
  await must('npm', ['install', '--silent', '--no-audit', '--no-fund', tarball], { cwd: folder })

  const readme = readFileSync(join(root, 'README.md'), 'utf8')
  const quickStart = /## Quick start[\s\S]*?```ts\n([\s\S]*?)```/.exec(readme)?.[1]
  if (quickStart === undefined) throw new Error('the README has no quick start')
  writeFileSync(join(folder, 'quick-start.ts'), quickStart)

  // The quick start is TypeScript with `using`; tsx only strips it, the package is the installed one.
  await must(process.execPath, ['--import', new URL('../node_modules/tsx/dist/esm/index.mjs', import.meta.url).href, 'quick-start.ts'], { cwd: folder })
  const types = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2022', '--lib', 'es2023,esnext.disposable', '--types', 'node', '--typeRoots', join(root, 'node_modules/@types')]
  await must('tsc', ['--ignoreConfig', ...types, 'quick-start.ts'], { cwd: folder })
  await must('npx', ['--no-install', 'kvtide', 'doctor'], { cwd: folder })
  console.log('the packed package works')
} finally {
  rmSync(folder, { recursive: true, force: true })
}
