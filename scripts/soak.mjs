// `npm run soak -- [stage …] [--hours 8] [--fresh]`: the random tests at length, in pieces of minutes, until all stages have reached their goals or the
// hours are up. What was done is kept in target/soak/state.json, so a later run goes on; `--fresh` begins its stages again. A piece that fails ends the run
// with its output, and is repeated by the next run.
//
// KVTIDE_CASES sets the goal of the property tests (a million sequences each), KVTIDE_HOURS is the same as --hours.
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'

import { stages } from './soak/stages.mjs'
import { root, run, skippedBy } from './steps.mjs'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { hours: { type: 'string' }, fresh: { type: 'boolean', default: false } },
})
const hours = Number(values.hours ?? process.env.KVTIDE_HOURS ?? Infinity)
if (!(hours > 0)) {
  console.error(`${values.hours ?? process.env.KVTIDE_HOURS} hours, expected a number above 0`)
  process.exit(1)
}
const unknown = positionals.find(name => !stages.some(stage => stage.name === name))
if (unknown !== undefined) {
  console.error(`unknown stage ${unknown}, expected ${stages.map(({ name }) => name).join(', ')}`)
  process.exit(1)
}

const file = join(root, 'target', 'soak', 'state.json')
const state = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {}
const doneOf = ({ name }) => state[name] ?? 0

/** Replaces the state in one step: a run can be killed at any moment. */
function keep() {
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(`${file}.new`, `${JSON.stringify(state, null, 2)}\n`)
  renameSync(`${file}.new`, file)
}

const wanted = stages.filter(({ name }) => positionals.length === 0 || positionals.includes(name))
if (values.fresh) for (const { name } of wanted) delete state[name]
const end = Date.now() + hours * 3_600_000
const skipped = new Set()
const open = () => wanted.filter(stage => doneOf(stage) < stage.goal && !skipped.has(stage.name))
// Each round does a piece of every stage, so that a run of few hours has tried all of them.
while (open().length > 0 && Date.now() < end) {
  for (const stage of open()) {
    if (Date.now() >= end) break
    const { name, unit, goal, env } = stage
    const [command, ...args] = stage.command
    const start = Date.now()
    const { code, output } = await run(command, args, { silent: true, env })
    if (code !== 0) {
      console.error(output.slice(-8000))
      console.error(`failed: ${name}: ${stage.command.join(' ')}`)
      process.exit(1)
    }
    const seconds = Math.round((Date.now() - start) / 1000)
    const reason = skippedBy(output)
    const done = reason === undefined ? stage.done(output, seconds) : 0
    if (done === 0) {
      console.log(`SKIPPED: ${name}: ${reason ?? 'nothing was done'}`)
      skipped.add(name)
      continue
    }
    state[name] = doneOf(stage) + done
    keep()
    console.log(`${name}: ${state[name]} of ${goal} ${unit}, ${seconds} s`)
  }
}
const rest = open()
if (skipped.size > 0) console.log(`SKIPPED: ${[...skipped].join(', ')}`)
const without = skipped.size > 0 ? 'all other goals are reached' : 'all goals are reached'
console.log(rest.length === 0 ? without : `time is up: ${rest.map(({ name }) => name).join(', ')} can go on`)
