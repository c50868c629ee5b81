// A CPU that stands in for a GPU: runs the threads of a grid, block by block, each thread on a stack of its own.
//
// launch -> block -> thread 0 | thread 1 | ...     until each has ended or waits
//                    then those whose barrier is complete continue
//
// Threads run one at a time, in an order drawn from the launch's seed: a read that precedes another thread's write because
// of a missing barrier gives results that differ from seed to seed. A block whose threads wait for each other for ever ends
// the launch with an error. The emulation cannot show effects of true concurrency, nor the cost of instructions.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <vector>

#define DEVICE inline
#define APART static
#define __restrict__ __restrict

struct Index {
  uint32_t x, y, z;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

constexpr uint32_t LANES = 32;
// The most bytes that a lane shows its warp at once.
constexpr size_t SHOWN_BYTES = 32;
constexpr size_t STACK_BYTES = 128 << 10;

// The grid of a launch, in the layout of the Rust side.
struct Grid {
  uint32_t blocks[3];
  uint32_t threads[3];
  uint32_t shared_bytes;
  uint32_t seed;
};

enum class State { Ready, AtBlock, AtWarp, Ended };

#ifdef __x86_64__
// A suspended thread: the stack with the state that a call preserves. A switch takes twenty instructions.
struct Context {
  void *stack = nullptr;
};
extern "C" void kvtide_emulate_switch(Context *from, const Context *to);
__asm__(".text\n"
        ".type kvtide_emulate_switch, @function\n"
        "kvtide_emulate_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq (%rsi), %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size kvtide_emulate_switch, . - kvtide_emulate_switch\n");
inline void change(Context &from, const Context &to) { kvtide_emulate_switch(&from, &to); }
inline void begin(Context &context, unsigned char *stack, size_t bytes, void (*start)()) {
  // Six registers, the return address, and one more word, so that the stack is aligned as after a call.
  void **top = reinterpret_cast<void **>(stack + bytes) - 8;
  memset(top, 0, 8 * sizeof(void *));
  top[6] = reinterpret_cast<void *>(start);
  context.stack = top;
}
#else
using Context = ucontext_t;
inline void change(Context &from, const Context &to) { swapcontext(&from, &to); }
inline void begin(Context &context, unsigned char *stack, size_t bytes, void (*start)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, start, 0);
}
#endif

struct Fiber {
  Context context;
  State state;
  // The one of the two places in which it shows its next value.
  uint32_t turn;
};

// A copy that a thread has started and not waited for yet.
struct Ahead {
  void *to;
  const void *from;
  int bytes;
  int valid;
  uint32_t group;
};

// The copies of a thread, and the number of groups that it has committed.
struct Copies {
  std::vector<Ahead> under_way;
  uint32_t groups = 0;
};

struct Block {
  Context home;
  Fiber *fibers = nullptr;
  unsigned char *stacks = nullptr;
  uint32_t room = 0;
  uint32_t count = 0;
  uint32_t current = 0;
  unsigned char *shared = nullptr;
  uint32_t shared_bytes = 0;
  // The values that the lanes of each warp show each other, in two places alternately. One wait is then enough, because no
  // lane shows a third value before all have read the first.
  unsigned char (*shown)[2][LANES][SHOWN_BYTES] = nullptr;
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
  change(block.fibers[block.current].context, block.home);
}

inline void enter() {
  block.body(block.args);
  block.fibers[block.current].state = State::Ended;
  change(block.fibers[block.current].context, block.home);
}

