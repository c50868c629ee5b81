// What the link stubs are made from: the declarations of cudarc.
import test from 'ava'

import { functions, libraries, statusCode } from '../../scripts/cuda/stubs.mjs'

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
  const found = Object.fromEntries((functions(source.join('\n')) as { name: string; returns: string }[]).map(({ name, returns }) => [name, returns]))
  t.deepEqual(found, {
    cuGet: 'pointer',
    cuInit: 'status',
    cublasGetStatusName: 'text',
    cublasLtGetVersion: 'number',
    cublasXerbla: 'number',
    curandCount: 'number',
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

const cublasNames = (major: number): string[] | undefined => (libraries(major) as { name: string; sonames: string[] }[]).find(({ name }) => name === 'cublas')?.sonames

test('the version that is built for is asked for first', t => {
  t.deepEqual(cublasNames(13), ['libcublas.so.13', 'libcublas.so.12'])
  t.deepEqual(cublasNames(12), ['libcublas.so.12', 'libcublas.so.13'])
})
