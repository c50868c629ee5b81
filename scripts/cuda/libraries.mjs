// NVIDIA's libraries that candle asks the linker for, and what a call into one answers where it is not installed.

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
