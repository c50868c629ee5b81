// The compilation target of kernels: a GPU, or the CPU that stands in for one in tests (emulate.h).
//
// KERNEL(name, Args, n) { }     a kernel of one argument, a struct by value that its launcher fills; at most n threads a block
// KERNEL_OF(name, Args, n, m)   the same, with registers limited so that m blocks fit on a multiprocessor
// SHARED(bytes)                 the block's dynamic shared memory
// warp_*                        joint operations of the 32 threads of a warp; all of them must call it
//
// The same source compiles for both. GPU-only features are functions in this file, each with its emulation in emulate.h, so
// that everything except the instruction itself is tested on the CPU: indices, bounds, order, barriers.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
// For rare code, which is kept out of line.
#define APART static __device__ __noinline__

// The argument of a grid: read in place, where the launch has put it, also through a pointer, and never copied per thread.
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
// The number of lanes with a true value.
DEVICE uint32_t warp_votes(bool value) { return uint32_t(__popc(__ballot_sync(0xffffffffu, value))); }

// Starts a copy of 16 bytes to shared memory: `valid` of them, followed by zeros.
DEVICE void copy_ahead(void *shared, const void *global, int valid = 16) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid) : "memory");
}
// Like `copy_ahead`, with all 16 bytes, or 16 zeros.
DEVICE void copy_whole_ahead(void *shared, const void *global, bool is_there) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::"r"(to), "l"(global),
               "r"(uint32_t(is_there))
               : "memory");
}
// Like `copy_ahead`, with four bytes.
DEVICE void copy_word_ahead(void *shared, const void *global) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}
// Prefetches the cache line at an address.
DEVICE void ask_ahead(const void *global) { asm volatile("prefetch.global.L1 [%0];" ::"l"(global)); }
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Left` of the committed groups are in flight.
template <int Left> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory"); }

#else
#include "emulate.h"
#endif

// The sum and the maximum over all lanes, returned in each lane.
DEVICE float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += warp_across(value, distance);
  return value;
}
DEVICE float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, warp_across(value, distance));
  return value;
}

// Numbers that a launcher passes along: inside the arguments if they are few, else in device memory.
struct List {
  uint64_t far;
  uint64_t near[256];

  template <typename T> DEVICE const T *items() const {
    return reinterpret_cast<const T *>(far ? far : reinterpret_cast<uint64_t>(&near[0]));
  }
};

// The thread's index in the first dimension of its grid, and the number of threads there.
DEVICE uint64_t grid_thread() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE uint64_t grid_threads() { return uint64_t(gridDim.x) * blockDim.x; }

// Division by a number that is known before the launch, for dividends below 2^31: exact, with one multiplication.
struct Divisor {
  uint32_t by;
  uint32_t factor;
  uint32_t shift;

  DEVICE uint32_t divide(uint32_t value) const { return uint32_t((uint64_t(value) * factor) >> shift); }
  // Returns the quotient; `value` becomes the remainder.
  DEVICE uint32_t split(uint32_t &value) const {
    const uint32_t quotient = divide(value);
    value -= quotient * by;
    return quotient;
  }
};

// A kernel for each copy unit: name_16, name_8, name_4, name_2, name_1 run `body<Unit>(args)`.
#define KERNELS_BY_UNIT(name, Args, most, body)                                \
  KERNEL(name##_16, Args, most) { body<uint4>(args); }                         \
  KERNEL(name##_8, Args, most) { body<uint2>(args); }                          \
  KERNEL(name##_4, Args, most) { body<uint32_t>(args); }                       \
  KERNEL(name##_2, Args, most) { body<uint16_t>(args); }                       \
  KERNEL(name##_1, Args, most) { body<uint8_t>(args); }
