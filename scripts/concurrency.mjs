// Runs the models of code that threads share (concurrency/): loom's with every order of their atomics, shuttle's with random schedules.
// `npm run models:threads -- [--preemptions 2] [--minutes n] [--schedules 10000]`; minutes bound each loom model.
import { join } from 'node:path'
import { parseArgs } from 'node:util'

import { hostTarget, must, onTarget, root } from './steps.mjs'

const { values } = parseArgs({
  options: {
    preemptions: { type: 'string', default: '2' },
    minutes: { type: 'string' },
    schedules: { type: 'string', default: '10000' },
  },
})
const folder = join(root, 'target', 'concurrency')
const cargo = ['--locked', '--release', ...onTarget(), '--target-dir', folder]
await must('cargo', ['build', '--manifest-path', 'concurrency/Cargo.toml', ...cargo])
const program = name => join(folder, hostTarget(), 'release', name)
await must(program('loom'), [values.preemptions, ...(values.minutes === undefined ? [] : [values.minutes])])
await must(program('shuttle'), [values.schedules], { env: { SHUTTLE_SILENCE_WARNINGS: '1' } })
