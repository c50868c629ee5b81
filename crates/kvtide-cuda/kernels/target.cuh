// What kernels are written for: a GPU, or the CPU that stands in for one in tests (emulate.h).
//
//   KERNEL(name, Args, n) { }     a kernel of one argument, a struct by value that its launcher fills; at most n threads a block
//   KERNEL_OF(name, Args, n, m)   the same, of which a multiprocessor is to have room for m blocks
//   SHARED(bytes)                 the block's dynamic shared memory
//   warp_*                        what the 32 threads of a warp do together; all of them, or none
//
// The same text compiles for both. Whatever only a GPU has stands behind a function of this file, with its stand-in beside it in
// emulate.h, so that everything but the instruction itself is tested on the CPU: indices, bounds, order, barriers.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
// What is rare, and would only make the rest longer.
#define APART static __device__ __noinline__

// An argument of the grid's: it is read where the launch has put it, also through a pointer, and never copied for a thread.
#define KERNEL(name, Args, most) KERNEL_BOUND(name, Args, __launch_bounds__(most))
#define KERNEL_OF(name, Args, most, blocks) KERNEL_BOUND(name, Args, __launch_bounds__(most, blocks))
#define KERNEL_BOUND(name, Args, bounds)                                       \
  static DEVICE void name##_body(const Args &args);                            \
  extern "C" __global__ void bounds name(const __grid_constant__ Args args) { \
    name##_body(args);                                                         \
  }                                                                            \
  static DEVICE void name##_body(const Args &args)

extern __shared__ __align__(16) unsigned char dynamic_shared[];
#define SHARED() (dynamic_shared)

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }

template <typename T> DEVICE T warp_from(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <typename T> DEVICE T warp_across(T value, int distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}
DEVICE bool warp_any(bool value) { return __any_sync(0xffffffffu, value); }
// How many lanes say so.
DEVICE uint32_t warp_votes(bool value) { return uint32_t(__popc(__ballot_sync(0xffffffffu, value))); }

// Copies 16 bytes to shared memory while the thread goes on; `valid` of them, zeros behind.
DEVICE void copy_ahead(void *shared, const void *global, int valid = 16) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid) : "memory");
}
// The same with four bytes.
DEVICE void copy_word_ahead(void *shared, const void *global) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}
// Asks for the line at an address, and goes on.
DEVICE void ask_ahead(const void *global) { asm volatile("prefetch.global.L1 [%0];" ::"l"(global)); }
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Left` of the committed groups are under way.
template <int Left> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory"); }

#else
#include "emulate.h"
#endif

// The sum, and the largest, of all lanes, in each of them.
DEVICE float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += warp_across(value, distance);
  return value;
}
DEVICE float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, warp_across(value, distance));
  return value;
}

// Numbers that a launcher hands along: in the arguments themselves while they are few, else in device memory.
struct List {
  uint64_t far;
  uint64_t near[256];

  template <typename T> DEVICE const T *items() const {
    return reinterpret_cast<const T *>(far ? far : reinterpret_cast<uint64_t>(&near[0]));
  }
};

// The thread's number in its grid's first dimension, and how many there are.
DEVICE uint64_t grid_thread() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE uint64_t grid_threads() { return uint64_t(gridDim.x) * blockDim.x; }

// How to divide by a number that is known before the launch, for dividends below 2^31: exact, in a multiplication.
struct Divisor {
  uint32_t by;
  uint32_t factor;
  uint32_t shift;

  DEVICE uint32_t divide(uint32_t value) const { return uint32_t((uint64_t(value) * factor) >> shift); }
  // The quotient; `value` becomes the rest.
  DEVICE uint32_t split(uint32_t &value) const {
    const uint32_t quotient = divide(value);
    value -= quotient * by;
    return quotient;
  }
};

// A kernel for each unit in which memory is moved: name_16, name_8, name_4, name_2, name_1 run `body<Unit>(args)`.
#define KERNELS_BY_UNIT(name, Args, most, body)                                \
  KERNEL(name##_16, Args, most) { body<uint4>(args); }                         \
  KERNEL(name##_8, Args, most) { body<uint2>(args); }                          \
  KERNEL(name##_4, Args, most) { body<uint32_t>(args); }                       \
  KERNEL(name##_2, Args, most) { body<uint16_t>(args); }                       \
  KERNEL(name##_1, Args, most) { body<uint8_t>(args); }
