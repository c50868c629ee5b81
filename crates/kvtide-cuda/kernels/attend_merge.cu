// Merges the results of a call's splits over shares of the keys, and those of the stem that a sequence begins with, exactly
// as if each row had attended to all keys at once.
//
// unit   a slice of 128 elements of one row of the output: one warp, or the four of a block if there are many splits
// lane   four elements; and the weight of every 32nd split, computed once and shared with the other lanes
//
// Bound by memory bandwidth: it reads the results of the splits, floats, in pieces of 16 bytes. One sequence with 32 heads
// in 128 splits is 32 blocks of four warps, each of which reads 16 KiB.
#include "attend/tiles.cuh"

namespace attend {

constexpr uint32_t MERGE_WARPS = 4, MERGE_SLICE = 128, MERGE_ALONE = 4;
// For at most 128 splits.
constexpr int MERGE_WEIGHTS = 4;

DEVICE float4 four_of(const float *from, uint32_t index, uint32_t dim) {
  if (dim % 4 == 0) return *reinterpret_cast<const float4 *>(from + index);
  float4 of = {0, 0, 0, 0};
  of.x = from[index];
  if (index + 1 < dim) of.y = from[index + 1];
  if (index + 2 < dim) of.z = from[index + 2];
  if (index + 3 < dim) of.w = from[index + 3];
  return of;
}

DEVICE void merge(const Args &args) {
  const uint32_t dim = args.parts[1].dim, slices = dim ? (dim + MERGE_SLICE - 1) / MERGE_SLICE : 1;
  uint32_t place = blockIdx.x;
  const uint32_t sequence = sequence_of(args, place);
  const Sequence &of_sequence = numbers_at<Sequence>(args, args.sequences)[sequence];
  const bool has_stem = of_sequence.stem != NONE;
  // Without a stem, nothing of this is read.
  const Sequence &stem = has_stem ? numbers_at<Sequence>(args, args.sequences)[of_sequence.stem] : of_sequence;
  const uint32_t own = of_sequence.splits, splits = own + (has_stem ? stem.splits : 0);
  const uint32_t team = splits > MERGE_ALONE ? MERGE_WARPS : 1, member = warp() % team;
  const uint64_t unit = uint64_t(place) * (MERGE_WARPS / team) + warp() / team;
  const uint64_t row = unit / slices, rows_of_share = uint64_t(of_sequence.queries) * args.query_heads;
  // All warps of a team return together.
  if (row >= rows_of_share) return;
  const uint32_t slice = uint32_t(unit % slices), index = slice * MERGE_SLICE + 4 * lane();
  const float *states = reinterpret_cast<const float *>(args.split_states), *rows = reinterpret_cast<const float *>(args.split_rows);
  // The row of a share: the sequence's own shares come first.
  const uint64_t of_own = of_sequence.kept + row, stem_rows = uint64_t(stem.queries) * args.query_heads;
  const uint64_t of_stem = stem.kept + uint64_t(of_sequence.stem_query) * args.query_heads + row;
  const auto kept = [&](uint32_t split) {
    return split < own ? of_own + split * rows_of_share : of_stem + (split - own) * stem_rows;
  };
  float weights[MERGE_WEIGHTS], sums[MERGE_WEIGHTS], max = -numbers::infinity(), sum = 0;
#pragma unroll
  for (int of = 0; of < MERGE_WEIGHTS; of++) {
    const uint32_t split = 32 * of + lane();
    weights[of] = -numbers::infinity(), sums[of] = 0;
    if (split < splits) {
      const float *state = states + 2 * kept(split);
      weights[of] = state[0], sums[of] = state[1];
    }
    max = fmaxf(max, weights[of]);
  }
  max = warp_max(max);
  const float base = max == -numbers::infinity() ? 0 : max;
#pragma unroll
  for (int of = 0; of < MERGE_WEIGHTS; of++) {
    weights[of] = numbers::power_of_e(weights[of] - base);
    sum += sums[of] * weights[of];
  }
  sum = warp_sum(sum);
  float4 total = {0, 0, 0, 0};
#pragma unroll
  for (int of = 0; of < MERGE_WEIGHTS; of++) {
    const uint32_t end = splits < 32 * of + 32u ? splits : 32 * of + 32;
    for (uint32_t split = 32 * of + member; split < end; split += team) {
      const float weight = warp_from(weights[of], int(split % 32));
      if (index >= dim) continue;
      // The rows of a share that attended to no key are zeros.
      const float4 value = four_of(rows + kept(split) * dim, index, dim);
      total = {fmaf(weight, value.x, total.x), fmaf(weight, value.y, total.y), fmaf(weight, value.z, total.z),
               fmaf(weight, value.w, total.w)};
    }
  }
  if (team > 1) {
    float4 *parts = reinterpret_cast<float4 *>(SHARED());
    parts[32 * member + lane()] = total;
    block_barrier();
    if (member) return;
    for (uint32_t of = 1; of < MERGE_WARPS; of++) {
      const float4 part = parts[32 * of + lane()];
      total = {total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
    }
  }
  const uint32_t query = uint32_t(row / args.query_heads), head = uint32_t(row % args.query_heads);
  const uint32_t token = of_sequence.first_query + query;
  const uint64_t to_row = args.is_ragged ? uint64_t(token) * args.query_heads + head
                                         : (uint64_t(sequence) * args.query_heads + head) * of_sequence.queries + query;
  const float factor = end_row(args, token, head, max, sum, slice == 0);
  const uint64_t to = output_row(args, to_row);
  const float values[4] = {total.x * factor, total.y * factor, total.z * factor, total.w * factor};
  if (index < dim) put_four(to, args.query_format, index, dim, values);
}

} // namespace attend

KERNEL(attend_merge, attend::Args, 128) { attend::merge(args); }
