// The keys that a query attends to, and the work of a block of threads.
//
// Keys are counted by index, windows by position. Positions grow with the index, so a rule on positions is a range of
// indices: the first and last key of a tile decide about the whole tile, and only tiles at an edge are checked key by key.
#pragma once

#include "args.cuh"

namespace attend {

// The keys of one sequence: their number, and the positions of its one or two runs.
struct Keys {
  int64_t positions[2];
  uint32_t counts[2];

  DEVICE uint32_t count() const { return counts[0] + counts[1]; }
  // The position after the last key.
  DEVICE int64_t end() const {
    return counts[1] > 0 || counts[0] == 0 ? positions[1] + counts[1] : positions[0] + counts[0];
  }
  DEVICE int64_t at(uint32_t index) const {
    return index < counts[0] ? positions[0] + index : positions[1] + (index - counts[0]);
  }
  // The number of keys of a run before a position.
  DEVICE static uint32_t before(int64_t position, int64_t first, uint32_t count) {
    const int64_t within = position - first;
    return position <= first ? 0 : within < int64_t(count) ? uint32_t(within) : count;
  }
  // The index of the first key at a position or after it.
  DEVICE uint32_t index_of(int64_t position) const {
    const uint32_t first = before(position, positions[0], counts[0]);
    return first < counts[0] ? first : first + before(position, positions[1], counts[1]);
  }
};

// Part of the list of all keys.
struct Range {
  uint32_t start, end;
};

// The rules of one sequence.
struct Rules {
  Keys keys;
  int64_t start, window, sinks;
  bool is_causal;
  // For a draft tree: its nodes are the last keys.
  uint32_t nodes, words;
  // The node of the first query; below 0 if that query is before the tree.
  int32_t first_node;
  const uint64_t *seen;
  const uint32_t *depths;

  // The ranges of keys that some query at positions `lowest` to `highest` attends to: the sinks, and the rest.
  DEVICE void ranges(int64_t lowest, int64_t highest, Range (&out)[2]) const {
    const uint32_t count = keys.count(), end = is_causal && !nodes ? keys.index_of(highest + 1) : count;
    const uint32_t tree = count - nodes;
    // If the second run begins within the tree, nodes of the first run have higher positions than their slots.
    const bool is_divided = keys.counts[1] > 0 && keys.counts[1] < nodes;
    uint32_t first = keys.index_of(start);
    if (is_divided && first > tree) first = tree;
    uint32_t behind = first, sink = first;
    if (window) {
      const uint32_t in_window = keys.index_of(lowest + 1 - window), of_sinks = keys.index_of(sinks);
      behind = in_window > first ? in_window : first;
      // A node's position may be lower than its slot's, so a node after the sinks may itself count as a sink.
      if ((is_divided || keys.end() - nodes < sinks) && behind > tree) behind = tree;
      sink = of_sinks < behind ? of_sinks : behind;
    }
    if (behind > end) behind = end;
    if (sink > behind) sink = behind;
    out[0] = {first < sink ? first : sink, sink};
    out[1] = {behind, end};
  }

  // True if every query at positions `lowest` to `highest` attends to all these keys.
  DEVICE bool shows_all(Range tile, int64_t lowest, int64_t highest) const {
    const int64_t first = keys.at(tile.start), last = keys.at(tile.end - 1);
    return (!nodes || tile.end + nodes <= keys.count()) && (!is_causal || last <= lowest) &&
           (!window || first > highest - window || last < sinks) && first >= start && lowest >= start;
  }

  // True for a node of the tree.
  DEVICE bool is_drafted(uint32_t index) const { return nodes && index + nodes >= keys.count(); }

  // The position of a key: a node's follows from its depth.
  DEVICE int64_t position(uint32_t index) const {
    return is_drafted(index) ? keys.end() - nodes + depths[index + nodes - keys.count()] : keys.at(index);
  }

