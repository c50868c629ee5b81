// Moves rows inside a buffer, where source and target may overlap: compaction by a short distance, rows of an accepted path.
//
// stretch   [ row 0 ][ row 1 ] ...        one after the other; a thread has one column of units in one stretch
//
// A thread carries out all moves for its column, in order, each in the direction in which no row is overwritten before it
// was read; so no thread reads what another one writes. Bound by latency if there are many rows and the distance is short;
// eight rows are loaded before the first is stored if the distance is at least that long. Long moves over long distances are
// boxes (boxes.cu).
#include "target.cuh"

namespace shift {

struct Move {
  uint32_t source;
  uint32_t target;
  uint32_t rows;
  uint32_t unused;
};

struct Args {
  uint64_t buffer;
  uint64_t stretch_bytes;
  uint64_t row_bytes;
  uint32_t stretches;
  uint32_t moves;
  Divisor row_units;
  uint32_t unused;
  List list;
};

constexpr uint32_t AT_ONCE = 8;

template <typename Unit> DEVICE void carry(uint64_t column, uint64_t row_bytes, const Move &move) {
  const bool forwards = move.target < move.source;
  const uint32_t way = forwards ? move.source - move.target : move.target - move.source;
  const uint32_t at_once = way < AT_ONCE ? 1 : AT_ONCE;
  for (uint32_t done = 0; done < move.rows; done += at_once) {
    Unit values[AT_ONCE];
#pragma unroll
    for (uint32_t step = 0; step < AT_ONCE; step++) {
      const uint32_t row = done + step;
      if (step >= at_once || row >= move.rows) continue;
      const uint64_t from = move.source + uint64_t(forwards ? row : move.rows - 1 - row);
      values[step] = *reinterpret_cast<const Unit *>(column + from * row_bytes);
    }
#pragma unroll
    for (uint32_t step = 0; step < AT_ONCE; step++) {
      const uint32_t row = done + step;
      if (step >= at_once || row >= move.rows) continue;
      const uint64_t to = move.target + uint64_t(forwards ? row : move.rows - 1 - row);
      *reinterpret_cast<Unit *>(column + to * row_bytes) = values[step];
    }
  }
}

template <typename Unit> DEVICE void run(const Args &args) {
  uint32_t unit = uint32_t(grid_thread());
  const uint32_t stretch = args.row_units.split(unit);
  if (stretch >= args.stretches) return;
  const uint64_t column = args.buffer + stretch * args.stretch_bytes + uint64_t(unit) * sizeof(Unit);
  for (uint32_t move = 0; move < args.moves; move++) carry<Unit>(column, args.row_bytes, args.list.items<Move>()[move]);
}

} // namespace shift

KERNELS_BY_UNIT(shift, shift::Args, 128, shift::run)
