//! Reads a view: into the host's memory, or into a buffer of its own, without gaps.
//!
//! Two forms: on bytes, and in candle's operations. Either refuses a view whose slots were written over, before it copies and,
//! where it takes candle's lock more than once, behind the last time as well. O(bytes read).

use super::{Kernels, Place, copy, portable};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::view::View;

/// Copies the elements of `view` to `out`, which is as long.
pub(crate) fn gather(view: &View, out: &mut [u8]) -> Result<()> {
    match Kernels::current()? {
        Kernels::Portable => {
            view.check()?;
            for (to, tensor) in targets(view).zip(view.tensors()) {
                portable::fetch(&tensor?, view.dtype(), out, to)?;
            }
            view.check()
        }
        _ => view.buffer.inspect(|bytes| {
            view.check()?;
            on_bytes(view, bytes, out);
            Ok(())
        }),
    }
}

/// Copies the elements of `view` to the front of `target`, which has one slot of so many elements.
pub(crate) fn gather_to(view: &View, target: &Buffer) -> Result<()> {
    view.check()?;
    match Kernels::current()? {
        Kernels::Portable => {
            let axis = view.sequence_axis().unwrap_or(0);
            let stretches: usize = view.dims()[..axis].iter().product();
            let grid = if view.elements() == 0 { None } else { portable::Grid::new(&target.tensor, stretches)? };
            for (piece, tensor) in view.pieces().zip(view.tensors()).filter(|_| grid.is_some()) {
                if let Some(grid) = &grid {
                    portable::put(grid, axis, piece.token, &portable::Strided::Tensor(tensor?))?;
                }
            }
        }
        _ => target.edit(&[&view.buffer.tensor], |bytes, sources| on_bytes(view, sources[0], bytes))?,
    }
    view.check()
}

fn on_bytes(view: &View, bytes: &[u8], out: &mut [u8]) {
    for (piece, to) in view.pieces().zip(targets(view)) {
        copy(&piece.dims, view.dtype().bytes(), out, to, bytes, piece.place);
    }
}

/// Where the pieces of a view go in memory without gaps.
fn targets(view: &View) -> impl Iterator<Item = Place> + '_ {
    let strides = view.dims().contiguous_strides().scaled(view.dtype().bytes());
    let mut token = 0;
    let runs = view.sequence_axis().into_iter().flat_map(|axis| view.runs().parts().map(|run| (axis, run)));
    let runs = runs.filter(|(_, run)| !run.is_empty()).map(move |(axis, run)| {
        let offset = token * strides[axis];
        token += run.len as usize;
        Place { offset, strides }
    });
    let whole = view.sequence_axis().is_none().then_some(Place { offset: 0, strides });
    whole.into_iter().chain(runs)
}
