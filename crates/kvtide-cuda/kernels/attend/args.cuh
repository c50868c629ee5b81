// What a call of attention hands its kernels; the launcher fills it in (src/attend).
#pragma once

#include "numbers.cuh"

namespace attend {

// What rows are made of.
enum Format : uint32_t { F32, F16, BF16, F8E4M3, Q8, Q4 };

// Rows at one distance, in one piece or the two runs of a view, in bytes.
struct Strided {
  // The first row of each piece.
  uint64_t pieces[2];
  uint64_t batch, head, token;
  // Rows of the first piece.
  uint32_t first;
  uint32_t unused;
};

// K or V in a page, in bytes.
struct Section {
  // Of the first head.
  uint64_t codes, scales;
  uint64_t head_codes, head_scales;
  uint32_t row_bytes;
  uint32_t format;
};

// K or V.
struct Part {
  Strided rows;
  // In pages of the slab and in those of the staging slab.
  Section sections[2];
  uint32_t dim;
  // 16 where all rows begin at a multiple of it; else they are copied byte by byte.
  uint32_t unit;
  // A tile's rows are multiplied as they are read.
  uint32_t is_direct;
  // Bytes from row to row in a tile that was read.
  uint32_t stride;
  // Units of 16 bytes of a row.
  Divisor units;
  uint32_t row_bytes;
};

// Numbers in a device's memory, or in the call's own list.
struct Numbers {
  uint64_t far;
  uint64_t near;
};

// The keys and queries of one sequence, or of the stem of several: the keys that they begin with, met by the queries of all of them.
struct Sequence {
  // Where the first key of each of two runs stands.
  int64_t positions[2];
  int64_t start;
  uint32_t keys[2];
  uint32_t first_query, queries;
  // In one list of all keys; in one list of all tables.
  uint32_t first_key, table;
  // Its tree: how many nodes, and where they begin in the depths and in the words of bits of all trees.
  uint32_t nodes, depths, seen;
  // In how many shares its keys are cut, and the first of its rows among those that are kept, to be put together; NOWHERE where they are not.
  uint32_t splits;
  uint64_t kept;
  // Keys before its own, those of a stem: whole tiles. Which stem, NONE for no one's, and its first query there.
  uint32_t from, stem, stem_query;
  // Of a stem, where its queries begin in the list of those; else NONE.
  uint32_t members;
  // From which of its blocks on entries are in the list of tails, and where there.
  uint32_t tail_from, tail;
};

// Where a block's shared memory holds what, in bytes.
struct Shared {
  uint32_t queries, scratch, states;
  // Tiles of keys and values that were widened; the output at the end.
  uint32_t wide[2];
  // Stages of tiles that are read ahead: keys first.
  uint32_t ring, stage_bytes;
  uint32_t values, scales, entries;
  uint32_t stages;
  // Where the rows of the next tiles begin.
  uint32_t rows;
};

struct Args {
  Strided queries;
  Part parts[2];
  // The first page of this layer, bytes from block to block, blocks: of the slab and the staging slab.
  uint64_t slabs[2], block_bytes[2];
  uint32_t blocks[2];
  uint64_t out, sums;
  // Of the sequences that are cut, one behind the other, of each share: of each row the largest score and the sum, and its unscaled
  // output.
  uint64_t split_states, split_rows;
  // Lengths that are read when the kernel runs, 32 bits each; 0 where sequences have their own.
  uint64_t lengths;
  uint64_t mask;
  // From sequence, head, query and key to the next.
  uint64_t mask_strides[4];
  int64_t window, sinks;
  // Where the blocks of each sequence end, in one list of all: those of this launch.
  Numbers sequences, ends, tables, positions, logits, seen, depths;
  // The queries of stems: of each its batch and its token there.
  Numbers members;
  // Entries of tables in which layers differ.
  Numbers tails;
  float scale, softcap;
  uint32_t query_format;
  uint32_t is_paged, is_ragged, is_causal, is_rotated;
  uint32_t query_heads;
  uint32_t keys_max;
  // One list of positions for all sequences.
  uint32_t has_shared_positions;
  // Sequences, and stems behind them.
  uint32_t count;
  uint32_t unused;
  Divisor block_size, group;
  Shared shared;
  List list;
};

// As the launcher counts it.
static_assert(sizeof(Args) == 2824, "arguments as src/attend/args.rs has them");

template <typename T> DEVICE const T *numbers_at(const Args &args, const Numbers &of) {
  return reinterpret_cast<const T *>(of.far ? of.far : reinterpret_cast<uint64_t>(args.list.items<unsigned char>()) + of.near);
}

// The sequence that a block belongs to, and its place among those of it: every lane of a warp takes part.
DEVICE uint32_t sequence_of(const Args &args, uint32_t &place) {
  const uint32_t *ends = numbers_at<uint32_t>(args, args.ends);
  uint32_t first = 0, count = args.count;
  // The first whose blocks end behind this one: in 32 pieces, each lane looks at the last of one.
  while (count > 0) {
    const uint32_t step = (count + 31) / 32, last = (threadIdx.x % 32 + 1) * step - 1;
    const uint32_t passed = step * warp_votes(last < count && ends[first + last] <= place);
    first += passed, count -= passed;
    if (step == 1) break;
    if (count > step) count = step;
  }
  if (first) place -= ends[first - 1];
  return first;
}

constexpr uint64_t NOWHERE = ~uint64_t(0);
constexpr uint32_t NONE = ~uint32_t(0);

DEVICE bool has(const Numbers &of) { return of.far || of.near != NOWHERE; }

} // namespace attend
