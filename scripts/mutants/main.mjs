// `npm run mutants -- [name …]`: plants one fault after the other in a copy of the repository, and runs the check that must catch it.
//
// The copy is in target/mutants and has a target of its own: cargo gives a crate the same name in each checkout, so that a fault which is compiled in a shared
// target could stay in what is built there afterwards. A fault that no check catches fails the run; so does one whose text is no
// longer in its file, or whose check fails without it. A check that is SKIPPED on this machine is reported as such.
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { ask, root, run, skippedBy } from '../steps.mjs'
import { mutants } from './list.mjs'

const tree = join(root, 'target', 'mutants', 'tree')
/** What is compiled for the copy. It is kept for the next run. */
const artifacts = join(root, 'target', 'mutants', 'target')

/** Copies the files that git knows or would know. */
function copyTree() {
  rmSync(tree, { recursive: true, force: true })
  mkdirSync(tree, { recursive: true })
  const files = ask('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard']).split('\0').filter(Boolean)
  for (const file of files) {
    if (!existsSync(join(root, file))) continue
    mkdirSync(dirname(join(tree, file)), { recursive: true })
    cpSync(join(root, file), join(tree, file))
  }
  const addons = readdirSync(root).filter(name => name.endsWith('.node'))
  for (const name of ['node_modules', 'dist', 'binding.d.cts', ...addons]) {
    if (existsSync(join(root, name))) symlinkSync(join(root, name), join(tree, name))
  }
  mkdirSync(artifacts, { recursive: true })
  symlinkSync(artifacts, join(tree, 'target'))
}

async function checked({ check: [command, ...args] }) {
  const { code, output } = await run(command, args, { cwd: tree, silent: true, env: { KVTIDE_CASES_JS: '2000' } })
  return {
    failed: code !== 0,
    skipped: code === 0 && skippedBy(output) !== undefined,
    compiled: !/^error(\[E\d+\])?: .*\n\s+-->/m.test(output),
    output,
  }
}

const names = process.argv.slice(2)
const unknown = names.find(name => !mutants.some(mutant => mutant.name === name))
if (unknown !== undefined) {
  console.error(`unknown mutant ${unknown}, expected ${mutants.map(({ name }) => name).join(', ')}`)
  process.exit(1)
}
copyTree()
const sound = new Map()
const wrong = []
for (const mutant of mutants.filter(({ name }) => names.length === 0 || names.includes(name))) {
  const { name, fault, file, from, to, check } = mutant
  const path = join(tree, file)
  const text = readFileSync(path, 'utf8')
  const report = verdict => console.log(`${name}: ${fault}: ${verdict}: ${check.join(' ')}`)
  if (!text.includes(from)) {
    report('its text is no longer in the file')
    wrong.push(name)
    continue
  }
  const key = check.join(' ')
  if (!sound.has(key)) sound.set(key, await checked(mutant))
  const before = sound.get(key)
  if (before.skipped) {
    report('SKIPPED')
    continue
  }
  if (before.failed) {
    console.error(before.output.slice(-3000))
    report('the check fails without the fault')
    wrong.push(name)
    continue
  }
  writeFileSync(
    path,
    text.replace(from, () => to),
  )
  const { failed, compiled, output } = await checked(mutant)
  writeFileSync(path, text)
  if (failed && compiled) report('caught')
  else {
    console.error(output.slice(-3000))
    report(compiled ? 'MISSED' : 'the fault does not compile')
    wrong.push(name)
  }
}
if (wrong.length > 0) {
  console.error(`not caught: ${wrong.join(', ')}`)
  process.exit(1)
}
