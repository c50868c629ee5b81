// Makes link stubs: an archive for each of NVIDIA's libraries, so that the addon links on machines without the library, and loads
// on machines without it. Every function is a jump through a slot, and the first call fills the slot.
//
//   cuInit:   jmp *slot[0]            slot[0] = first_0, until the first call
//   first_0:  r11 = 0; jmp enter
//   enter:    keep every argument, rax = open(r11), argument registers back, jmp rax
//   open:     dlopen once, slot = the library's function, or a function that reports the missing library
//
// Arguments on the stack are where the library expects them, because every step is a jump. All names are hidden: other
// libraries of the process neither see nor replace them. x86-64, System V calling convention.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Refusal } from '../refusal.mjs'

/** Compiles the stub of one library into `folder`, as `lib<name>.a`. */
export function compileStub(folder, { name, functions: declared, sonames, absentCode }) {
  mkdirSync(folder, { recursive: true })
  const archive = `lib${name}.a`
  const [source, object] = [`${name}_stub.c`, `${name}_stub.o`]
  writeFileSync(
    join(folder, source),
    `${opener(name, declared, sonames, absentCode)}\n__asm__(${JSON.stringify(assembly(name, declared))});\n`,
  )
  execFileSync('gcc', ['-c', '-O2', '-fPIC', '-Wall', '-Werror', '-o', object, source], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  rmSync(join(folder, archive), { force: true })
  execFileSync('ar', ['rcsD', archive, object], { cwd: folder })
  for (const scrap of [source, object]) rmSync(join(folder, scrap))
  return join(folder, archive)
}

/** Reads the contents of every stub from the sources of cudarc. */
export function describeStubs(cudarc, cudaMajor) {
  return libraries(cudaMajor).map(({ name, module, sonames, absent }) => {
    const source = readFileSync(join(cudarc, 'src', module, 'sys', 'mod.rs'), 'utf8')
    return { name, sonames, functions: functions(source), absentCode: statusCode(source, absent) }
  })
}

/**
 * The libraries, for a build with this major version of CUDA.
 *
 * `module` is the module of cudarc that declares their functions, `sonames` the names tried at run time, in order, and `absent` cudarc's
 * name for the status that a call returns without the library.
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
 * Returns the functions of a file of cudarc's `sys` modules, by name and each once, with the kind of their results:
 *
 *   extern "C" { fn cuInit(Flags: c_uint) -> CUresult; }   ->   { name: 'cuInit', returns: 'status' }
 */
export function functions(source) {
  const found = new Map()
  for (const [, name, type] of source.matchAll(DECLARED)) found.set(name, { name, returns: returned(type) })
  if (found.size === 0)
    throw new Refusal(
      'cudarc declares no functions in the form that the link stubs are made from: its version is not one that this build knows',
    )
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** Returns the kind of a result: `text` for a C string, `zero` for void, a count or another pointer, `status` for a code of the library. */
function returned(type) {
  if (/^\*(const|mut) .*c_char$/.test(type)) return 'text'
  return type === undefined || /^(\*.*|usize|u\d+|i\d+|.*::c_(int|uint|long|ulong|longlong|ulonglong))$/.test(type)
    ? 'zero'
    : 'status'
}

export function statusCode(source, name) {
  const value = new RegExp(`^\\s*${name} = (\\d+),`, 'm').exec(source)?.[1]
  if (value === undefined)
    throw new Refusal(`cudarc does not declare ${name}: its version is not one that this build knows`)
  return Number(value)
}

/** Returns the assembly of a stub: slots, and one entry for each function. */
function assembly(library, declared) {
  const slots = declared.map((_, index) => `  .quad .Lfirst_${index}`)
  const entries = declared.map(
    ({ name }, index) => `  .globl ${name}
  .hidden ${name}
  .type ${name}, @function
${name}:
  jmp *${library}_slots+${8 * index}(%rip)
.Lfirst_${index}:
  movl $${index}, %r11d
  jmp .Lenter
  .size ${name}, .-${name}`,
  )
  return `  .section .data.rel,"aw",@progbits
  .balign 8
  .hidden ${library}_slots
  .globl ${library}_slots
${library}_slots:
${slots.join('\n')}
  .text
${enter(library)}
${entries.join('\n')}
  .text
`
}

/** Returns assembly that calls `open` and preserves every register that may hold an argument, including rax, in which variadic calls count vectors. */
function enter(library) {
  const kept = ['rdi', 'rsi', 'rdx', 'rcx', 'r8', 'r9', 'rax', 'r10']
  const vectors = [0, 1, 2, 3, 4, 5, 6, 7]
  return `.Lenter:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
${kept.map(register => `  pushq %${register}`).join('\n')}
  subq $${16 * vectors.length}, %rsp
  andq $-16, %rsp
${vectors.map(index => `  movups %xmm${index}, ${16 * index}(%rsp)`).join('\n')}
  movl %r11d, %edi
  call ${library}_open
  movq %rax, %r11
${vectors.map(index => `  movups ${16 * index}(%rsp), %xmm${index}`).join('\n')}
  leaq -${8 * kept.length}(%rbp), %rsp
${kept
  .toReversed()
  .map(register => `  popq %${register}`)
  .join('\n')}
  popq %rbp
  .cfi_def_cfa %rsp, 8
  jmp *%r11
  .cfi_endproc`
}

/** Returns the C code of a stub: it opens the library, and defines the results of declared functions that are missing. */
function opener(library, declared, sonames, absentCode) {
  const answers = declared.map(({ returns }) => `absent_${returns}`)
  return `#include <dlfcn.h>

#define HIDDEN __attribute__((visibility("hidden")))

static const char *const sonames[] = {${sonames.map(name => `"${name}"`).join(', ')}, 0};
static const char *const names[] = {
  ${declared.map(({ name }) => `"${name}"`).join(',\n  ')}
};

#define ANSWER __attribute__((unused)) static

ANSWER int absent_status(void) { return ${absentCode}; }
ANSWER unsigned long absent_zero(void) { return 0; }
ANSWER const char *absent_text(void) { return "${sonames[0]} not found"; }

static void *const absent[] = {
  ${answers.map(answer => `(void *)${answer}`).join(',\n  ')}
};

extern HIDDEN void *${library}_slots[];

/* Two threads may come here at once: the loader gives both the same library, and both write the same slot. */
static void *library(void) {
  static void *opened;
  static int tried;
  if (!__atomic_load_n(&tried, __ATOMIC_ACQUIRE)) {
    void *found = 0;
    for (int i = 0; sonames[i] && !found; i++) found = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
    __atomic_store_n(&opened, found, __ATOMIC_RELAXED);
    __atomic_store_n(&tried, 1, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&opened, __ATOMIC_RELAXED);
}

HIDDEN void *${library}_open(unsigned index) {
  void *handle = library();
  void *function = handle ? dlsym(handle, names[index]) : 0;
  if (!function) function = absent[index];
  __atomic_store_n(&${library}_slots[index], function, __ATOMIC_RELEASE);
  return function;
}
`
}