  // True if a query, given by its position and its index among the queries, attends to a key.
  DEVICE bool shows(int64_t query, uint32_t place, uint32_t index) const {
    if (index >= keys.count()) return false;
    const bool drafted = is_drafted(index);
    if (drafted) {
      const uint32_t other = index + nodes - keys.count();
      const int64_t node = int64_t(first_node) + place;
      if (node < 0 || !(seen[uint64_t(node) * words + other / 64] >> (other % 64) & 1)) return false;
    }
    const int64_t key = position(index);
    return (drafted || !is_causal || key <= query) && (!window || query - key < window || key < sinks) && key >= start &&
           query >= start;
  }
};

constexpr uint32_t WORK_BYTES = 256;

// The work of one block: some rows of one sequence and KV head, and a share of the tiles that they attend to.
template <int Tile> struct Work {
  uint32_t sequence, kv_head, split;
  // The first row within the sequence, and the number of all rows: its queries, each with the heads that share the KV head.
  uint32_t first_row, rows;
  // The launcher's description of the sequence.
  Sequence of;
  // The number of keys of the sequence that may be read.
  uint32_t count;
  int64_t lowest, highest;
  Rules rules;
  uint32_t sink_tiles, sinks_from, rest_from;
  // The range of the tiles, in order.
  uint32_t from, to;

  DEVICE uint32_t tile(uint32_t index) const {
    return index < sink_tiles ? sinks_from + index : rest_from + index - sink_tiles;
  }

  // True if every row attends to the whole tile.
  DEVICE bool is_whole(const Args &args, uint32_t tile) const {
    const Range range = {tile * Tile, tile * Tile + Tile};
    return range.end <= count && !args.mask && rules.shows_all(range, lowest, highest);
  }
};

// The position of a query; the queries of a stem have different ones, which only slopes use.
DEVICE int64_t query_position(const Args &args, const Rules &rules, uint32_t first_query, uint32_t queries, uint32_t members,
                              uint32_t query) {
  if (members != NONE) {
    return has(args.member_positions) ? numbers_at<int64_t>(args, args.member_positions)[members + query] : rules.keys.end();
  }
  if (has(args.positions)) {
    return numbers_at<int64_t>(args, args.positions)[args.has_shared_positions ? query : first_query + query];
  }
  const int64_t node = int64_t(rules.first_node) + query;
  if (rules.nodes && node >= 0) return rules.keys.end() - rules.nodes + rules.depths[node];
  return rules.keys.end() - queries + query;
}

// Computes the work of a block with `Rows` rows: of the block at this index among those of a sequence.
template <int Rows, int Tile> APART void find_work(const Args &args, Work<Tile> &work, uint32_t sequence, uint32_t place) {
  const Sequence &of = work.of;
  const uint32_t rows = of.queries * args.group.by, row_tile = place / of.splits;
  // The last rows attend to the most keys, so they begin first.
  const uint32_t first_row = ((rows - 1) / Rows - row_tile) * Rows;
  const bool is_stem = of.members != NONE;
  work.sequence = sequence, work.kv_head = blockIdx.y, work.split = place - row_tile * of.splits;
  work.first_row = first_row, work.rows = rows;
  Rules &rules = work.rules;
  rules.keys = {{of.positions[0], of.positions[1]}, {of.keys[0], of.keys[1]}};
  // Every query of a stem attends to all of it.
  rules.start = of.start, rules.window = is_stem ? 0 : args.window, rules.sinks = args.sinks;
  rules.is_causal = args.is_causal && !is_stem;
  rules.nodes = of.nodes, rules.words = (of.nodes + 63) / 64, rules.first_node = of.first_node;
  rules.seen = rules.nodes ? numbers_at<uint64_t>(args, args.seen) + of.seen : nullptr;
  rules.depths = rules.nodes ? numbers_at<uint32_t>(args, args.depths) + of.depths : nullptr;
  work.count = rules.keys.count();
  const uint32_t end_row = first_row + Rows < rows ? first_row + Rows : rows;
  const uint32_t first = args.group.divide(first_row), last = args.group.divide(end_row - 1);
  work.lowest = work.highest = query_position(args, rules, of.first_query, of.queries, of.members, first);
  const bool in_order = is_stem || (!has(args.positions) && !rules.nodes);
  for (uint32_t query = in_order ? last : first + 1; query <= last; query++) {
    const int64_t position = query_position(args, rules, of.first_query, of.queries, of.members, query);
    if (position < work.lowest) work.lowest = position;
    if (position > work.highest) work.highest = position;
  }
  Range ranges[2];
  rules.ranges(work.lowest, work.highest, ranges);
  for (Range &range : ranges) {
    if (range.start < of.from) range.start = of.from;
  }
  const auto end_tile = [](Range range) { return (range.end + Tile - 1) / Tile; };
  const bool has_sinks = ranges[0].start < ranges[0].end, has_rest = ranges[1].start < ranges[1].end;
  work.sinks_from = ranges[0].start / Tile;
  const uint32_t sinks_to = has_sinks ? end_tile(ranges[0]) : work.sinks_from;
  work.sink_tiles = sinks_to - work.sinks_from;
  work.rest_from = ranges[1].start / Tile;
  if (has_sinks && work.rest_from < sinks_to) work.rest_from = sinks_to;
  const uint32_t rest_to = has_rest ? end_tile(ranges[1]) : 0;
  const uint64_t tiles = work.sink_tiles + (rest_to > work.rest_from ? rest_to - work.rest_from : 0);
  work.from = uint32_t(tiles * work.split / of.splits);
  work.to = uint32_t(tiles * (work.split + 1) / of.splits);
}

// One row: a query and one of its heads.
struct Row {
  bool is_there;
  uint32_t query, head;
  int64_t position;
};

template <int Tile> DEVICE Row row_of(const Args &args, const Work<Tile> &work, uint32_t row) {
  uint32_t rest = work.first_row + row;
  if (rest >= work.rows) return {false, 0, 0, 0};
  const uint32_t query = args.group.split(rest);
  return {true, query, work.kv_head * args.group.by + rest,
          query_position(args, work.rules, work.of.first_query, work.of.queries, work.of.members, query)};
}

// A scaled product under the cap: cap * tanh(x), where tanh(x) = 1 - 2 / (e^2x + 1). Near 0 that is a difference of almost equal
// numbers, so a series replaces it: with a cap far above the scores, every x is near 0. The launcher has divided the scale by the
// cap.
DEVICE float capped(const Args &args, float value) {
  const float square = value * value;
  const float terms = -1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315 + square * (62.0f / 2835)));
  const float tangent = square < 0.0625f ? value + value * square * terms : 1 - 2 / (numbers::power_of_e(2 * value) + 1);
  return args.softcap * tangent;
}

