// Copies and zeroes pieces of memory of one size: blocks that are copied on write, rows of an accepted path, slots that nobody wrote.
//
// Chains are moves that build on each other: a thread carries its unit of a chain along, move by move, so that what one reads
// another has written. Blocks are chains of one move. Bound by memory; chains of several moves by latency.
#include "target.cuh"

namespace pieces {

struct Piece {
  uint64_t source;
  uint64_t target;
};

struct Args {
  // Units of a piece.
  uint32_t units;
  // Moves of a chain; those of the next follow.
  uint32_t moves;
  List list;
};

template <typename Unit> DEVICE void copy(const Args &args) {
  const Piece *chain = args.list.items<Piece>() + uint64_t(blockIdx.y) * args.moves;
  for (uint64_t unit = grid_thread(); unit < args.units; unit += grid_threads()) {
    for (uint32_t move = 0; move < args.moves; move++) {
      reinterpret_cast<Unit *>(chain[move].target)[unit] = reinterpret_cast<const Unit *>(chain[move].source)[unit];
    }
  }
}

template <typename Unit> DEVICE void zero(const Args &args) {
  Unit *piece = reinterpret_cast<Unit *>(args.list.items<Piece>()[blockIdx.y].target);
  for (uint64_t unit = grid_thread(); unit < args.units; unit += grid_threads()) piece[unit] = Unit{};
}

} // namespace pieces

KERNELS_BY_UNIT(copy_pieces, pieces::Args, 256, pieces::copy)
KERNELS_BY_UNIT(zero_pieces, pieces::Args, 256, pieces::zero)
