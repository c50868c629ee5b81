// Link stubs, made for a small library, linked into another one, and called with the library there and gone; and the declarations of
// cudarc that they are made from.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { compiling, folder } from '../support/packaging/scripts.js'
import { compileStub, functions, libraries, statusCode } from '../../scripts/cuda/stubs.mjs'
import { cudaHome } from '../../scripts/cuda/environment.mjs'

const STUB = {
  name: 'tide',
  functions: [
    { name: 'tide_words', returns: 'status' },
    { name: 'tide_floats', returns: 'status' },
    { name: 'tide_dots', returns: 'status' },
    { name: 'tide_newer', returns: 'status' },
    { name: 'tide_name', returns: 'text' },
    { name: 'tide_count', returns: 'zero' },
    { name: 'tide_memory', returns: 'zero' },
  ],
  sonames: ['libtide.so.2', 'libtide.so.1'],
  absentCode: 34,
}

const DECLARED = `
#include <stdarg.h>
int tide_words(long a, int b, void *c, long d, unsigned char e, long f, long g, int h, long i, short j, long k, long l);
int tide_floats(double a, float b, long c, double d, float e, double f, double g, float h, double i, double j, float k, int l);
int tide_dots(int count, ...);
int tide_newer(void);
const char *tide_name(int);
unsigned long tide_count(void);
void *tide_memory(void);
`

/** The library itself: each function answers 1 when every argument arrived as it was. `tide_newer` is not in it. */
const LIBRARY = `${DECLARED}
int tide_words(long a, int b, void *c, long d, unsigned char e, long f, long g, int h, long i, short j, long k, long l) {
  return a == -1 && b == 2 && c == (void *)3 && d == 4 && e == 5 && f == 6 && g == 7 && h == -8 && i == 9 && j == 10 && k == 1L << 40 && l == 12;
}
int tide_floats(double a, float b, long c, double d, float e, double f, double g, float h, double i, double j, float k, int l) {
  return a == 1.5 && b == 2.5f && c == 3 && d == 4.5 && e == 5.5f && f == 6.5 && g == 7.5 && h == 8.5f && i == 9.5 && j == 10.5 && k == 11.5f && l == 12;
}
int tide_dots(int count, ...) {
  va_list given;
  va_start(given, count);
  double sum = 0;
  for (int i = 0; i < count; i++) sum += va_arg(given, double);
  va_end(given);
  return sum == 45;
}
const char *tide_name(int n) { return n == 7 ? "tide" : "?"; }
unsigned long tide_count(void) { return 1UL << 40; }
void *tide_memory(void) { return (void *)8; }
`

/** A program that links with the stub, as the addon does: the first calls come from eight threads at once. */
const USER = `${DECLARED}
#include <pthread.h>
#include <stdio.h>
static void *ask(void *answer) {
  *(int *)answer = tide_words(-1, 2, (void *)3, 4, 5, 6, 7, -8, 9, 10, 1L << 40, 12);
  return 0;
}
void use(void) {
  pthread_t threads[8];
  int answers[8], all = 0;
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, ask, &answers[i]);
  for (int i = 0; i < 8; i++) { pthread_join(threads[i], 0); all += answers[i]; }
  printf("words %d\\n", all);
  for (int call = 0; call < 2; call++) {
    printf("floats %d\\n", tide_floats(1.5, 2.5f, 3, 4.5, 5.5f, 6.5, 7.5, 8.5f, 9.5, 10.5, 11.5f, 12));
    printf("dots %d\\n", tide_dots(9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0));
  }
  printf("newer %d\\nname %s\\ncount %lu\\nmemory %p\\n", tide_newer(), tide_name(7), tide_count(), tide_memory());
}
`

const MAIN = `
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **given) {
  void *user = dlopen(given[1], RTLD_NOW);
  if (!user) { puts(dlerror()); return 1; }
  ((void (*)(void))dlsym(user, "use"))();
  return 0;
}
`

/** Compiles everything into `at`, and answers a call of it that finds the library or not. */
function compile(at: string): (where?: string) => string[] {
  const gcc = (...args: string[]): void => void execFileSync('gcc', ['-O2', '-Wall', ...args], { cwd: at })
  for (const [file, text] of Object.entries({ 'library.c': LIBRARY, 'user.c': USER, 'main.c': MAIN }))
    writeFileSync(join(at, file), text)
  compileStub(at, STUB)
  mkdirSync(join(at, 'there'))
  gcc('-shared', '-fPIC', '-Wl,-soname,libtide.so.1', '-o', 'there/libtide.so.1', 'library.c')
  gcc('-shared', '-fPIC', '-o', 'libuser.so', 'user.c', '-L.', '-ltide', '-lpthread', '-ldl')
  gcc('-o', 'main', 'main.c', '-ldl')
  return where => {
    const env = { ...process.env, LD_LIBRARY_PATH: where === undefined ? '' : join(at, where) }
    return execFileSync(join(at, 'main'), [join(at, 'libuser.so')], { env, encoding: 'utf8' })
      .trimEnd()
      .split('\n')
  }
}

compiling('with the library there every argument arrives, whichever thread is first', t => {
  const call = compile(folder(t))
  const twice = ['floats 1', 'dots 1', 'floats 1', 'dots 1']
  t.deepEqual(call('there'), ['words 8', ...twice, 'newer 34', 'name tide', `count ${2 ** 40}`, 'memory 0x8'])
})

