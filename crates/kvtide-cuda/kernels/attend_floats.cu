// Attention in floats: for queries of f32, or keys and values of another type than the queries.
//
// warp    four rows of a block's sixteen; its lanes are the keys of a tile for scores, and pieces of a row for values
//
// For rows of more than 256 elements a tile has eight keys, so that it fits on any GPU, and four lanes share a key. This
// kernel also handles wide queries of two bytes, for which the sums of the tensor-core kernel would need more registers than
// there are.
//
// Bound by the multiplications of a multiprocessor: each key meets each row in shared memory, with sixteen multiply-adds per
// five loads of 16 bytes. All operations round as floats, in an order that depends on sizes alone.
#include "attend/tiles.cuh"

namespace attend {

template <int D> struct Floats {
  static constexpr int TILE = D > 256 ? 8 : 32, ROWS = 16, OWN = 4;
  // The number of lanes that share a key.
  static constexpr int SHARE = 32 / TILE;
  static constexpr uint32_t STRIDE = D + 4;
  // The number of pieces of four elements of a row that a lane has.
  static constexpr int PIECES = (D + 127) / 128;

  float4 out[OWN][PIECES];
  float max[OWN], sum[OWN];
  Row rows[OWN];

  // Elements 4 * lane of each 128, up to the length of a row of values.
  DEVICE static bool has_piece(const Args &args, int piece) { return 128 * piece + 4 * lane() < args.parts[1].dim; }

  DEVICE static float4 four(const unsigned char *row, uint32_t index) {
    return *reinterpret_cast<const float4 *>(row + 4 * index);
  }

  // The largest value, or the sum, over a warp, for all four rows at once.
  DEVICE static float4 over_lanes(float4 of, bool sums) {
    for (int distance = 16; distance > 0; distance /= 2) {
      const float4 other = {warp_across(of.x, distance), warp_across(of.y, distance), warp_across(of.z, distance),
                            warp_across(of.w, distance)};
      if (sums) of = {of.x + other.x, of.y + other.y, of.z + other.z, of.w + other.w};
      else of = {fmaxf(of.x, other.x), fmaxf(of.y, other.y), fmaxf(of.z, other.z), fmaxf(of.w, other.w)};
    }
    return of;
  }

  DEVICE static uint32_t own_key() { return lane() / SHARE; }

  // The products of the lane's key with the warp's rows.
  DEVICE static void multiply_keys(const Args &args, const unsigned char *queries, TileRows keys, float (&scores)[OWN]) {
    const unsigned char *key = keys.first + own_key() * keys.stride, *query = queries + OWN * warp() * WIDE<float, D>;
#pragma unroll
    for (int row = 0; row < OWN; row++) scores[row] = 0;
    const uint32_t dim = (args.parts[0].dim + 3) / 4 * 4;
#pragma unroll 4
    for (uint32_t index = 4 * (lane() % SHARE); index < dim; index += 4 * SHARE) {
      const float4 b = four(key, index);
#pragma unroll
      for (int row = 0; row < OWN; row++) {
        const float4 a = four(query + row * WIDE<float, D>, index);
        scores[row] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, scores[row]))));
      }
    }
