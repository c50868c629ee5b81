// One new token of each sequence into its page, where the length in the device's memory says: a step that a graph replays.
//
//   lengths   tokens of each sequence before the step; `advance` makes them one more, at the end of the step
//   tables    a row of blocks for each sequence; a negative one takes no token
//
// Nothing is read from the host, so that the launch is the same whatever the lengths are. Bound by the launch; a thread
// copies one unit of up to 16 bytes, of K, then of V.
#include "part.cuh"

namespace insert {

struct Args {
  Part parts[2];
  // The first page of the first layer that is written.
  uint64_t pages;
  uint64_t block_bytes;
  uint64_t layer_bytes;
  // int32 [sequences], int32 [sequences, blocks of a row].
  uint64_t lengths;
  uint64_t tables;
  uint32_t row_blocks;
  uint32_t heads;
  Divisor block_size;
  uint32_t blocks;
};

template <typename Unit> DEVICE void carry(const Args &args, const Part &part, uint64_t page, uint32_t slot) {
  for (uint64_t index = grid_thread(); index < uint64_t(args.heads) * part.row_units.by; index += grid_threads()) {
    uint32_t unit = uint32_t(index);
    const uint32_t head = part.row_units.split(unit);
    const uint64_t within = uint64_t(unit) * sizeof(Unit);
    const uint64_t source = part.in_rows(blockIdx.z, head, blockIdx.y) + within;
    const uint64_t target = page + part.in_page(head, slot) + within;
    *reinterpret_cast<Unit *>(target) = *reinterpret_cast<const Unit *>(source);
  }
}

template <typename Unit> DEVICE void run(const Args &args) {
  const int32_t length = reinterpret_cast<const int32_t *>(args.lengths)[blockIdx.y];
  if (length < 0) return;
  uint32_t slot = uint32_t(length);
  const uint32_t place = args.block_size.split(slot);
  // A sequence that has outgrown its row, or whose block is none, is left alone: no host looks before each replay.
  if (place >= args.row_blocks) return;
  const int32_t block = reinterpret_cast<const int32_t *>(args.tables)[uint64_t(blockIdx.y) * args.row_blocks + place];
  if (block < 0 || uint32_t(block) >= args.blocks) return;
  const uint64_t page = args.pages + uint64_t(block) * args.block_bytes + blockIdx.z * args.layer_bytes;
  carry<Unit>(args, args.parts[0], page, slot);
  carry<Unit>(args, args.parts[1], page, slot);
}

struct Advance {
  uint64_t lengths;
  uint32_t sequences;
  uint32_t by;
};

} // namespace insert

KERNELS_BY_UNIT(insert, insert::Args, 256, insert::run)
KERNEL(advance, insert::Advance, 256) {
  int32_t *lengths = reinterpret_cast<int32_t *>(args.lengths);
  for (uint64_t at = grid_thread(); at < args.sequences; at += grid_threads()) {
    if (lengths[at] >= 0) lengths[at] += int32_t(args.by);
  }
}