compiling('without the library every call answers, each in its own kind', t => {
  const call = compile(folder(t))
  const twice = ['floats 34', 'dots 34', 'floats 34', 'dots 34']
  t.deepEqual(call(), [
    `words ${8 * 34}`,
    ...twice,
    'newer 34',
    'name libtide.so.2 not found',
    'count 0',
    'memory (nil)',
  ])
})

compiling('a library that links with stubs neither needs the real one nor shows their names', t => {
  const at = folder(t)
  compile(at)
  const dynamic = execFileSync('readelf', ['--wide', '--dynamic', '--dyn-syms', join(at, 'libuser.so')], {
    encoding: 'utf8',
  })
  t.regex(dynamic, /\buse\b/)
  t.notRegex(dynamic, /tide/)
})

function toolkit(at: string): string {
  for (const part of ['bin', 'include', 'nvvm', 'lib64']) mkdirSync(join(at, 'cuda', part), { recursive: true })
  writeFileSync(join(at, 'cuda/lib64/libcudart_static.a'), '!<arch>\n')
  return join(at, 'cuda')
}

compiling('the home of a build has stubs for libraries, and is made once', t => {
  const at = folder(t)
  const tools = { home: toolkit(at), version: [13, 0] as const }
  const home = cudaHome(at, tools, [STUB])
  t.true(['bin', 'include', 'nvvm', 'lib/libtide.a', 'lib/libcudart.a'].every(part => existsSync(join(home, part))))
  rmSync(join(home, 'lib/libtide.a'))
  t.is(cudaHome(at, tools, [STUB]), home)
  t.false(existsSync(join(home, 'lib/libtide.a')))
  t.not(cudaHome(at, tools, [{ ...STUB, absentCode: 35 }]), home)
})

compiling('a home that was left half-made is made again', t => {
  const at = folder(t)
  const tools = { home: toolkit(at), version: [13, 0] as const }
  rmSync(join(tools.home, 'lib64/libcudart_static.a'))
  t.throws(() => cudaHome(at, tools, [STUB]), { message: /no libcudart_static\.a: looked for / })
  toolkit(at)
  t.true(existsSync(join(cudaHome(at, tools, [STUB]), 'lib/libcudart.a')))
})

test('libraries that the addon looks for before it opens a GPU have stubs', t => {
  const source = readFileSync(new URL('../../crates/kvtide-tensor/src/device/cuda/driver.rs', import.meta.url), 'utf8')
  const stubbed = new Set((libraries(13) as { sonames: string[] }[]).flatMap(({ sonames }) => sonames))
  const looked = [...new Set(source.match(/lib\w+\.so\.\d+(?="[,\]])/g))]
  t.deepEqual(looked, ['libcuda.so.1', 'libcublas.so.13', 'libcublas.so.12', 'libcurand.so.10'])
  t.deepEqual(
    looked.filter(name => !stubbed.has(name)),
    [],
  )
})

/** A function as cudarc's sources have it: twice, of which one is for another way of loading. */
const declared = (signature: string): string => `
pub unsafe fn ${signature} {
    #[cfg(feature = "dynamic-loading")]
    {
        type _F = unsafe extern "C" fn(i32);
    }
    #[cfg(not(feature = "dynamic-loading"))]
    {
        extern "C" {
            fn ${signature};
        }
    }
}`

test('functions are found by name, with what they return', t => {
  const source = [
    'cuInit(Flags: ::core::ffi::c_uint) -> CUresult',
    'cublasGetStatusName(status: cublasStatus_t) -> *const ::core::ffi::c_char',
    'cublasLtGetVersion() -> usize',
    'cublasXerbla(name: *const ::core::ffi::c_char, info: ::core::ffi::c_int)',
    'cuGet(callback: ::core::option::Option<unsafe extern "C" fn(a: i32) -> i32>) -> *mut ::core::ffi::c_void',
    'curandCount() -> ::core::ffi::c_int',
  ].map(declared)
  const found = Object.fromEntries(
    (functions(source.join('\n')) as { name: string; returns: string }[]).map(({ name, returns }) => [name, returns]),
  )
  t.deepEqual(found, {
    cuGet: 'zero',
    cuInit: 'status',
    cublasGetStatusName: 'text',
    cublasLtGetVersion: 'zero',
    cublasXerbla: 'zero',
    curandCount: 'zero',
  })
})

test('a function that is declared for several versions is one function', t => {
  const source = `extern "C" { fn cuA(a: i32) -> CUresult; }\nextern "C" {\n #[cfg(x)]\n pub fn cuA(a: i64) -> CUresult; }`
  t.deepEqual(functions(source), [{ name: 'cuA', returns: 'status' }])
})

test('sources in another form are refused', t => {
  t.throws(() => functions('pub type cuInit = fn();'), { message: /declares no functions/ })
})

test('a status code has a value', t => {
  const source = 'pub enum CUresult {\n    CUDA_SUCCESS = 0,\n    CUDA_ERROR_STUB_LIBRARY = 34,\n}'
  t.is(statusCode(source, 'CUDA_ERROR_STUB_LIBRARY'), 34)
  t.throws(() => statusCode(source, 'CUDA_ERROR'), { message: /does not declare CUDA_ERROR:/ })
})

const cublasNames = (major: number): string[] | undefined =>
  (libraries(major) as { name: string; sonames: string[] }[]).find(({ name }) => name === 'cublas')?.sonames

test('the version that is built for is asked for first', t => {
  t.deepEqual(cublasNames(13), ['libcublas.so.13', 'libcublas.so.12'])
  t.deepEqual(cublasNames(12), ['libcublas.so.12', 'libcublas.so.13'])
})
