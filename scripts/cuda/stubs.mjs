// Link stubs: an archive for each of NVIDIA's libraries, with which the addon links where none is installed and loads
// where none is found.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Refusal } from '../refusal.mjs'
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

/**
 * The libraries, for a build with this major version of CUDA.
 *
 * `module` is where cudarc declares their functions, `sonames` the names tried at run time, in order, and `absent` the name
 * that cudarc's declarations give the answer of a call without the library.
 */
export function libraries(cudaMajor) {
  const versions = [...new Set([cudaMajor, 13, 12])]
  const versioned = name => versions.map(major => `lib${name}.so.${major}`)
  return [
    { name: 'cuda', module: 'driver', sonames: ['libcuda.so.1'], absent: 'CUDA_ERROR_STUB_LIBRARY' },
    { name: 'cublas', module: 'cublas', sonames: versioned('cublas'), absent: 'CUBLAS_STATUS_NOT_INITIALIZED' },
    { name: 'cublasLt', module: 'cublaslt', sonames: versioned('cublasLt'), absent: 'CUBLAS_STATUS_NOT_INITIALIZED' },
    { name: 'curand', module: 'curand', sonames: ['libcurand.so.10'], absent: 'CURAND_STATUS_INITIALIZATION_FAILED' },
    { name: 'nvrtc', module: 'nvrtc', sonames: versioned('nvrtc'), absent: 'NVRTC_ERROR_INTERNAL_ERROR' },
  ]
}

const DECLARED = /extern "C" \{\s*(?:#\[[^\]]*\]\s*)*(?:pub )?fn (\w+)\s*\([^{}]*?\)(?:\s*->\s*([^;{}()]+?))?\s*;/g

/**
 * The functions of a file of cudarc's `sys` modules, by name and each once, and what kind of thing each returns:
 *
 *   extern "C" { fn cuInit(Flags: c_uint) -> CUresult; }   ->   { name: 'cuInit', returns: 'status' }
 */
export function functions(source) {
  const found = new Map()
  for (const [, name, type] of source.matchAll(DECLARED)) found.set(name, { name, returns: returned(type) })
  if (found.size === 0) throw new Refusal('cudarc declares no functions in the form that the link stubs are made from: its version is not one that this build knows')
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** `text` for a string of C, `zero` for nothing, a count or another pointer, `status` for one of the library's codes. */
function returned(type) {
  if (/^\*(const|mut) .*c_char$/.test(type)) return 'text'
  return type === undefined || /^(\*.*|usize|u\d+|i\d+|.*::c_(int|uint|long|ulong|longlong|ulonglong))$/.test(type) ? 'zero' : 'status'
}

export function statusCode(source, name) {
  const value = new RegExp(`^\\s*${name} = (\\d+),`, 'm').exec(source)?.[1]
  if (value === undefined) throw new Refusal(`cudarc does not declare ${name}: its version is not one that this build knows`)
  return Number(value)
}
