// Copies boxes of rows from one place to another: writes of K and V, reads of views, growth, compaction without overlap.
//
// box   counts[0] x counts[1] x counts[2] rows of `row` units, at three strides on each side
//
// One launch copies any number of boxes: K and V, all layers. Bound by memory bandwidth: a thread loads four units of up to
// 16 bytes before it stores the first, neighbouring threads copy neighbouring units, and an index costs three
// multiplications.
#include "target.cuh"

namespace boxes {

struct Box {
  uint64_t target;
  uint64_t source;
  // The distances from one to the next in bytes, outermost first.
  uint64_t target_strides[3];
  uint64_t source_strides[3];
  // The units of all rows.
  uint32_t units;
  // The units of a row, and the rows along the two inner axes.
  Divisor row, inner, middle;
  uint32_t unused;
};

struct Args {
  List boxes;
};

constexpr uint32_t AT_ONCE = 4;

template <typename Unit> DEVICE void copy(const Args &args) {
  const Box &box = args.boxes.items<Box>()[blockIdx.y];
  const uint32_t stride = gridDim.x * blockDim.x;
  // In 64 bits, because the last step may exceed 2^32.
  for (uint64_t first = grid_thread(); first < box.units; first += uint64_t(AT_ONCE) * stride) {
    Unit values[AT_ONCE];
    uint64_t targets[AT_ONCE];
#pragma unroll
    for (uint32_t step = 0; step < AT_ONCE; step++) {
      const uint64_t index = first + uint64_t(step) * stride;
      targets[step] = 0;
      if (index >= box.units) continue;
      uint32_t unit = uint32_t(index);
      uint32_t inner = box.row.split(unit);
      uint32_t middle = box.inner.split(inner);
      const uint32_t outer = box.middle.split(middle);
      const uint64_t within = uint64_t(unit) * sizeof(Unit);
      const uint64_t source = box.source + outer * box.source_strides[0] + middle * box.source_strides[1] +
                              inner * box.source_strides[2] + within;
      targets[step] = box.target + outer * box.target_strides[0] + middle * box.target_strides[1] +
                      inner * box.target_strides[2] + within;
      values[step] = *reinterpret_cast<const Unit *>(source);
    }
#pragma unroll
    for (uint32_t step = 0; step < AT_ONCE; step++) {
      if (targets[step]) *reinterpret_cast<Unit *>(targets[step]) = values[step];
    }
  }
}

} // namespace boxes

KERNELS_BY_UNIT(copy_boxes, boxes::Args, 256, boxes::copy)
