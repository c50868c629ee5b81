// `npm run test:miri`: the unit tests of kvtide-core and a few cases of its random ones under Miri, which sees undefined behaviour of crates that it uses, too.
// kvtide-core itself has no unsafe code. Without a nightly toolchain that has Miri, the run is SKIPPED by name.
import { ask, must } from './steps.mjs'

const env = { RUSTUP_AUTO_INSTALL: '0' }
if (ask('cargo', ['+nightly', 'miri', '--version'], { env: { ...process.env, ...env } }) === undefined) {
  console.log('SKIPPED: tests under Miri: they need `rustup toolchain install nightly --component miri`')
  process.exit(0)
}
await must(
  'cargo',
  ['+nightly', 'miri', 'test', '-p', 'kvtide-core', '--lib', '--test', 'paged_parts', '--target-dir', 'target/miri'],
  { env: { ...env, KVTIDE_CASES: '2', MIRIFLAGS: '-Zmiri-disable-isolation' } },
)
