// The parts of a run on a GPU's machine, and what each has shown: the same in a clone (../test.mjs) and in the bundle (run.mjs).
//
// A part counts what its programs print, and has failed where one broke off, ran no test, or did not end in time. `run(command, args,
// options)` starts a program, shows what it prints, and answers { code, output, late }.
import { parseArgs } from 'node:util'

export const PARTS = ['caches', 'kernels', 'graph', 'sanitize', 'bench']

/** What run.sh is asked for; `out` is the folder that the environment names. */
export function askedParts(args, out) {
  const at = args.indexOf('bench')
  const before = at === -1 ? args : args.slice(0, at)
  const { values, positionals } = parseArgs({ args: before, allowPositionals: true, options: { 'require-gpu': { type: 'boolean', default: false }, out: { type: 'string' } } })
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

/** Random cases of a kernel's test under compute-sanitizer, which makes them a hundred times slower. */
const CHECKED_CASES = '20'

/** Whether the GPU can be used, from what `kvtide doctor` prints, and the reason why not. */
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
  for (const [, passed, failed, ignored] of text.matchAll(/^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored/gm)) {
    counts.passed += Number(passed)
    counts.failed += Number(failed)
    counts.skipped += Number(ignored)
  }
  return counts
}

export const listedTests = text => (text.match(/^.+: test$/gm) ?? []).length

/** A part whose program broke off, or ran no test, has failed as well. */
function checked(name, counts, { code, late = false }) {
  const silent = counts.passed + counts.failed + counts.skipped === 0
  const failed = counts.failed === 0 && (code !== 0 || silent || late) ? 1 : counts.failed
  return { name, ...counts, failed, ...(late ? { late } : {}) }
}

export async function deviceTests(run, command, args, options) {
  const ended = await run(command, [...args, '--tap', '--concurrency', '1'], options)
  return checked('caches', tapCounts(ended.output), ended)
}

/** Tests of kernels, in programs of their own, one at a time, since they share a stream; without a GPU they are counted. */
export async function kernelTests(name, run, programs, gpu) {
  if (gpu.usable) return counted(name, run, programs, program => [program, ['--test-threads', '1']], {})
  let skipped = 0
  for (const program of programs) skipped += listedTests((await run(program, ['--list'], { silent: true })).output)
  return checked(name, { passed: 0, failed: 0, skipped }, { code: 0 })
}

export async function sanitized(run, programs, gpu, sanitizer) {
  const parts = []
  for (const tool of ['memcheck', 'racecheck']) {
    if (!gpu.usable || sanitizer === undefined) {
      parts.push({ name: tool, reason: gpu.usable ? 'compute-sanitizer was not found' : gpu.reason })
      continue
    }
    // Errors that calls of the driver answer are no errors of kernels: libraries ask for what may not be there.
    const before = ['--tool', tool, '--error-exitcode', '99', ...(tool === 'memcheck' ? ['--report-api-errors', 'no'] : [])]
    parts.push(await counted(tool, run, programs, program => [sanitizer, [...before, program, '--test-threads', '1']], { env: { KVTIDE_CASES: CHECKED_CASES } }))
  }
  return parts
}

/** Runs test programs, and adds up what they count to; `asked` answers what is run for one. */
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

/** What is printed last, and the exit code: a part that was skipped is no failure, and is named. */
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
