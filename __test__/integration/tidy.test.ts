// The shape of the source tree: lengths of files and functions, file heads, and words that must not appear.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import test from 'ava'

const root = fileURLToPath(new URL('../..', import.meta.url))
const FILE_LINES_MAX = 500
const FUNCTION_LINES_MAX = 70

/** Files that git tracks or would track; build output is excluded. */
const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: root,
  encoding: 'utf8',
})
  .split('\n')
  .filter(file => /\.(rs|ts|mjs|js)$/.test(file))

const text = (file: string): string => readFileSync(`${root}/${file}`, 'utf8')

/** Files that exist in the working tree: some may be deleted but still in the index. */
const present = files.filter(file => {
  try {
    return text(file).length > 0
  } catch {
    return false
  }
})

/** Functions and their lengths: from a line that opens one to the line that closes it at the same indent. */
function* functions(file: string): Generator<{ name: string; lines: number }> {
  const opening = file.endsWith('.rs')
    ? /^(\s*)(?:pub(?:\([a-z]+\))? )?(?:const |unsafe |async )*fn (\w+)/
    : /^(\s*)(?:export )?(?:static |async )*function\*? (\w+)|^(\s*)(?:static |async |override )*(\w+)\([^)]*\)[^;=]*\{$/
  const lines = text(file).split('\n')
  for (const [start, line] of lines.entries()) {
    const found = opening.exec(line)
    if (found === null) continue
    const indent = found[1] ?? found[3] ?? ''
    // The bracket of a method in an object literal has a comma behind it.
    const closing = new RegExp(`^${indent}\\}[,;)]*$`)
    const length = lines.slice(start).findIndex(later => closing.test(later))
    yield { name: found[2] ?? found[4] ?? '?', lines: length + 1 }
  }
}

test('there are files to look at', t => {
  for (const folder of [
    'crates',
    'src',
    'lib',
    'bench/peers/src',
    'bench/cuda/src',
    'examples/decoder/src',
    'bench/workloads',
    'bench/tests',
  ]) {
    t.true(
      present.some(file => file.startsWith(`${folder}/`)),
      folder,
    )
  }
  t.true(present.length > 50)
  t.true([...functions('lib/errors/check.ts')].some(({ name }) => name === 'count'))
  t.true([...functions('crates/kvtide-core/src/rotating.rs')].some(({ name }) => name === 'plan_append'))
})

test('no file is longer than 500 lines', t => {
  for (const file of present) {
    const lines = text(file).split('\n').length - 1
    t.true(lines <= FILE_LINES_MAX, `${file} has ${lines} lines: is there a second noun in it?`)
  }
})

test('no function is longer than a screen', t => {
  for (const file of present) {
    for (const { name, lines } of functions(file)) {
      t.true(lines <= FUNCTION_LINES_MAX, `${file}: ${name} has ${lines} lines`)
    }
  }
})

test('every Rust file says at its head what it is for', t => {
  for (const file of present.filter(name => /(src|benches)\/.*\.rs$/.test(name))) {
    t.true(text(file).startsWith('//!'), file)
  }
})

test('no file is named for nothing in particular', t => {
  t.deepEqual(
    present.filter(file => /(^|\/)(utils?|helpers?|misc|common)\./.test(file)),
    [],
  )
})

test('nothing is left unfinished', t => {
  // Assembled from halves, so that this file does not match its own check.
  const halves = [
    ['TO', 'DO'],
    ['FIX', 'ME'],
    ['unimplemented', '!'],
    ['to', 'do!'],
    ['#\\[ig', 'nore'],
    ['\\.on', 'ly\\('],
  ]
  const marks = new RegExp(halves.map(half => half.join('')).join('|'))
  for (const file of present) t.notRegex(text(file), marks, file)
})

/**
 * Mentions of the CPU device in caches and attention. The stand-in for a device without kernels has its memory on the CPU too, so no test notices a tensor
 * made on the CPU instead of the device. Therefore, tensors that join a device's memory are made on that device, by `upload` or `zeroed`.
 */
const ON_THE_CPU: Readonly<Record<string, number>> = {
  'attention/call/mod.rs': 1, // a call without tensors
  'attention/exact.rs': 2, // rows read back from the device
  'attention/portable.rs': 1, // the caller's rows, before they are uploaded
  'base/dtype.rs': 1, // zeroed memory, with a fallible allocation
  'base/memory.rs': 1, // the host memory budget
  'contiguous/options.rs': 3, // defaults
  'kernels/quantise/portable.rs': 8, // codes and values in host memory
  'paged/options.rs': 1,
  'sequences/options.rs': 1,
}

test('tensors that join the memory of a device are made on it', t => {
  const folder = 'crates/kvtide-tensor/src/'
  const found: Record<string, number> = {}
  for (const file of present.filter(
    name => name.startsWith(folder) && name.endsWith('.rs') && !name.startsWith(`${folder}device/`),
  )) {
    const [code = ''] = text(file).split('#[cfg(test)]')
    const count =
      code
        .split('\n')
        .filter(line => !line.trim().startsWith('//'))
        .join('\n')
        .split('Device::Cpu').length - 1
    if (count > 0 && !file.endsWith('launched/agreement.rs')) found[file.slice(folder.length)] = count
  }
  t.deepEqual(found, ON_THE_CPU)
})

test('every exported call of the addon catches panics', t => {
  const exported = /#\[napi([^\n]*)\]\n(?:\s*(?:#\[|\/\/)[^\n]*\n)*\s*pub fn (\w+)([^{]*)/g
  const calls = present
    .filter(file => /^src\/.*\.rs$/.test(file))
    .flatMap(file => [...text(file).matchAll(exported)].map(found => ({ file, found })))
  t.true(calls.length > 300)
  for (const {
    file,
    found: [, options, name, signature],
  } of calls) {
    t.true(/\benv: /.test(signature as string) || /catch_unwind/.test(options as string), `${file}: ${name}`)
  }
})
