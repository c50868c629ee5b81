// Puts the shares of keys together that the splits of a call have seen, exactly as if each row had seen all of them at once.
//
//   grid   a warp for each row of the output
//
// Bound by memory: it reads what the splits have written, floats, which is little beside the keys.
#include "attend/tiles.cuh"

namespace attend {

DEVICE void merge(const Args &args) {
  const Sequence *sequences = numbers_at<Sequence>(args, args.sequences);
  const uint64_t row = grid_thread() / 32;
  // Rows are queries of all sequences, for each its heads.
  if (row >= args.rows) return;
  const float *states = reinterpret_cast<const float *>(args.split_states);
  const float *rows = reinterpret_cast<const float *>(args.split_rows);
  const uint32_t token = uint32_t(row / args.query_heads), head = uint32_t(row % args.query_heads), dim = args.parts[1].dim;
  // Outside of lists of tokens all sequences have as many queries.
  const uint32_t queries = sequences[0].queries, sequence = args.is_ragged ? 0 : token / queries;
  const uint64_t place = args.is_ragged ? row : (uint64_t(sequence) * args.query_heads + head) * queries + token % queries;
  float max = -numbers::infinity(), sum = 0;
  for (uint32_t split = 0; split < args.splits; split++) max = fmaxf(max, states[2 * (split * uint64_t(args.rows) + row)]);
  const float base = max == -numbers::infinity() ? 0 : max;
  for (uint32_t split = 0; split < args.splits; split++) {
    const float *state = states + 2 * (split * uint64_t(args.rows) + row);
    sum += state[1] * numbers::power_of_e(state[0] - base);
  }
  put_output(args, place, token, head, max, sum, [&](uint32_t index) {
    float total = 0;
    for (uint32_t split = 0; split < args.splits; split++) {
      const uint64_t at = split * uint64_t(args.rows) + row;
      const float share = numbers::power_of_e(states[2 * at] - base);
      // A share that saw nothing is zeros.
      total = fmaf(share, rows[at * dim + index], total);
    }
    return total;
  });
}

} // namespace attend

KERNEL(attend_merge, attend::Args, 128) { attend::merge(args); }
