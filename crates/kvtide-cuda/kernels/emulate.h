// A CPU that stands in for a GPU: runs the threads of a grid, block by block, each thread on a stack of its own.
//
//   launch -> block -> thread 0 | thread 1 | ...     until each has ended or waits
//                      then those whose barrier is complete go on
//
// Threads run one at a time, and which goes first is drawn from the launch's seed: what is read before another thread has
// written it, for want of a barrier, differs from seed to seed. A block whose threads wait for each other for ever ends the
// launch with an error. What it cannot show: two threads at the very same time, and what instructions cost.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define DEVICE inline
#define __restrict__ __restrict

struct Index {
  uint32_t x, y, z;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

constexpr uint32_t LANES = 32;
constexpr size_t STACK_BYTES = 128 << 10;

// What a launch is made with, as the Rust side lays it out.
struct Grid {
  uint32_t blocks[3];
  uint32_t threads[3];
  uint32_t shared_bytes;
  uint32_t seed;
};

enum class State { Ready, AtBlock, AtWarp, Ended };

struct Fiber {
  ucontext_t context;
  State state;
};

// A copy that a thread has asked for and not waited for yet.
struct Ahead {
  void *to;
  const void *from;
  int valid;
  uint32_t group;
};

// The copies of a thread, and how many groups it has committed.
struct Copies {
  std::vector<Ahead> under_way;
  uint32_t groups = 0;
};

struct Block {
  ucontext_t home;
  Fiber *fibers = nullptr;
  unsigned char *stacks = nullptr;
  uint32_t room = 0;
  uint32_t count = 0;
  uint32_t current = 0;
  unsigned char *shared = nullptr;
  uint32_t shared_bytes = 0;
  // What the lanes of each warp show each other.
  unsigned char (*shown)[LANES][16] = nullptr;
  void (*body)(const void *) = nullptr;
  const void *args = nullptr;
  uint64_t random = 0;
  std::vector<Copies> copies;

  ~Block() {
    free(fibers);
    free(stacks);
    free(shared);
    free(shown);
  }
};

static thread_local Block block;

inline void wait(State at) {
  block.fibers[block.current].state = at;
  swapcontext(&block.fibers[block.current].context, &block.home);
}

inline void enter() {
  block.body(block.args);
  block.fibers[block.current].state = State::Ended;
  swapcontext(&block.fibers[block.current].context, &block.home);
}

// Memory for so many threads; false where there is none.
inline bool reserve(uint32_t threads, uint32_t shared_bytes) {
  if (threads > block.room) {
    free(block.fibers), free(block.stacks), free(block.shown);
    block.fibers = static_cast<Fiber *>(malloc(threads * sizeof(Fiber)));
    block.stacks = static_cast<unsigned char *>(malloc(threads * STACK_BYTES));
    block.shown = static_cast<unsigned char(*)[LANES][16]>(malloc((threads + LANES - 1) / LANES * sizeof(*block.shown)));
    block.room = block.fibers && block.stacks && block.shown ? threads : 0;
  }
  if (shared_bytes > block.shared_bytes) {
    free(block.shared);
    block.shared = static_cast<unsigned char *>(aligned_alloc(128, (shared_bytes + 127) / 128 * 128));
    block.shared_bytes = block.shared ? shared_bytes : 0;
  }
  if (block.copies.size() < threads) block.copies.resize(threads);
  return threads <= block.room && shared_bytes <= block.shared_bytes;
}

inline void resume(uint32_t thread) {
  block.current = thread;
  const uint32_t plane = blockDim.x * blockDim.y;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / plane};
  swapcontext(&block.home, &block.fibers[thread].context);
}

// Lets those go on who wait at a barrier that all have reached. False where nobody may.
inline bool release() {
  bool released = false;
  for (uint32_t first = 0; first < block.count; first += LANES) {
    const uint32_t end = first + LANES < block.count ? first + LANES : block.count;
    bool together = true, waiting = false;
    for (uint32_t lane = first; lane < end; lane++) {
      const State state = block.fibers[lane].state;
      waiting |= state == State::AtWarp;
      together &= state == State::AtWarp || state == State::Ended;
    }
    for (uint32_t lane = first; waiting && together && lane < end; lane++) {
      if (block.fibers[lane].state == State::AtWarp) block.fibers[lane].state = State::Ready;
    }
    released |= waiting && together;
  }
  if (released) return true;
  for (uint32_t thread = 0; thread < block.count; thread++) {
    const State state = block.fibers[thread].state;
    if (state != State::AtBlock && state != State::Ended) return false;
  }
  for (uint32_t thread = 0; thread < block.count; thread++) {
    if (block.fibers[thread].state == State::AtBlock) block.fibers[thread].state = State::Ready, released = true;
  }
  return released;
}

