//! Selects the kernel of a call, and the layout of its shared memory.
//!
//! ```text
//! work | rows | queries | scratch | states | wide keys | wide values | stage 0 | stage 1 | ...
//!                                          | output, once all tiles are done
//! ```
//!
//! Both depend on sizes and formats only, never on the content of memory: the same call gives the same bits each time.

use super::args::{ReadPart, Shared};
use super::rows::RowFormat;
use crate::kernel::{
    ATTEND_DECODE_BF16, ATTEND_DECODE_F16, ATTEND_FLOATS, ATTEND_PREFILL_BF16, ATTEND_PREFILL_F16, Kernel, SharedRoom,
};

/// The rows of a block in a launch for few rows, and the most rows of a sequence for which it is used.
pub(super) const FEW_ROWS: usize = 16;

/// Bytes at the start of shared memory for the description of a block's work.
const WORK_BYTES: usize = 256;

/// The widest row that the kernels support.
pub(super) const DIM_MAX: usize = 512;

/// The widest row that tensor cores multiply.
const TENSOR_DIM_MAX: usize = 256;

/// A kernel with its sizes.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub kernel: &'static Kernel,
    pub threads: usize,
    /// The rows of a block.
    pub rows: usize,
    /// The keys of a tile.
    tile: usize,
    /// The elements of a row in shared memory, and the bytes of each.
    width: usize,
    bytes: usize,
}

impl Shape {
    /// The kernel for queries, keys and values of these formats; `is_wide` if sequences have many rows.
    pub fn new(query: RowFormat, parts: [RowFormat; 2], dims: [usize; 2], is_wide: bool) -> Shape {
        let dim = dims[0].max(dims[1]);
        let by_tensor_cores =
            query != RowFormat::F32 && parts.iter().all(|&format| format == query || format.is_low_bit());
        if !by_tensor_cores || dim > TENSOR_DIM_MAX {
            let place = [64, 128, 256].iter().filter(|&&width| dim > width).count();
            let (width, tile) = ([64, 128, 256, 512][place], if place == 3 { 8 } else { 32 });
            return Shape { kernel: ATTEND_FLOATS[place], threads: 128, rows: FEW_ROWS, tile, width, bytes: 4 };
        }
        let place = [64, 96, 128].iter().filter(|&&width| dim > width).count();
        let warps = if place == 3 { 2 } else { 4 };
        let kernels = match (is_wide, query) {
            (false, RowFormat::F16) => &ATTEND_DECODE_F16,
            (false, _) => &ATTEND_DECODE_BF16,
            (true, RowFormat::F16) => &ATTEND_PREFILL_F16,
            (true, _) => &ATTEND_PREFILL_BF16,
        };
        Shape {
            kernel: kernels[place],
            threads: 32 * warps,
            rows: if is_wide { 16 * warps } else { FEW_ROWS },
            tile: 16 * warps,
            width: [64, 96, 128, 256][place],
            bytes: 2,
        }
    }

    /// True if rows of a part are multiplied directly from the stage, without widening.
    pub fn is_direct(&self, query: RowFormat, format: RowFormat, dim: usize, unit: usize) -> bool {
        let own = if self.bytes == 4 { RowFormat::F32 } else { query };
        format == own && unit == 16 && dim > 0 && dim.is_multiple_of(if self.bytes == 4 { 4 } else { 16 })
    }

    /// The layout of shared memory, and its size; `None` if the device has too little.
    pub fn shared(&self, parts: &[ReadPart; 2], room: SharedRoom) -> Option<(Shared, usize)> {
        let laid = [3, 2, 1].map(|stages| self.laid_out(parts, stages));
        let twice = laid[..2].iter().find(|laid| laid.1 <= room.twice);
        twice.or_else(|| laid[1..].iter().find(|laid| laid.1 <= room.most)).copied()
    }

    fn laid_out(&self, parts: &[ReadPart; 2], stages: usize) -> (Shared, usize) {
        let warps = self.threads / 32;
        let row = self.width * self.bytes + 16;
        let rows = WORK_BYTES;
        // An address for each row of the tiles that are located ahead (`Ring` in `kernels/attend/tiles.cuh`).
        let queries = rows + stages.max(2) * 2 * self.tile * 8;
        let scratch = queries + self.rows * row;
        let states = scratch + warps * self.width * 4;
        // Two floats for each row of each warp; and for each warp the weights of a tile, four rows for each key.
        let weights = if self.bytes == 4 { warps * self.tile * 16 } else { 0 };
        let keys = states + self.rows.max(16 * warps) * 8 + weights;
        let wide = |part: &ReadPart| if part.is_direct == 1 { 0 } else { self.tile * row };
        let values = keys + wide(&parts[0]);
        let ring = values + wide(&parts[1]);
        let in_stage = self.tile * parts[0].stride as usize;
        let scales = in_stage + self.tile * parts[1].stride as usize;
        // Rows that are multiplied directly have no scales and need no table entries.
        let words = if parts.iter().all(|part| part.is_direct == 1) { 0 } else { 4 * self.tile };
        let entries = scales + 2 * words;
        let stage_bytes = entries + words;
        let output = keys + self.rows * (self.width + 4) * 4;
        let [rows, queries, scratch, states, keys, values, ring, in_stage, scales, entries, stage, count] =
            [rows, queries, scratch, states, keys, values, ring, in_stage, scales, entries, stage_bytes, stages]
                .map(|bytes| bytes as u32);
        let shared = Shared {
            queries,
            scratch,
            states,
            wide: [keys, values],
            ring,
            stage_bytes: stage,
            values: in_stage,
            scales,
            entries,
            stages: count,
            rows,
        };
        (shared, output.max(ring as usize + stages * stage_bytes))
    }
}

/// The distance in bytes between rows of a tile that is read: an odd multiple of 16, so that eight neighbours are in
/// different banks.
pub(super) fn stride(row_bytes: usize) -> usize {
    row_bytes.div_ceil(16) / 2 * 32 + 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_lie_in_different_banks() {
        for row_bytes in 0..600 {
            let stride = stride(row_bytes);
            assert!(stride >= row_bytes && stride <= row_bytes + 31 && stride % 32 == 16, "{row_bytes}: {stride}");
        }
    }

    #[test]
    fn three_tiles_of_common_rows_fit_twice_on_a_multiprocessor() {
        // The sizes of a 9.0, whose blocks have 227 KiB of 228.
        let room = SharedRoom { most: 227 << 10, twice: (228 << 9) - (1 << 10) };
        // Low-bit rows of 128 elements fit twice on an 8.0 too, with two tiles in flight.
        let small = SharedRoom { most: 163 << 10, twice: (164 << 9) - (1 << 10) };
        let shape = Shape::new(RowFormat::Bf16, [RowFormat::Q8; 2], [128; 2], false);
        let part = ReadPart { stride: stride(128) as u32, ..ReadPart::default() };
        let (shared, bytes) = shape.shared(&[part; 2], small).unwrap();
        assert!(shared.stages == 2 && bytes <= small.twice, "{bytes}");
        for dim in [64, 96, 128, 256] {
            let shape = Shape::new(RowFormat::Bf16, [RowFormat::Bf16; 2], [dim; 2], false);
            let part = ReadPart { stride: stride(2 * dim) as u32, is_direct: 1, ..ReadPart::default() };
            let (shared, bytes) = shape.shared(&[part; 2], room).unwrap();
            assert_eq!(shared.stages, 3, "{dim}");
            assert!(bytes <= room.twice, "{dim}: {bytes}");
        }
    }
}
