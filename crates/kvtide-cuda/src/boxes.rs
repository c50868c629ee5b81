//! Copies of boxes of elements between strided places: any number of them in one launch.
//!
//! Neighbouring axes that are contiguous on both sides are joined first, so that a write of K or V is one run of bytes per
//! head. O(bytes); O(boxes) on the host.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::error::Result;
use crate::kernel::{COPY_BOXES, Grid};
use crate::list::List;
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// A copy of a box of elements from one place to another. The places must not overlap, neither with each other nor with
/// those of other boxes of the call.
#[derive(Clone, Copy, Debug)]
pub struct BoxCopy<'a> {
    /// The target memory.
    pub target: Span<'a>,
    /// The distances in bytes from one element to the next in it, for each axis; its first element is at the span's start.
    pub target_strides: &'a [usize],
    /// The source memory.
    pub source: Span<'a>,
    /// The distances in bytes in the source.
    pub source_strides: &'a [usize],
    /// The number of elements along each axis.
    pub dims: &'a [usize],
    /// The bytes of an element.
    pub element: usize,
}

/// The number of axes in the kernel, in addition to the bytes of a row.
const AXES: usize = 3;

/// The most units of one box in the kernel, so that indices fit in 31 bits.
const UNITS_MAX: usize = 1 << 30;

/// A box in the format of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Device {
    target: u64,
    source: u64,
    target_strides: [u64; AXES],
    source_strides: [u64; AXES],
    units: u32,
    row: Divisor,
    inner: Divisor,
    middle: Divisor,
    unused: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    boxes: List,
}

/// An axis: its number of elements, and the distances between them in bytes, in target and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    strides: [usize; 2],
}

/// Joined axes: contiguous bytes, and the remaining axes, outermost first.
#[derive(Clone, Debug)]
struct Joined {
    row: usize,
    axes: Vec<Axis>,
}

impl BoxCopy<'_> {
    fn joined(&self) -> Joined {
        let mut joined = Joined { row: self.element, axes: Vec::with_capacity(self.dims.len()) };
        for axis in (0..self.dims.len()).rev().filter(|&axis| self.dims[axis] != 1) {
            let next = Axis { size: self.dims[axis], strides: [self.target_strides[axis], self.source_strides[axis]] };
            let reach = |last: &Axis| last.strides.map(|stride| stride * last.size);
            match joined.axes.last_mut() {
                None if next.strides == [joined.row; 2] => joined.row *= next.size,
                Some(last) if next.strides == reach(last) => last.size *= next.size,
                _ => joined.axes.push(next),
            }
        }
        joined.axes.reverse();
        joined
    }

    /// Panics if the box reaches outside its spans.
    fn check(&self) {
        self.target.check_writable();
        assert!(self.dims.len() == self.target_strides.len() && self.dims.len() == self.source_strides.len());
        let reach = |strides: &[usize]| {
            self.dims.iter().zip(strides).fold(self.element, |end, (size, stride)| end + (size - 1) * stride)
        };
        let fits =
            reach(self.target_strides) <= self.target.bytes() && reach(self.source_strides) <= self.source.bytes();
        assert!(fits, "a copy reaches outside its memory");
    }
}

/// Copies boxes, each once.
pub fn copy_boxes(stream: &Stream, boxes: &[BoxCopy<'_>]) -> Result<()> {
    let mut found = Vec::with_capacity(boxes.len());
    for of in boxes.iter().filter(|of| !of.dims.contains(&0) && of.element > 0) {
        of.check();
        split(of.target.address(), of.source.address(), &of.joined(), &mut found);
    }
    for boxes in found.chunks(Grid::INNER_MAX as usize) {
        launch(stream, boxes)?;
    }
    Ok(())
}

/// Divides a box along its outer axes until it fits the kernel's axes and indices.
fn split(target: u64, source: u64, joined: &Joined, found: &mut Vec<(u64, u64, Joined)>) {
    let bytes = joined.axes.iter().map(|axis| axis.size).product::<usize>() * joined.row;
    match joined.axes.split_first() {
        Some((outer, inner)) if joined.axes.len() > AXES || bytes > UNITS_MAX => {
            let rest = Joined { row: joined.row, axes: inner.to_vec() };
            for index in 0..outer.size {
                let [to, from] = outer.strides.map(|stride| (index * stride) as u64);
                split(target + to, source + from, &rest, found);
            }
        }
        None if bytes > UNITS_MAX => {
            for done in (0..bytes).step_by(UNITS_MAX) {
                let row = UNITS_MAX.min(bytes - done);
                found.push((target + done as u64, source + done as u64, Joined { row, axes: Vec::new() }));
            }
        }
        _ => found.push((target, source, joined.clone())),
    }
}

fn launch(stream: &Stream, boxes: &[(u64, u64, Joined)]) -> Result<()> {
    const THREADS: usize = 256;
    /// The units that a thread copies at once.
    const EACH: usize = 4;
    let numbers = boxes.iter().flat_map(|(target, source, joined)| {
        let strides = joined.axes.iter().flat_map(|axis| axis.strides.map(|stride| stride as u64));
        [*target, *source, joined.row as u64].into_iter().chain(strides)
    });
    let unit = Unit::WIDEST.dividing(numbers);
    let devices: Vec<Device> =
        boxes.iter().map(|(target, source, joined)| device(*target, *source, joined, unit)).collect();
    let most = devices.iter().map(|of| of.units).max().unwrap_or(0) as usize;
    let listed = stream.list(&devices)?;
    let grid = Grid::new([most.div_ceil(THREADS * EACH), boxes.len(), 1], THREADS);
    stream.launch(unit.of(&COPY_BOXES), grid, &Args { boxes: listed.list })
}

fn device(target: u64, source: u64, joined: &Joined, unit: Unit) -> Device {
    let none = Axis { size: 1, strides: [0; 2] };
    let missing = AXES - joined.axes.len();
    let axes: [Axis; AXES] =
        std::array::from_fn(|axis| if axis < missing { none } else { joined.axes[axis - missing] });
    let row = joined.row / unit.bytes();
    Device {
        target,
        source,
        target_strides: axes.map(|axis| axis.strides[0] as u64),
        source_strides: axes.map(|axis| axis.strides[1] as u64),
        units: (axes.iter().map(|axis| axis.size).product::<usize>() * row) as u32,
        row: Divisor::new(row),
        inner: Divisor::new(axes[2].size),
        middle: Divisor::new(axes[1].size),
        unused: 0,
        padding: 0,
    }
}
