// `npm test`: the Rust tests, then the TypeScript ones, and one line that counts both.
import { bundled, bundleOf, bundleTests } from './bundled.mjs'
import { ONE_THREAD, tested } from './crates.mjs'
import { rustCounts, rustFailures } from './cuda/carried/parts.mjs'
import { onTarget, run } from './steps.mjs'

// Examples in the documentation run against the compiled package.
const compiled = await run('npm', ['run', '--silent', 'build:ts'])

const rust = await run('cargo', ['test', '--release', '--no-fail-fast', ...onTarget(), ...tested], { env: ONE_THREAD })
const ofRust = rustCounts(rust.output)

// The addon that was just built is the ordinary one; an existing one with CUDA may be older.
await bundleTests()
const named = process.argv.slice(2).map(bundleOf)
const ava = await run('ava', [...bundled, ...named], { env: { KVTIDE_DEVICE: process.env.KVTIDE_DEVICE || 'cpu' } })
const counted = pattern => Number(pattern.exec(ava.output)?.[1] ?? 0)
// If a test fails, ava's summary leaves out the number of passed tests.
const avaPassed = [...ava.output.matchAll(/^\s*✔ /gm)].length
const avaFailed =
  counted(/^\s*(\d+) tests? failed/m) + counted(/^\s*(\d+) (?:unhandled rejections?|uncaught exceptions?)/m)
const counts = {
  passed: ofRust.passed + avaPassed,
  failed: ofRust.failed + avaFailed,
  skipped: ofRust.skipped + counted(/^\s*(\d+) tests? skipped/m),
}

// A run that ended before it counted anything has failed too.
if (compiled.code !== 0) counts.failed += 1
if (rust.code !== 0 && ofRust.failed === 0) counts.failed += 1
if (ava.code !== 0 && avaFailed === 0) counts.failed += 1
if (avaPassed === 0 && avaFailed === 0 && ava.code === 0) counts.failed += 1

// ava ends with a list of what failed; cargo's is far above it.
for (const failure of rustFailures(rust.output)) console.log(failure)
const skipped = counts.skipped > 0 ? `, ${counts.skipped} skipped` : ''
console.log(`\n${counts.passed} passed, ${counts.failed} failed${skipped}`)
process.exit(counts.failed === 0 ? 0 : 1)