inline uint64_t draw() {
  block.random = block.random * 6364136223846793005u + 1442695040888963407u;
  return block.random >> 33;
}

inline bool run_block() {
  for (uint32_t thread = 0; thread < block.count; thread++) {
    Fiber &fiber = block.fibers[thread];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = block.stacks + thread * STACK_BYTES;
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    fiber.context.uc_link = nullptr;
    fiber.state = State::Ready;
    block.copies[thread] = Copies();
    makecontext(&fiber.context, enter, 0);
  }
  // Shared memory holds what was there before.
  memset(block.shared, 0xff, block.shared_bytes);
  for (;;) {
    const uint32_t first = uint32_t(draw() % block.count);
    const bool backwards = draw() & 1;
    for (uint32_t step = 0; step < block.count; step++) {
      const uint32_t thread = backwards ? (first + block.count - step) % block.count : (first + step) % block.count;
      if (block.fibers[thread].state == State::Ready) resume(thread);
    }
    bool ended = true;
    for (uint32_t thread = 0; thread < block.count; thread++) ended &= block.fibers[thread].state == State::Ended;
    if (ended) return true;
    if (!release()) return false;
  }
}

// Runs a grid. 0: done; 1: no memory; 2: threads wait for each other; 3 (of the kernel): more threads than it takes.
inline int run(const Grid &grid, void (*body)(const void *), const void *args) {
  blockDim = {grid.threads[0], grid.threads[1], grid.threads[2]};
  gridDim = {grid.blocks[0], grid.blocks[1], grid.blocks[2]};
  block.count = grid.threads[0] * grid.threads[1] * grid.threads[2];
  block.body = body, block.args = args, block.random = grid.seed;
  if (!reserve(block.count, grid.shared_bytes)) return 1;
  for (uint32_t z = 0; z < gridDim.z; z++) {
    for (uint32_t y = 0; y < gridDim.y; y++) {
      for (uint32_t x = 0; x < gridDim.x; x++) {
        blockIdx = {x, y, z};
        if (!run_block()) return 2;
      }
    }
  }
  return 0;
}

// Shows a value to the warp, and answers the one of another lane.
template <typename T> T exchange(T value, uint32_t lane) {
  static_assert(sizeof(T) <= 16, "what a lane can show");
  auto &shown = block.shown[block.current / LANES];
  memcpy(shown[block.current % LANES], &value, sizeof(T));
  wait(State::AtWarp);
  memcpy(&value, shown[lane % LANES], sizeof(T));
  wait(State::AtWarp);
  return value;
}

} // namespace emulate

#define KERNEL(name, Args, most)                                               \
  static void name##_body(const Args &args);                                   \
  extern "C" int name(const emulate::Grid *grid, const void *args) {           \
    if (grid->threads[0] * grid->threads[1] * grid->threads[2] > (most)) return 3; \
    return emulate::run(                                                       \
        *grid, [](const void *of) { name##_body(*static_cast<const Args *>(of)); }, args); \
  }                                                                            \
  extern "C" uint64_t name##_args() { return sizeof(Args); }                   \
  static void name##_body(const Args &args)

#define SHARED() (emulate::block.shared)

inline void block_barrier() { emulate::wait(emulate::State::AtBlock); }
inline void warp_barrier() { emulate::wait(emulate::State::AtWarp); }
template <typename T> T warp_from(T value, int lane) { return emulate::exchange(value, uint32_t(lane)); }
template <typename T> T warp_across(T value, int distance) {
  return emulate::exchange(value, emulate::block.current % emulate::LANES ^ uint32_t(distance));
}

// Copies run no earlier than their thread waits for them.
inline void copy_ahead(void *shared, const void *global, int valid = 16) {
  auto &copies = emulate::block.copies[emulate::block.current];
  copies.under_way.push_back({shared, global, valid, copies.groups});
}
inline void copies_commit() { emulate::block.copies[emulate::block.current].groups++; }
template <int Left> void copies_wait() {
  auto &copies = emulate::block.copies[emulate::block.current];
  size_t kept = 0;
  for (const emulate::Ahead &copy : copies.under_way) {
    if (copy.group + Left < copies.groups) {
      memset(copy.to, 0, 16);
      memcpy(copy.to, copy.from, size_t(copy.valid));
    } else {
      copies.under_way[kept++] = copy;
    }
  }
  copies.under_way.resize(kept);
}

// The vector types of CUDA that the kernels use.
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
