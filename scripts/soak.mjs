// Runs the property tests with new seeds for as long as wanted: KVTIDE_CASES sequences each (a million by default), or, with
// KVTIDE_HOURS, round after round of KVTIDE_CASES (ten thousand by default) until the time is up.
import { libraries } from './crates.mjs'
import { must, onTarget } from './steps.mjs'

const hours = process.env.KVTIDE_HOURS === undefined ? 0 : Number(process.env.KVTIDE_HOURS)
if (!(hours >= 0 && Number.isFinite(hours))) {
  console.error(`KVTIDE_HOURS is ${process.env.KVTIDE_HOURS}, expected a number of hours`)
  process.exit(1)
}
const cases = process.env.KVTIDE_CASES ?? (hours > 0 ? '10000' : '1000000')
const args = ['test', '--release', ...onTarget(), ...libraries]
const end = Date.now() + hours * 3_600_000
let rounds = 0
do {
  await must('cargo', [...args, '--', '--nocapture'], { env: { KVTIDE_CASES: cases } })
  rounds += 1
} while (Date.now() < end)
console.log(`${rounds} ${rounds === 1 ? 'round' : 'rounds'} of ${cases} sequences for each property, none failed`)
