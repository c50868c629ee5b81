// Link stubs: an archive for each of NVIDIA's libraries, with which the addon links where none is installed and loads
// where none is found.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { functions, statusCode } from './declarations.mjs'
import { libraries } from './libraries.mjs'
import { assembly, opener } from './trampolines.mjs'

/** Compiles the stub of one library into `folder`, as `lib<name>.a`. */
export function compileStub(folder, { name, functions: declared, sonames, absentCode }) {
  mkdirSync(folder, { recursive: true })
  const gcc = (...args) => execFileSync('gcc', args, { cwd: folder, stdio: ['ignore', 'ignore', 'inherit'] })
  const archive = `lib${name}.a`
  const sources = { [`${name}_entries.S`]: assembly(name, declared), [`${name}_open.c`]: opener(name, declared, sonames, absentCode) }
  const objects = []
  for (const [source, text] of Object.entries(sources)) {
    writeFileSync(join(folder, source), text)
    const object = source.replace(/\.\w$/, '.o')
    gcc('-c', '-O2', '-fPIC', '-Wall', '-Werror', '-o', object, source)
    objects.push(object)
  }
  rmSync(join(folder, archive), { force: true })
  execFileSync('ar', ['rcsD', archive, ...objects], { cwd: folder })
  for (const scrap of [...Object.keys(sources), ...objects]) rmSync(join(folder, scrap))
  return join(folder, archive)
}

/** What every stub is made of, read from the sources of cudarc. */
export function describeStubs(cudarc, cudaMajor) {
  return libraries(cudaMajor).map(({ name, module, sonames, absent }) => {
    const source = readFileSync(join(cudarc, 'src', module, 'sys', 'mod.rs'), 'utf8')
    return { name, sonames, functions: functions(source), absentCode: statusCode(source, absent) }
  })
}
