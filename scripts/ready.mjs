// Checks everything that must hold before a change is ready: format, lint, types, tests, and the package as a user gets it.
import { libraries, ONE_THREAD, tested, testsOf } from './crates.mjs'
import { must, onTarget } from './steps.mjs'

const full = process.argv.includes('--full')
const target = onTarget()
// The other caches of bench/peers are built only in the full run: kvtide does not need them.
const peers = ['--manifest-path', 'bench/peers/Cargo.toml']

/** Steps of cargo in `target`: one at a time, since each locks the folder. */
const compiled = [
  ['rust format', 'cargo', ['fmt', '--all', '--check']],
  ['rust lint', 'cargo', ['clippy', '--release', ...tested, '--all-targets', ...target, '--', '-D', 'warnings']],
  [
    'addon lint',
    'cargo',
    ['clippy', '--release', '-p', 'kvtide', '--features', 'net', ...target, '--', '-D', 'warnings'],
  ],
  [
    'rust docs',
    'cargo',
    ['doc', '--release', '--no-deps', '--lib', ...libraries, '-p', 'kvtide-cuda', '-p', 'decoder', ...target],
    { RUSTDOCFLAGS: '-D warnings' },
  ],
  [
    'caches and attention over opaque memory',
    'cargo',
    ['test', '--release', ...tested, ...testsOf('kvtide-tensor'), ...target],
    { ...ONE_THREAD, KVTIDE_KERNELS: 'opaque', KVTIDE_CASES: full ? '300' : '120' },
  ],
  ['kernels for GPUs, on the CPU', 'node', ['scripts/emulated.mjs'], full ? { KVTIDE_CASES: '50' } : {}],
  ['rust tests, compiled', 'cargo', ['test', '--release', '--no-run', '--quiet', ...target, ...tested]],
]

/** Steps that run meanwhile, on the core that a compiler leaves idle. */
const beside = [
  ['format', 'oxfmt', ['--check']],
  ['lint', 'oxlint', ['--deny-warnings']],
  ['types', 'tsc', ['-p', 'tsconfig.json']],
  ["types of the inspector's page", 'tsc', ['-p', 'lib/inspector/page']],
  ['package', 'node', ['scripts/pack/local.mjs', '--here']],
  ['hygiene', 'node', ['scripts/hygiene.mjs']],
  ['the start', 'npm', ['start', '--silent']],
  ['tour', 'npm', ['run', 'tour', '--silent']],
  ['format of the models of threads', 'cargo', ['fmt', '--manifest-path', 'concurrency/Cargo.toml', '--check']],
  ['what threads share, in all orders', 'node', ['scripts/concurrency.mjs']],
  [
    'caches and attention over opaque memory, from JavaScript',
    'ava',
    ['__test__/devices'],
    { KVTIDE_KERNELS: 'opaque', KVTIDE_DEVICE: 'cpu', KVTIDE_CASES_JS: '40' },
  ],
]

/** Steps that run alone. */
const alone = [
  ...(full
    ? [
        [
          'lint of the addon without the network',
          'cargo',
          ['clippy', '--release', '-p', 'kvtide', ...target, '--', '-D', 'warnings'],
        ],
        ['kernels for GPUs, compiled', 'node', ['scripts/cuda/kernels.mjs']],
        ['peers format', 'cargo', ['fmt', ...peers, '--check']],
        ['peers lint', 'cargo', ['clippy', '--release', ...peers, '--all-targets', '--', '-D', 'warnings']],
        ['peers tests', 'cargo', ['test', '--release', ...peers]],
        ['models of all families and exporters', 'node', ['scripts/onnx/matrix/main.mjs']],
        ['a real Whisper', 'node', ['scripts/onnx/real/whisper.mjs']],
        ['several versions of onnxruntime-node', 'node', ['scripts/onnx/versions.mjs']],
        ['API reference', 'node', ['scripts/api/build.mjs']],
        ['packages', 'node', ['scripts/pack/local.mjs']],
        ['crates, built from their packages', 'node', ['scripts/release/crates.mjs', '--verify', '--docs']],
        ['the same build twice', 'node', ['scripts/release/reproducible.mjs']],
        ['cargo-deny', 'cargo', ['install', '--locked', '--quiet', '--root', 'target/tools', 'cargo-deny@0.20.2']],
        [
          'licences, bans and sources of crates',
          'target/tools/bin/cargo-deny',
          ['check', 'licenses', 'bans', 'sources'],
        ],
        ['a million sequences of each property', 'node', ['scripts/soak.mjs', 'properties', '--fresh']],
        ['fuzzing', 'node', ['scripts/fuzz.mjs', '--seconds', '20']],
        ['tests under AddressSanitizer', 'node', ['scripts/asan.mjs']],
        ['tests under Miri', 'node', ['scripts/miri.mjs']],
        ['planted faults', 'node', ['scripts/mutants/main.mjs']],
      ]
    : []),
  ['reference model', 'node', ['scripts/reference.mjs']],
  ['tests', 'npm', ['test', '--silent'], full ? { KVTIDE_SCHEDULES: '5000', KVTIDE_LOW_BIT_SCHEDULES: '20' } : {}],
]

/** Runs steps one after the other. The output of a silent step is shown when it has ended, so that it is not mixed with that of others. */
async function inOrder(steps, silent = false) {
  for (const [name, command, args, env] of steps) {
    const start = Date.now()
    const title = `\n== ${name}: ${command} ${args.join(' ')}`
    if (!silent) console.log(title)
    const output = await must(command, args, { env, silent })
    if (silent) console.log(title, output)
    console.log(`== ${name}: ${((Date.now() - start) / 1000).toFixed(1)} s`)
  }
}

await Promise.all([inOrder(compiled), inOrder(beside, true)])
await inOrder(alone)
console.log('\nready')
