// The arguments of the attention kernels; the launcher fills them in (src/attend).
#pragma once

#include "numbers.cuh"

namespace attend {

// The format of rows.
enum Format : uint32_t { F32, F16, BF16, F8E4M3, Q8, Q4 };

// Equidistant rows, in one piece or the two runs of a view, in bytes.
struct Strided {
  // The first row of each piece.
  uint64_t pieces[2];
  uint64_t batch, head, token;
  // The number of rows in the first piece.
  uint32_t first;
  uint32_t unused;
};

// The places of K or V in a page, in bytes.
struct Section {
  // The codes and scales of the first head.
  uint64_t codes, scales;
  uint64_t head_codes, head_scales;
  uint32_t row_bytes;
  uint32_t format;
};

// K or V.
struct ReadPart {
  Strided rows;
  // In pages of the slab and in those of the staging slab.
  Section sections[2];
  uint32_t dim;
  // 16 if all rows begin at a multiple of it; else they are copied byte by byte.
  uint32_t unit;
  // True if a tile's rows are multiplied directly from the stage.
  uint32_t is_direct;
  // The distance in bytes between rows of a tile that was read.
  uint32_t stride;
  // The number of 16-byte units in a row.
  Divisor units;
  uint32_t row_bytes;
};

// Numbers in device memory, or in the call's own list.
struct Numbers {
  uint64_t far;
  uint64_t near;
};

// The keys and queries of one sequence, or of a stem: the keys that several sequences begin with, and the queries of all of
// them.
struct Sequence {
  // The position of the first key of each of two runs.
  int64_t positions[2];
  int64_t start;
  uint32_t keys[2];
  uint32_t first_query, queries;
  // The index in the list of all keys; the index in the list of all tables.
  uint32_t first_key, table;
  // Its tree: the number of nodes, and the index of the first one in the depths and in the words of bits of all trees.
  uint32_t nodes, depths, seen;
  // The number of shares of its keys, and the index of its first row among the rows that are kept for merging; NOWHERE if
  // none are.
  uint32_t splits;
  uint64_t kept;
  // The number of keys that belong to its stem, whole tiles; its stem, or NONE; and the index of its first query there.
  uint32_t from, stem, stem_query;
  // For a stem, the index of its first query in the list of those; else NONE.
  uint32_t members;
  // The block from which on entries are in the list of tails, and the index there.
  uint32_t tail_from, tail;
  // The node of the first query; below 0 if that query is before the tree.
  int32_t first_node;
  uint32_t unused;
};

// The layout of a block's shared memory, in bytes.
struct Shared {
  uint32_t queries, scratch, states;
  // Widened tiles of keys and values; at the end, the output.
  uint32_t wide[2];
  // Stages of tiles that are read ahead: keys first.
  uint32_t ring, stage_bytes;
  uint32_t values, scales, entries;
  uint32_t stages;
  // The addresses of the rows of the next tiles.
  uint32_t rows;
};

struct Args {
  Strided queries;
  ReadPart parts[2];
  // Of the slab and of the staging slab: the first page of this layer, the distance from one block to the next in bytes, and
  // the number of blocks.
  uint64_t slabs[2], block_bytes[2];
  uint32_t blocks[2];
  uint64_t out, sums;
  // The kept rows of all sequences, by share: the largest score and the sum of each row, and its unscaled output.
  uint64_t split_states, split_rows;
  uint64_t mask;
  // The distances along sequence, head, query and key.
  uint64_t mask_strides[4];
  int64_t window, sinks;
  // The end of the blocks of each sequence in this launch, in one list of all blocks.
  Numbers sequences, ends, tables, positions, logits, seen, depths;
  // The queries of stems: the batch row and the token of each.
  Numbers members;
  // Table entries that differ between layers.
  Numbers tails;
  // The slope of each query head; and the position of each query of stems, if there are slopes.
  Numbers slopes, member_positions;
  float scale, softcap;
  uint32_t query_format;
  uint32_t is_paged, is_ragged, is_causal;
  // One bit for keys, and one for values.
  uint32_t rotated;
  uint32_t query_heads;
  // True if there is one list of positions for all sequences.
  uint32_t has_shared_positions;
  // The number of sequences and stems; stems follow sequences.
  uint32_t count;
  Divisor block_size, group;
  Shared shared;
  List list;
};

// The launcher asserts the same size.
static_assert(sizeof(Args) == 2840, "the same size as in src/attend/args.rs");

template <typename T> DEVICE const T *numbers_at(const Args &args, const Numbers &of) {
  return reinterpret_cast<const T *>(of.far ? of.far : reinterpret_cast<uint64_t>(args.list.items<unsigned char>()) + of.near);
}

// The sequence that a block belongs to, and the block's index among those of the sequence: all lanes of a warp take part.
DEVICE uint32_t sequence_of(const Args &args, uint32_t &place) {
  const uint32_t *ends = numbers_at<uint32_t>(args, args.ends);
  uint32_t first = 0, count = args.count;
  // Finds the first sequence whose blocks end after this one, by a search in 32 parts: each lane checks the last entry of
  // one part.
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

DEVICE bool is_rotated(const Args &args, int part) { return args.rotated >> part & 1; }

DEVICE bool has(const Numbers &of) { return of.far || of.near != NOWHERE; }

} // namespace attend