// The score of a key, from its product with a query; weights are exponentials of scores.
DEVICE float score(const Args &args, float product) {
  const float value = product * args.scale;
  return args.softcap == 0 ? value : capped(args, value);
}

// Like `score`, for tiles in which not every row attends to every key, or with a mask: out of line, because tiles at an edge
// are few.
template <int Tile>
APART float score_on_edge(const Args &args, const Work<Tile> &work, Row row, float product, uint32_t key) {
  if (!row.is_there || !work.rules.shows(row.position, row.query, key)) return -numbers::infinity();
  const float value = score(args, product);
  if (!args.mask) return value;
  const uint64_t at = work.sequence * args.mask_strides[0] + row.head * args.mask_strides[1] +
                      row.query * args.mask_strides[2] + key * args.mask_strides[3];
  const float added = *reinterpret_cast<const float *>(args.mask + at);
  // A hidden score may be NaN.
  return added == -numbers::infinity() ? added : value + added;
}

// The slope of a row's head.
DEVICE float slope_of(const Args &args, const Row &row) { return numbers_at<float>(args, args.slopes)[row.head]; }

// Computes the block's work for all threads, at the start of shared memory.
template <int Rows, int Tile> DEVICE void begin_work(const Args &args, Work<Tile> &work) {
  static_assert(sizeof(Work<Tile>) <= WORK_BYTES, "a block's work must fit");
  if (threadIdx.x < 32) {
    uint32_t place = blockIdx.x;
    const uint32_t sequence = sequence_of(args, place);
    // One load by the warp; later reads use this copy.
    const uint32_t *from = reinterpret_cast<const uint32_t *>(numbers_at<Sequence>(args, args.sequences) + sequence);
    for (uint32_t word = threadIdx.x; word < sizeof(Sequence) / 4; word += 32) reinterpret_cast<uint32_t *>(&work.of)[word] = from[word];
    warp_barrier();
    if (threadIdx.x == 0) find_work<Rows>(args, work, sequence, place);
  }
  block_barrier();
}

} // namespace attend
