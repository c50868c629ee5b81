//! Moves rows inside a buffer, possibly overlapping.
//!
//! A long move is divided into pieces that do not overlap their own source, which are copied as boxes, one launch after the
//! other. Moves that are short, or would need many pieces, go by columns: each thread carries out all moves for its unit of
//! a row.

use bytemuck::{Pod, Zeroable};

use crate::boxes::{BoxCopy, copy_boxes};
use crate::divisor::Divisor;
use crate::error::Result;
use crate::kernel::{Grid, SHIFT};
use crate::list::List;
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// Rows in stretches of equal length, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct BufferRows {
    /// The number of stretches.
    pub count: usize,
    /// The number of rows in each.
    pub rows: usize,
    /// The bytes of a row.
    pub row: usize,
}

/// Moves rows `source .. source + rows` of every stretch to `target`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Move {
    /// The first row that is moved.
    pub source: u32,
    /// The row that it becomes.
    pub target: u32,
    /// The number of rows.
    pub rows: u32,
    /// Must be 0.
    pub unused: u32,
}

impl Move {
    fn way(&self) -> u32 {
        self.source.abs_diff(self.target)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    buffer: u64,
    stretch_bytes: u64,
    row_bytes: u64,
    stretches: u32,
    moves: u32,
    row_units: Divisor,
    unused: u32,
    list: List,
}

/// The number of rows from which on a move gets its own launches.
const LONG: u32 = 512;
/// The most pieces of a move.
const PIECES_MAX: u32 = 16;

/// Carries out moves, in order.
pub fn shift(stream: &Stream, buffer: Span<'_>, stretches: BufferRows, moves: &[Move]) -> Result<()> {
    let BufferRows { count, rows, row } = stretches;
    buffer.check_writable();
    assert!(count * rows * row <= buffer.bytes(), "stretches reach outside their memory");
    for moved in moves {
        let end = moved.source.max(moved.target) as usize + moved.rows as usize;
        assert!(end <= rows, "a move reaches outside its stretch");
    }
    let is_short = |moved: &Move| moved.rows < LONG || moved.rows.div_ceil(moved.way().max(1)) > PIECES_MAX;
    let mut rest: Vec<Move> = moves.iter().copied().filter(|moved| moved.way() > 0 && moved.rows > 0).collect();
    while !rest.is_empty() {
        let short = rest.iter().take_while(|moved| is_short(moved)).count();
        by_columns(stream, buffer, stretches, &rest[..short])?;
        if let Some(moved) = rest.get(short) {
            in_pieces(stream, buffer, stretches, moved)?;
        }
        rest.drain(..(short + 1).min(rest.len()));
    }
    Ok(())
}

fn in_pieces(
    stream: &Stream,
    buffer: Span<'_>,
    BufferRows { count, rows, row }: BufferRows,
    moved: &Move,
) -> Result<()> {
    let (strides, way) = ([rows * row, row, 1], moved.way());
    let pieces: Vec<_> = (0..moved.rows).step_by(way as usize).map(|done| (done, way.min(moved.rows - done))).collect();
    let forwards = moved.target < moved.source;
    for at in 0..pieces.len() {
        // Pieces go in the order in which none overwrites rows of a piece that is still to be copied.
        let (done, len) = pieces[if forwards { at } else { pieces.len() - 1 - at }];
        let from = |first: u32| buffer.from((first + done) as usize * row);
        copy_boxes(
            stream,
            &[BoxCopy {
                target: from(moved.target),
                target_strides: &strides,
                source: from(moved.source),
                source_strides: &strides,
                dims: &[count, len as usize, row],
                element: 1,
            }],
        )?;
    }
    Ok(())
}

fn by_columns(
    stream: &Stream,
    buffer: Span<'_>,
    BufferRows { count, rows, row }: BufferRows,
    moves: &[Move],
) -> Result<()> {
    const THREADS: usize = 128;
    if moves.is_empty() || row == 0 {
        return Ok(());
    }
    let unit = Unit::WIDEST.dividing([buffer.address(), row as u64]);
    let row_units = row / unit.bytes();
    let listed = stream.list(moves)?;
    let args = Args {
        buffer: buffer.address(),
        stretch_bytes: (rows * row) as u64,
        row_bytes: row as u64,
        stretches: u32::try_from(count).expect("stretches of 32 bits"),
        moves: moves.len() as u32,
        row_units: Divisor::new(row_units),
        unused: 0,
        list: listed.list,
    };
    let columns = count * row_units;
    assert!(columns < 1 << 31, "columns of 31 bits");
    stream.launch(unit.of(&SHIFT), Grid::new([columns.div_ceil(THREADS), 1, 1], THREADS), &args)
}
