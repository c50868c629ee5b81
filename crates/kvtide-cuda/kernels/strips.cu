// Copies rows of tokens into pages, and back: appends, bulk writes and reads of a paged cache.
//
// strip   neighbouring slots of one page that get tokens: page, first slot, first token, number of tokens
// rows    [layer][head][token] at three strides, K and V separately
//
// One launch copies all strips of all layers, so a step of 32 layers and 64 sequences is one launch. Bound by memory
// bandwidth for bulk copies, and by launch latency in a step. A thread copies units of up to 16 bytes, neighbouring threads
// neighbouring units; four are loaded before the first is stored.
#include "part.cuh"

namespace strips {

struct Strip {
  // The page of the first layer.
  uint64_t page;
  uint32_t token;
  uint32_t slot;
  uint32_t tokens;
  // The first layer in the rows.
  uint32_t layer;
};

struct Args {
  PassedPart parts[2];
  // The distance from one layer's page to the next in bytes.
  uint64_t layer_bytes;
  uint32_t heads;
  uint32_t unused;
  List strips;
};

constexpr uint32_t AT_ONCE = 4;

template <typename Unit, bool IntoPages> DEVICE void carry(const Args &args, const PassedPart &part) {
  const Strip &strip = args.strips.items<Strip>()[blockIdx.y];
  const uint64_t page = strip.page + blockIdx.z * args.layer_bytes;
  const uint32_t head_units = strip.tokens * part.row_units.by;
  const uint32_t all = args.heads * head_units;
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t first = uint32_t(grid_thread()); first < all; first += AT_ONCE * stride) {
    Unit values[AT_ONCE];
    uint64_t targets[AT_ONCE];
#pragma unroll
    for (uint32_t step = 0; step < AT_ONCE; step++) {
      const uint32_t index = first + step * stride;
      targets[step] = 0;
      if (index >= all) continue;
      const uint32_t head = index / head_units;
      uint32_t unit = index - head * head_units;
      const uint32_t token = part.row_units.split(unit);
      const uint64_t within = uint64_t(unit) * sizeof(Unit);
      const uint64_t in_page = page + part.in_page(head, strip.slot + token) + within;
      const uint64_t in_rows = part.in_rows(strip.layer + blockIdx.z, head, strip.token + token) + within;
      values[step] = *reinterpret_cast<const Unit *>(IntoPages ? in_rows : in_page);
      targets[step] = IntoPages ? in_page : in_rows;
    }
#pragma unroll
    for (uint32_t step = 0; step < AT_ONCE; step++) {
      if (targets[step]) *reinterpret_cast<Unit *>(targets[step]) = values[step];
    }
  }
}

template <typename Unit, bool IntoPages> DEVICE void run(const Args &args) {
  carry<Unit, IntoPages>(args, args.parts[0]);
  carry<Unit, IntoPages>(args, args.parts[1]);
}

template <typename Unit> DEVICE void scatter(const Args &args) { run<Unit, true>(args); }
template <typename Unit> DEVICE void gather(const Args &args) { run<Unit, false>(args); }

} // namespace strips

KERNELS_BY_UNIT(scatter, strips::Args, 256, strips::scatter)
KERNELS_BY_UNIT(gather, strips::Args, 256, strips::gather)
