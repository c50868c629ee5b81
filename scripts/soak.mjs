// The property tests for as long as wanted: KVTIDE_CASES sequences each (a million unless set), with a new seed.
import { hostTarget, must } from './steps.mjs'

const cases = process.env.KVTIDE_CASES ?? '1000000'
const target = hostTarget()
const args = ['test', '--release', ...(target === undefined ? [] : ['--target', target]), '-p', 'kvtide-core', '-p', 'kvtide-tensor']
await must('cargo', [...args, '--', '--nocapture'], { env: { KVTIDE_CASES: cases } })
