// Rows of queries, keys and values: their addresses, the reading ahead of tiles, and the conversion of codes to numbers.
//
// ring    stages of tiles in their memory format: codes row by row, a word with the scale of each row, the table's entries
// wide    the tile that is multiplied, as numbers of one type; if rows have that type already, the ring itself
//
// The rows of a tile are an odd multiple of 16 bytes apart, so that eight neighbouring ones are in different banks.
#pragma once

#include "rules.cuh"

namespace attend {

DEVICE uint32_t warp() { return threadIdx.x / 32; }
DEVICE uint32_t lane() { return threadIdx.x % 32; }

constexpr uint32_t STAGED = 0x80000000u;

// The address of a page: in the staging slab if the entry says so.
DEVICE uint64_t page_of(const Args &args, uint32_t entry) {
  const uint32_t is_staged = entry >> 31, block = entry & ~STAGED, last = args.blocks[is_staged] - 1;
  return args.slabs[is_staged] + (block < last ? block : last) * args.block_bytes[is_staged];
}

// The table's entry for a key, and the key's slot.
template <int Tile>
DEVICE uint32_t entry_of(const Args &args, const Work<Tile> &work, const uint32_t *table, uint32_t key, uint32_t &slot) {
  slot = key;
  const uint32_t page = args.block_size.split(slot);
  const uint32_t entry = page < work.of.tail_from ? table[page] : numbers_at<uint32_t>(args, args.tails)[work.of.tail + page - work.of.tail_from];
  return args.blocks[1] ? entry : entry & ~STAGED;
}

// The address of a key's row in pages.
DEVICE uint64_t codes_of(const Section &section, uint64_t page, uint32_t head, uint32_t slot) {
  return page + section.codes + head * section.head_codes + uint64_t(slot) * section.row_bytes;
}

// The address of its scales; `bytes` is the size of a row's scale, or 0 if scales belong to channels.
DEVICE uint64_t scales_of(const Section &section, uint64_t page, uint32_t head, uint32_t slot, uint32_t bytes) {
  return page + section.scales + head * section.head_scales + uint64_t(slot) * bytes;
}

// The address of a row of a tensor or view.
DEVICE uint64_t row_of_strided(const Strided &rows, uint32_t batch, uint32_t head, uint32_t token) {
  const uint64_t start = token < rows.first ? rows.pieces[0] + token * rows.token
                                            : rows.pieces[1] + (token - rows.first) * rows.token;
  return start + batch * rows.batch + head * rows.head;
}

// Copies a unit of 16 bytes to shared memory, of which `valid` bytes belong to the row.
DEVICE void copy_unit(unsigned char *to, uint64_t from, uint32_t unit, uint32_t valid) {
  if (unit == 16) {
    copy_ahead(to, reinterpret_cast<const void *>(from), int(valid));
  } else {
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(from);
#pragma unroll 1
    for (uint32_t at = 0; at < 16; at++) to[at] = at < valid ? bytes[at] : 0;
  }
}

// The bytes of a row's own scales.
DEVICE uint32_t row_scale_bytes(const Section &section, int part) {
  return section.format == Q8 ? 2 : section.format == Q4 && part == 1 ? 4 : 0;
}

// The row that a thread looks up in each tile, keys then values: one per thread.
template <int Tile> struct Looked {
  uint32_t part, row;

  DEVICE Looked() : part(threadIdx.x / Tile), row(threadIdx.x % Tile) {}
  DEVICE bool is_there() const { return part < 2; }
};

// Starts loading the table's entry for the thread's row of a tile; 0 if there is none.
template <int Tile> DEVICE uint32_t ask_entry(const Args &args, const Work<Tile> &work, uint32_t tile) {
  const Looked<Tile> own;
  const uint32_t key = tile * Tile + own.row;
  if (!args.is_paged || !own.is_there() || key >= work.count) return 0;
  uint32_t slot = 0;
  return entry_of(args, work, numbers_at<uint32_t>(args, args.tables) + work.of.table, key, slot);
}

// The mark of a row that is not read, in an address that can be read.
constexpr uint64_t ABSENT = uint64_t(1) << 63;

// Writes the address of the thread's row of a tile. Done once per row, so that its many threads only copy.
template <int Tile>
DEVICE void find_row(const Args &args, const Work<Tile> &work, uint32_t tile, uint32_t entry, uint64_t *rows) {
  const Looked<Tile> own;
  if (!own.is_there()) return;
  const ReadPart &of = args.parts[own.part];
  const uint32_t key = tile * Tile + own.row;
  uint64_t from = ABSENT | (args.is_paged ? args.slabs[0] : of.rows.pieces[0]);
  if (key < work.count && args.is_paged) {
    uint32_t slot = key;
    args.block_size.split(slot);
    const Section &section = of.sections[entry >> 31];
    // Float rows among low-bit ones are read when they are widened.
    if (section.format == of.sections[0].format) from = codes_of(section, page_of(args, entry), work.kv_head, slot);
  } else if (key < work.count) {
    from = row_of_strided(of.rows, args.is_ragged ? 0 : work.sequence, work.kv_head, work.of.first_key + key);
  }
  rows[threadIdx.x] = from;
}

// The number of copies that a thread prepares before it starts them: their addresses are in shared memory, and a load does not
// move before a copy.
constexpr int COPIES = 4;

// Starts reading a tile of keys and values, whose rows were looked up; `entry` is that of the thread's row. After the last key
// there are zeros.
template <int Tile>
DEVICE void read_tile(const Args &args, const Work<Tile> &work, uint32_t tile, unsigned char *stage, const uint64_t *rows, uint32_t entry) {
  const uint32_t first = tile * Tile;
#pragma unroll
  for (int part = 0; part < 2; part++) {
    const ReadPart &of = args.parts[part];
    unsigned char *codes = stage + (part ? args.shared.values : 0);
    const uint64_t *found = rows + part * Tile;
    const uint32_t step = of.units.divide(blockDim.x);
    if (of.unit == 16 && step * of.units.by == blockDim.x && of.row_bytes % 16 == 0) {
      // Each thread copies the same unit of every so many rows.
      uint32_t unit = threadIdx.x;
      const uint32_t own = of.units.split(unit), stride = of.stride;
      codes += unit * 16;
      for (uint32_t begin = own; begin < Tile; begin += COPIES * step) {
        uint64_t from[COPIES];
#pragma unroll
        for (int at = 0; at < COPIES; at++) from[at] = begin + at * step < Tile ? found[begin + at * step] : ABSENT;
#pragma unroll
        for (int at = 0; at < COPIES; at++) {
          const uint32_t row = begin + at * step;
          const void *start = reinterpret_cast<const void *>((from[at] & ~ABSENT) + unit * 16);
          if (row < Tile) copy_whole_ahead(codes + row * stride, start, !(from[at] & ABSENT));
        }
      }
      continue;
    }
    for (uint32_t index = threadIdx.x; index < of.units.by * Tile; index += blockDim.x) {
      uint32_t unit = index;
      const uint32_t row = of.units.split(unit), rest = of.row_bytes - unit * 16;
      const uint64_t from = (found[row] & ~ABSENT) + unit * 16;
      copy_unit(codes + row * of.stride + unit * 16, from, of.unit, found[row] & ABSENT ? 0 : rest < 16 ? rest : 16);
    }
  }
  if (!args.is_paged || (args.parts[0].is_direct && args.parts[1].is_direct)) return;
  const uint32_t row = threadIdx.x, key = first + row;
  if (row < Tile) {
    uint32_t slot = key;
    args.block_size.split(slot);
    reinterpret_cast<uint32_t *>(stage + args.shared.entries)[row] = entry;
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const Section &section = args.parts[part].sections[0];
      const uint32_t bytes = row_scale_bytes(section, part);
      if (entry >> 31 || key >= work.count) continue;
      // Prefetches the scales of channels, once per page, so that they are near when the tile is widened.
      if (!bytes && section.format == Q4 && (slot == 0 || row == 0)) {
        const uint64_t scales = scales_of(section, page_of(args, entry), work.kv_head, 0, 0);
        for (uint32_t line = 0; line < 4 * args.parts[part].dim; line += 128) ask_ahead(reinterpret_cast<const void *>(scales + line));
      }
      if (!bytes) continue;
      const uint64_t from = scales_of(section, page_of(args, entry), work.kv_head, slot, bytes);
      // Reads the word that contains it: a scale of two bytes may be its second half.
      copy_word_ahead(stage + args.shared.scales + 4 * (part * Tile + row), reinterpret_cast<const void *>(from & ~uint64_t(3)));
    }
  }
}