#pragma unroll
    for (int distance = SHARE / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int row = 0; row < OWN; row++) scores[row] += warp_across(scores[row], distance);
    }
  }

  // Turns products into weights in shared memory: for each key those of the four rows; UNSEEN if a row does not attend to
  // it.
  DEVICE void soften(const Args &args, const Work<TILE> &work, uint32_t tile, bool is_whole, float (&scores)[OWN], float4 *weights) {
    const uint32_t key = tile * TILE + own_key();
#pragma unroll
    for (int row = 0; row < OWN; row++) {
      scores[row] = is_whole ? score(args, scores[row]) : score_on_edge(args, work, rows[row], scores[row], key);
    }
    if (has(args.slopes)) {
      // Scores of keys after the last one are -infinity, and remain so.
      const int64_t position = work.rules.position(key < work.count ? key : work.count - 1);
#pragma unroll
      for (int row = 0; row < OWN; row++) scores[row] += slope_of(args, rows[row]) * float(position - rows[row].position);
    }
    const float4 all = over_lanes({scores[0], scores[1], scores[2], scores[3]}, false);
    const float largest[OWN] = {all.x, all.y, all.z, all.w};
    float before[OWN];
#pragma unroll
    for (int row = 0; row < OWN; row++) {
      const float next = fmaxf(max[row], largest[row]);
      // If no key was visible yet, the base is still finite: infinity minus infinity would be NaN.
      const float base = next == -numbers::infinity() ? 0 : next;
      before[row] = numbers::power_of_e(max[row] - base);
      const float weight = numbers::power_of_e(scores[row] - base);
      // Counts only the first of the lanes that share a key; lanes are summed at the end.
      sum[row] = sum[row] * before[row] + (lane() % SHARE ? 0 : weight);
      // A weight may round to 0, which must not count as UNSEEN.
      scores[row] = scores[row] == -numbers::infinity() ? UNSEEN : weight;
      max[row] = next;
#pragma unroll
      for (int piece = 0; piece < PIECES; piece++) {
        float4 &of = out[row][piece];
        of = {of.x * before[row], of.y * before[row], of.z * before[row], of.w * before[row]};
      }
    }
    if (lane() % SHARE == 0) weights[own_key()] = {scores[0], scores[1], scores[2], scores[3]};
  }

  // Adds weighted values; a row does not read values of keys that it does not attend to.
  DEVICE void weigh(const Args &args, TileRows values, const float4 *weights) {
    for (uint32_t key = 0; key < TILE; key++) {
      const float4 of = weights[key];
      const float weight[OWN] = {of.x, of.y, of.z, of.w};
#pragma unroll
      for (int piece = 0; piece < PIECES; piece++) {
        if (!has_piece(args, piece)) continue;
        const float4 value = four(values.first + key * values.stride, 128 * piece + 4 * lane());
#pragma unroll
        for (int row = 0; row < OWN; row++) {
          float4 &to = out[row][piece];
          if (weight[row] == UNSEEN) continue;
          to = {fmaf(weight[row], value.x, to.x), fmaf(weight[row], value.y, to.y), fmaf(weight[row], value.z, to.z),
                fmaf(weight[row], value.w, to.w)};
        }
      }
    }
  }

  DEVICE static void run(const Args &args) {
    unsigned char *shared = SHARED();
    Work<TILE> &work = *reinterpret_cast<Work<TILE> *>(shared);
    begin_work<ROWS>(args, work);
    const unsigned char *queries = shared + args.shared.queries;
    // For each warp, after the states.
    float *states = reinterpret_cast<float *>(shared + args.shared.states);
    float4 *weights = reinterpret_cast<float4 *>(states + 2 * ROWS) + TILE * warp();
    const uint32_t entry = Ring<TILE>{args, work, shared}.begin();
    load_queries<float, D, ROWS>(args, work, shared);
    block_barrier();
    Floats own;
#pragma unroll
    for (int row = 0; row < OWN; row++) {
      own.rows[row] = row_of(args, work, OWN * warp() + row);
      own.max[row] = -numbers::infinity(), own.sum[row] = 0;
#pragma unroll
      for (int piece = 0; piece < PIECES; piece++) own.out[row][piece] = {0, 0, 0, 0};
    }
    each_tile<float, D>(args, work, shared, entry, [&](uint32_t tile, TileRows keys, TileRows values) {
      float scores[OWN];
      multiply_keys(args, queries, keys, scores);
      own.soften(args, work, tile, work.is_whole(args, tile), scores, weights);
      warp_barrier();
      own.weigh(args, values, weights);
      warp_barrier();
    });
    float *to = reinterpret_cast<float *>(shared + args.shared.wide[0]);
    const float4 all = over_lanes({own.sum[0], own.sum[1], own.sum[2], own.sum[3]}, true);
    const float sums[OWN] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int row = 0; row < OWN; row++) {
      const uint32_t place = OWN * warp() + row;
      if (lane() == 0) states[2 * place] = own.max[row], states[2 * place + 1] = sums[row];
#pragma unroll
      for (int piece = 0; piece < PIECES; piece++) {
        if (has_piece(args, piece)) reinterpret_cast<float4 *>(to + place * STRIDE)[32 * piece + lane()] = own.out[row][piece];
      }
    }
    block_barrier();
    finish<ROWS>(args, work, to, STRIDE, states);
  }
};

} // namespace attend

KERNEL_OF(attend_floats_64, attend::Args, 128, 2) { attend::Floats<64>::run(args); }
KERNEL_OF(attend_floats_128, attend::Args, 128, 2) { attend::Floats<128>::run(args); }
KERNEL_OF(attend_floats_256, attend::Args, 128, 2) { attend::Floats<256>::run(args); }
KERNEL_OF(attend_floats_512, attend::Args, 128, 1) { attend::Floats<512>::run(args); }
