// Copies and zeroes pieces of memory of equal size: blocks (copy on write), rows of an accepted path, unwritten slots.
//
// Chains are moves that depend on each other: a thread carries out all moves of a chain for its unit, in order, so no thread
// reads what another one has written. Blocks are chains of one move. Bound by memory bandwidth; chains of several moves by
// latency.
#include "target.cuh"

namespace pieces {

struct PieceMove {
  uint64_t source;
  uint64_t target;
};

struct Args {
  // The units of a piece.
  uint32_t units;
  // The moves of a chain; those of the next chain follow.
  uint32_t moves;
  List list;
};

template <typename Unit> DEVICE void copy(const Args &args) {
  const PieceMove *chain = args.list.items<PieceMove>() + uint64_t(blockIdx.y) * args.moves;
  for (uint64_t unit = grid_thread(); unit < args.units; unit += grid_threads()) {
    for (uint32_t move = 0; move < args.moves; move++) {
      reinterpret_cast<Unit *>(chain[move].target)[unit] = reinterpret_cast<const Unit *>(chain[move].source)[unit];
    }
  }
}

template <typename Unit> DEVICE void zero(const Args &args) {
  Unit *piece = reinterpret_cast<Unit *>(args.list.items<PieceMove>()[blockIdx.y].target);
  for (uint64_t unit = grid_thread(); unit < args.units; unit += grid_threads()) piece[unit] = Unit{};
}

} // namespace pieces

KERNELS_BY_UNIT(copy_pieces, pieces::Args, 256, pieces::copy)
KERNELS_BY_UNIT(zero_pieces, pieces::Args, 256, pieces::zero)