// One element of a row.
DEVICE float element(const unsigned char *row, uint32_t format, uint32_t dim, uint32_t index) {
  switch (format) {
  case F32: return reinterpret_cast<const float *>(row)[index];
  case F16: return numbers::of_half(reinterpret_cast<const uint16_t *>(row)[index]);
  case BF16: return numbers::as_float(uint32_t(reinterpret_cast<const uint16_t *>(row)[index]) << 16);
  case F8E4M3: return numbers::of_f8(row[index]);
  case Q8: return numbers::of_byte(row[index]);
  }
  // In a group of 32 the first half is in low nibbles; the last group may be shorter.
  const uint32_t start = index & ~31u, rest = dim - start, half = ((rest < 32 ? rest : 32) + 1) / 2, within = index - start;
  const uint32_t code = row[start / 2 + (within < half ? within : within - half)];
  return numbers::of_nibble(within < half ? code : code >> 4);
}

// Eight elements, from a multiple of eight on, of a row that begins at a multiple of 16.
DEVICE void eight(float (&out)[8], const unsigned char *row, uint32_t format, uint32_t index) {
  if (format == F32) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float4 four = reinterpret_cast<const float4 *>(row + 4 * index)[half];
      out[4 * half] = four.x, out[4 * half + 1] = four.y, out[4 * half + 2] = four.z, out[4 * half + 3] = four.w;
    }
  } else if (format == F16 || format == BF16) {
    const uint4 words = *reinterpret_cast<const uint4 *>(row + 2 * index);
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int at = 0; at < 8; at++) {
      out[at] = format == F16 ? numbers::Half::half_of(all[at / 2], at % 2) : numbers::Brain::half_of(all[at / 2], at % 2);
    }
  } else {
    // For nibbles, eight bytes have this eighth in their low nibbles, or that of the next sixteen elements in their high
    // nibbles.
    const bool nibbles = format == Q4;
    const uint32_t from = nibbles ? (index & ~31u) / 2 + (index & 8) : index;
    const uint2 words = *reinterpret_cast<const uint2 *>(row + from);
    const uint32_t shift = nibbles && (index & 16) ? 4 : 0;
    const uint32_t all[2] = {words.x >> shift, words.y >> shift};
#pragma unroll
    for (int at = 0; at < 8; at++) {
      const uint32_t code = all[at / 4] >> 8 * (at % 4);
      out[at] = format == Q8 ? numbers::of_byte(code) : nibbles ? numbers::of_nibble(code) : numbers::of_f8(code & 0xff);
    }
  }
}

