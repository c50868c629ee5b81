// Runs the libFuzzer targets of fuzz/ on the stable toolchain: `npm run fuzz -- [target …] [--seconds 10] [--runs n]`.
//
// Each target begins with the inputs of fuzz/corpus and collects new ones in target/fuzz/found, which a later run goes on from.
// `--merge` adds to fuzz/corpus those that reach more of the code. AddressSanitizer watches memory; an input that makes a target crash,
// take more than 25 s or allocate more than 256 MiB at once is written to target/fuzz/crashes, and the run fails.
import { existsSync, mkdirSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'

import { targets } from './fuzz/targets.mjs'
import { exists, hostTarget, must, root, run } from './steps.mjs'

/** The most bytes of all corpora. */
const CORPUS_BYTES = 200_000

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { seconds: { type: 'string' }, runs: { type: 'string' }, merge: { type: 'boolean', default: false } },
})
const names = positionals.length === 0 ? Object.keys(targets) : positionals
const unknown = names.find(name => !(name in targets))
if (unknown !== undefined) {
  console.error(`unknown target ${unknown}, expected ${Object.keys(targets).join(', ')}`)
  process.exit(1)
}
if (hostTarget() !== 'x86_64-unknown-linux-gnu' || !exists('c++')) {
  console.log('SKIPPED: fuzzing: it needs Linux on x64 and a C++ compiler')
  process.exit(0)
}

const coverage = ['level=4', 'inline-8bit-counters', 'pc-table', 'trace-compares']
const flags = [
  '--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Zsanitizer=address',
  ...coverage.map(option => `-Cllvm-args=-sanitizer-coverage-${option}`),
]
const folder = join(root, 'target', 'fuzz')
const cargo = ['--release', '--target', hostTarget(), '--target-dir', folder]
await must('cargo', ['build', '--locked', '--manifest-path', 'fuzz/Cargo.toml', '--bins', ...cargo], {
  env: { RUSTC_BOOTSTRAP: '1', RUSTFLAGS: flags.join(' ') },
})

const limits = ['-timeout=25', '-malloc_limit_mb=256', '-rss_limit_mb=3000', '-print_final_stats=1']
const env = { ASAN_OPTIONS: 'detect_leaks=0', KVTIDE_THREADS: '1' }
const program = name => join(folder, hostTarget(), 'release', name)

const failed = []
for (const [index, name] of names.entries()) {
  if (index > 0) console.log('')
  const corpus = join(root, 'fuzz', 'corpus', name)
  const found = join(folder, 'found', name)
  for (const path of [corpus, found, join(folder, 'crashes')]) mkdirSync(path, { recursive: true })
  const common = [...limits, `-max_len=${targets[name]}`, `-artifact_prefix=${join(folder, 'crashes', name)}-`]
  if (values.merge) {
    await must(program(name), ['-merge=1', ...common, corpus, found], { env })
    continue
  }
  const bounds = values.runs === undefined ? [] : [`-runs=${values.runs}`]
  if (values.seconds !== undefined || values.runs === undefined) bounds.push(`-max_total_time=${values.seconds ?? 10}`)
  console.log(`== ${name}: ${bounds.join(' ')}`)
  const { code, output } = await run(program(name), [...common, ...bounds, '-verbosity=1', found, corpus], {
    env,
    silent: true,
  })
  const count = /number_of_executed_units:\s*(\d+)/.exec(output)?.[1]
  if (code !== 0 || count === undefined) {
    console.error(output.slice(-6000))
    failed.push(name)
  } else console.log(`${name}: ${count} runs, no crash`)
}
if (values.merge) {
  const sizes = Object.keys(targets).map(name => {
    const corpus = join(root, 'fuzz', 'corpus', name)
    const files = existsSync(corpus) ? readdirSync(corpus) : []
    return files.reduce((sum, file) => sum + statSync(join(corpus, file)).size, 0)
  })
  const bytes = sizes.reduce((sum, size) => sum + size, 0)
  console.log(`${bytes} bytes in fuzz/corpus, expected at most ${CORPUS_BYTES}`)
  if (bytes > CORPUS_BYTES) process.exit(1)
}
if (failed.length > 0) {
  console.error(`failed: ${failed.join(', ')}`)
  process.exit(1)
}