// Reserves memory for this many threads; false if there is none.
inline bool reserve(uint32_t threads, uint32_t shared_bytes) {
  if (threads > block.room) {
    free(block.fibers), free(block.stacks), free(block.shown);
    block.fibers = static_cast<Fiber *>(malloc(threads * sizeof(Fiber)));
    block.stacks = static_cast<unsigned char *>(malloc(threads * STACK_BYTES));
    block.shown = static_cast<unsigned char(*)[2][LANES][SHOWN_BYTES]>(malloc((threads + LANES - 1) / LANES * sizeof(*block.shown)));
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
  change(block.home, block.fibers[thread].context);
}

inline uint64_t draw() {
  block.random = block.random * 6364136223846793005u + 1442695040888963407u;
  return block.random >> 33;
}

// Lets threads continue that wait at a barrier which all have reached; returns false if there are none. If there are several
// warps, some wait longer, so that they do not run in lockstep.
inline bool release() {
  bool released = false, held = false;
  for (uint32_t first = 0; first < block.count; first += LANES) {
    const uint32_t end = first + LANES < block.count ? first + LANES : block.count;
    bool together = true, waiting = false;
    for (uint32_t lane = first; lane < end; lane++) {
      const State state = block.fibers[lane].state;
      waiting |= state == State::AtWarp;
      together &= state == State::AtWarp || state == State::Ended;
    }
    if (!waiting || !together) continue;
    if (block.count > LANES && draw() % 4 == 0) {
      held = true;
      continue;
    }
    for (uint32_t lane = first; lane < end; lane++) {
      if (block.fibers[lane].state == State::AtWarp) block.fibers[lane].state = State::Ready;
    }
    released = true;
  }
  if (released || held) return true;
  for (uint32_t thread = 0; thread < block.count; thread++) {
    const State state = block.fibers[thread].state;
    if (state != State::AtBlock && state != State::Ended) return false;
  }
  for (uint32_t thread = 0; thread < block.count; thread++) {
    if (block.fibers[thread].state == State::AtBlock) block.fibers[thread].state = State::Ready, released = true;
  }
  return released;
}

inline bool run_block() {
  for (uint32_t thread = 0; thread < block.count; thread++) {
    Fiber &fiber = block.fibers[thread];
    begin(fiber.context, block.stacks + thread * STACK_BYTES, STACK_BYTES, enter);
    fiber.state = State::Ready;
    fiber.turn = 0;
    block.copies[thread].under_way.clear();
    block.copies[thread].groups = 0;
  }
  // Shared memory starts with arbitrary content, here NaN.
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

// Runs a grid. 0: done; 1: no memory; 2: threads wait for each other; 3 (from the kernel): too many threads per block.
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

// The values that all lanes of the warp have shown; valid until the second next call.
template <typename T> struct Shown {
  const unsigned char (*values)[SHOWN_BYTES];

  T operator[](uint32_t lane) const {
    T value;
    memcpy(&value, values[lane % LANES], sizeof(T));
    return value;
  }
};

// Shows a value to the warp.
template <typename T> Shown<T> show(const T &value) {
  static_assert(sizeof(T) <= SHOWN_BYTES, "what a lane can show");
  auto &shown = block.shown[block.current / LANES][block.fibers[block.current].turn];
  block.fibers[block.current].turn ^= 1;
  memcpy(shown[block.current % LANES], &value, sizeof(T));
  wait(State::AtWarp);
  return Shown<T>{shown};
}

// Shows a value to the warp, and returns that of another lane.
template <typename T> T exchange(T value, uint32_t lane) { return show(value)[lane]; }

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

#define KERNEL_OF(name, Args, most, blocks) KERNEL(name, Args, most)

#define SHARED() (emulate::block.shared)

inline void block_barrier() { emulate::wait(emulate::State::AtBlock); }
inline void warp_barrier() { emulate::wait(emulate::State::AtWarp); }
template <typename T> T warp_from(T value, int lane) { return emulate::exchange(value, uint32_t(lane)); }
template <typename T> T warp_across(T value, int distance) {
  return emulate::exchange(value, emulate::block.current % emulate::LANES ^ uint32_t(distance));
}
inline bool warp_any(bool value) {
  const auto shown = emulate::show(value);
  const uint32_t first = emulate::block.current / emulate::LANES * emulate::LANES;
  for (uint32_t lane = 0; lane < emulate::LANES && first + lane < emulate::block.count; lane++) {
    if (shown[lane]) return true;
  }
  return false;
}

inline uint32_t warp_votes(bool value) {
  const auto shown = emulate::show(value);
  const uint32_t first = emulate::block.current / emulate::LANES * emulate::LANES;
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < emulate::LANES && first + lane < emulate::block.count; lane++) votes += shown[lane] ? 1 : 0;
  return votes;
}

// Copies are executed only when their thread waits for them.
inline void copy_ahead(void *shared, const void *global, int valid = 16) {
  auto &copies = emulate::block.copies[emulate::block.current];
  copies.under_way.push_back({shared, global, 16, valid, copies.groups});
}
inline void copy_whole_ahead(void *shared, const void *global, bool is_there) { copy_ahead(shared, global, is_there ? 16 : 0); }
inline void copy_word_ahead(void *shared, const void *global) {
  auto &copies = emulate::block.copies[emulate::block.current];
  copies.under_way.push_back({shared, global, 4, 4, copies.groups});
}
inline void ask_ahead(const void *) {}
inline void copies_commit() { emulate::block.copies[emulate::block.current].groups++; }
template <int Left> void copies_wait() {
  auto &copies = emulate::block.copies[emulate::block.current];
  size_t kept = 0;
  for (const emulate::Ahead &copy : copies.under_way) {
    if (copy.group + Left < copies.groups) {
      memset(copy.to, 0, size_t(copy.bytes));
      memcpy(copy.to, copy.from, size_t(copy.valid));
    } else {
      copies.under_way[kept++] = copy;
    }
  }
  copies.under_way.resize(kept);
}

// The CUDA vector types that the kernels use.
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
