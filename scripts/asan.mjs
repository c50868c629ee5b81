// Runs the TypeScript tests with an addon under AddressSanitizer: `npm run test:asan -- [test file …]`.
//
// The stable toolchain instruments all of our crates and their dependencies (RUSTC_BOOTSTRAP=1 -Zsanitizer=address); gcc's libasan is
// loaded before node. Any report of any process fails the run, even if a test expects that process to end. Leaks aren't checked, because
// node frees nothing when it ends. A library with a planted fault shows first that faults are reported. Without Linux on x64 or without
// gcc's libasan the run is SKIPPED by name.
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { isAbsolute, join } from 'node:path'

import { ask, hostTarget, must, root, run } from './steps.mjs'

/** Tests of the memory that the process occupies, which is another one with libasan, and of other addons and packages. */
const LEFT_OUT = [
  '!__test__/{cli,cuda,loading,pack,release}/**',
  '!__test__/integration/{bundled,cycles,docs,examples,install,start-report,tidy}.test.ts',
]

const libasan = ask('gcc', ['-print-file-name=libasan.so'])?.trim()
if (hostTarget() !== 'x86_64-unknown-linux-gnu' || libasan === undefined || !isAbsolute(libasan)) {
  console.log('SKIPPED: tests under AddressSanitizer: they need Linux on x64 and the libasan of gcc')
  process.exit(0)
}

const folder = join(root, 'target', 'asan')
// One large unit of code per crate would take minutes to instrument.
const quick = ['codegen-units=16', 'opt-level=1'].flatMap(option => [
  '--config',
  `profile.release.package.kvtide-tensor.${option}`,
])
await must(
  'cargo',
  [
    'build',
    '--locked',
    '--release',
    ...quick,
    '--target',
    hostTarget(),
    '--target-dir',
    folder,
    '-p',
    'kvtide',
    '--features',
    'net,panics',
  ],
  { env: { RUSTC_BOOTSTRAP: '1', RUSTFLAGS: '-Zsanitizer=address' } },
)
const addon = join(folder, 'kvtide.node')
copyFileSync(join(folder, hostTarget(), 'release', 'libkvtide.so'), addon)

const reports = join(folder, 'reports')
const environment = {
  LD_PRELOAD: libasan,
  ASAN_OPTIONS: [
    'detect_leaks=0',
    // A test asks for more memory than there is, and expects an error.
    'allocator_may_return_null=1',
    'max_allocation_size_mb=65536',
    `log_path=${join(reports, 'process')}`,
  ].join(':'),
  NAPI_RS_NATIVE_LIBRARY_PATH: addon,
  KVTIDE_DEVICE: 'cpu',
}

/** Runs a command and returns its exit code, and the reports of all of its processes. */
async function watched(command, args, options) {
  rmSync(reports, { recursive: true, force: true })
  mkdirSync(reports)
  const { code } = await run(command, args, { ...options, env: environment })
  return { code, found: readdirSync(reports).map(name => readFileSync(join(reports, name), 'utf8')) }
}

// A run that could report nothing proves nothing.
const freed = join(folder, 'freed.so')
const rustc = ['--edition', '2024', '-O', '-Zsanitizer=address', '--crate-type', 'cdylib', '-o', freed]
await must('rustc', [...rustc, 'scripts/asan/freed.rs'], { env: { RUSTC_BOOTSTRAP: '1' } })
const planted = await watched('node', ['-e', `process.dlopen({ exports: {} }, ${JSON.stringify(freed)})`], {
  silent: true,
})
if (!planted.found.some(report => report.includes('heap-use-after-free'))) {
  console.error('AddressSanitizer did not report a planted use of freed memory')
  process.exit(1)
}

const named = process.argv.slice(2)
const { code, found } = await watched('ava', named.length > 0 ? named : ['__test__/**/*.test.ts', ...LEFT_OUT])
for (const report of found) console.error(report.slice(0, 6000))
if (found.length > 0) console.error(`AddressSanitizer reported ${found.length} processes`)
process.exit(code === 0 && found.length === 0 ? 0 : 1)
