// The parts of a run on a GPU machine, and their results: the same in a clone (../test.mjs) and in the bundle (run.mjs).
//
// A part adds up the results that its programs print. It fails if a program crashed, ran no test, or timed out. `run(command, args,
// options)` starts a program, shows its output, and returns { code, output, late }.
import { parseArgs } from 'node:util'

export const PARTS = ['caches', 'kernels', 'sanitize', 'bench']

/** Parses the arguments of run.sh; `out` is the folder from the environment. */
export function askedParts(args, out) {
  const at = args.indexOf('bench')
  const before = at === -1 ? args : args.slice(0, at)
  const { values, positionals } = parseArgs({
    args: before,
    allowPositionals: true,
    options: { 'require-gpu': { type: 'boolean', default: false }, out: { type: 'string' } },
  })
  for (const part of positionals) {
    if (!PARTS.includes(part)) throw new RangeError(`${part}: expected one of ${PARTS.join(', ')}`)
  }
  const parts = [...positionals, ...(at === -1 ? [] : ['bench'])]
  return {
    parts: parts.length > 0 ? parts : PARTS.filter(part => part !== 'bench'),
    requireGpu: values['require-gpu'],
    out: values.out ?? (out === '' ? undefined : out),
    bench: at === -1 ? [] : args.slice(at + 1),
  }
}

/** The number of random cases of a kernel's test under compute-sanitizer, which makes them a hundred times slower. */
const CHECKED_CASES = '20'

/** Reads from the output of `kvtide doctor` if the GPU can be used, and the reason if not. */
export function gpuOf(doctor) {
  const [, rest] = /^device cuda\s+(.*)$/m.exec(doctor) ?? []
  if (rest === 'usable') return { usable: true, reason: '' }
  return { usable: false, reason: rest?.replace(/^not usable: /, '') ?? 'kvtide doctor does not say' }
}

export function tapCounts(text) {
  const lines = text.match(/^(?:not )?ok \d+.*$/gm) ?? []
  const skipped = lines.filter(line => /# SKIP\b/.test(line)).length
  const failed = lines.filter(line => line.startsWith('not ok')).length
  return { passed: lines.length - failed - skipped, failed, skipped }
}

export function rustCounts(text) {
  const counts = { passed: 0, failed: 0, skipped: 0 }
  for (const [, passed, failed, ignored] of text.matchAll(
    /^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored/gm,
  )) {
    counts.passed += Number(passed)
    counts.failed += Number(failed)
    counts.skipped += Number(ignored)
  }
  // A test that misses something says so itself, since Rust's harness then counts it as passed.
  const skipped = new Set(Array.from(text.matchAll(/\bSKIPPED: ([\w:]+): /g), ([, name]) => name)).size
  return { ...counts, passed: counts.passed - skipped, skipped: counts.skipped + skipped }
}

/** The most characters of each failure that are repeated. */
const FAILURE = 2_000

/** The name of each Rust test that failed, with the end of its output. */
export function rustFailures(text) {
  const sections = text.matchAll(/^---- (.+) stdout ----\n([^]*?)(?=^---- .+ stdout ----$|^failures:$)/gm)
  const said = new Map(Array.from(sections, ([, name, output]) => [name, output.trim().slice(-FAILURE)]))
  const names = Array.from(text.matchAll(/^test (.+) \.\.\. FAILED$/gm), ([, name]) => name)
  return names.map(name => [`failed in Rust: ${name}`, said.get(name) ?? ''].join('\n').trim())
}

export const listedTests = text => (text.match(/^.+: test$/gm) ?? []).length

/** Counts a failure if a program of the part crashed or ran no test. */
function checked(name, counts, { code, late = false }) {
  const silent = counts.passed + counts.failed + counts.skipped === 0
  const failed = counts.failed === 0 && (code !== 0 || silent || late) ? 1 : counts.failed
  return { name, ...counts, failed, ...(late ? { late } : {}) }
}

export async function deviceTests(run, command, args, options) {
  const ended = await run(command, [...args, '--tap', '--concurrency', '1'], options)
  return checked('caches', tapCounts(ended.output), ended)
}

/** Runs the tests of kernels, in separate programs, one at a time, because they share a stream; without a GPU it only counts them. */
export async function kernelTests(run, programs, gpu) {
  if (gpu.usable) return counted('kernels', run, programs, program => [program, ['--test-threads', '1']], {})
  let skipped = 0
  for (const program of programs) skipped += listedTests((await run(program, ['--list'], { silent: true })).output)
  return checked('kernels', { passed: 0, failed: 0, skipped }, { code: 0 })
}

export async function sanitized(run, programs, gpu, sanitizer) {
  const parts = []
  for (const tool of ['memcheck', 'racecheck']) {
    if (!gpu.usable || sanitizer === undefined) {
      parts.push({ name: tool, reason: gpu.usable ? 'compute-sanitizer was not found' : gpu.reason })
      continue
    }
    // Errors from driver calls are not kernel errors: libraries ask for features that may be missing.
    const before = [
      '--tool',
      tool,
      '--error-exitcode',
      '99',
      ...(tool === 'memcheck' ? ['--report-api-errors', 'no'] : []),
    ]
    parts.push(
      await counted(tool, run, programs, program => [sanitizer, [...before, program, '--test-threads', '1']], {
        env: { KVTIDE_CASES: CHECKED_CASES },
      }),
    )
  }
  return parts
}

/** Runs test programs and adds up their counts; `asked` returns the command for a program. */
async function counted(name, run, programs, asked, options) {
  const all = { passed: 0, failed: 0, skipped: 0 }
  let late = false
  for (const program of programs) {
    const ended = await run(...asked(program), options)
    const counts = checked('', rustCounts(ended.output), ended)
    for (const kind of Object.keys(all)) all[kind] += counts[kind]
    late ||= ended.late === true
  }
  return checked(name, all, { code: 0, late })
}

/** Returns the final summary and the exit code. A skipped part is named, and is not a failure. */
export function summary(parts, gpu) {
  const width = Math.max(0, ...parts.map(({ name }) => name.length)) + 2
  const lines = parts.map(({ name, passed, failed, skipped, reason, late = false }) => {
    if (reason !== undefined) return `${name.padEnd(width)}SKIPPED: ${reason}`
    return `${name.padEnd(width)}${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}${late ? ', not ended in time' : ''}`
  })
  const skipped = parts.reduce((sum, part) => sum + (part.skipped ?? 0), 0)
  if (!gpu.usable) lines.push(`SKIPPED: ${skipped} tests need a GPU: ${gpu.reason}`)
  const failed = parts.some(part => (part.failed ?? 0) > 0)
  return { text: lines.join('\n'), code: failed ? 1 : 0 }
}