// Eight words from an address on, with zeros from word `count` on.
DEVICE void eight_words(uint32_t (&out)[8], uint64_t from, uint32_t count) {
  if (from % 16 == 0 && count >= 8) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 four = reinterpret_cast<const uint4 *>(from)[half];
      out[4 * half] = four.x, out[4 * half + 1] = four.y, out[4 * half + 2] = four.z, out[4 * half + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int at = 0; at < 8; at++) out[at] = uint32_t(at) < count ? reinterpret_cast<const uint32_t *>(from)[at] : 0;
  }
}

// Rotates a row in place, as keys were before they were quantised: all lanes of a warp take part.
DEVICE void rotate(float *row, uint32_t dim) {
  const uint32_t size = dim & (0 - dim);
  for (uint32_t half = 1; half < size; half *= 2) {
    warp_barrier();
    for (uint32_t pair = lane(); pair < dim / 2; pair += 32) {
      const uint32_t low = pair / half * 2 * half + pair % half;
      const float a = row[low], b = row[low + half];
      row[low] = a + b, row[low + half] = a - b;
    }
  }
  warp_barrier();
  const float factor = 1 / sqrtf(float(size));
  for (uint32_t index = lane(); index < dim; index += 32) row[index] *= factor;
}

// Writes eight numbers in the type that is multiplied.
template <typename W> DEVICE void put_eight(unsigned char *to, const float (&of)[8]) {
  if constexpr (sizeof(W) == 4) {
    reinterpret_cast<float4 *>(to)[0] = {of[0], of[1], of[2], of[3]};
    reinterpret_cast<float4 *>(to)[1] = {of[4], of[5], of[6], of[7]};
  } else {
    *reinterpret_cast<uint4 *>(to) = {W::pair(of[0], of[1]), W::pair(of[2], of[3]), W::pair(of[4], of[5]), W::pair(of[6], of[7])};
  }
}

} // namespace attend
