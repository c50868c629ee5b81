//! Reads a view: into the host's memory, or into a buffer of its own, without gaps.
//!
//! Three forms: on bytes, by a device's kernels, and in candle's operations. Either refuses a view whose slots were written over, before it copies and,
//! where it takes candle's lock more than once, behind the last time as well. O(bytes read).

use super::{Place, copy, launched, portable};
use crate::base::error::Result;
use crate::device::form::Form;
use crate::tensor::buffer::Buffer;
use crate::tensor::view::View;

/// Copies the elements of `view` to `out`, which is as long.
pub(crate) fn gather(view: &View, out: &mut [u8]) -> Result<()> {
    match view.buffer.form()? {
        Form::Bytes => view.buffer.inspect(|bytes| {
            view.check()?;
            on_bytes(view, bytes, out);
            Ok(())
        }),
        Form::Launched(stream) => {
            view.check()?;
            launched::read(&stream, view, out)?;
            view.check()
        }
        Form::Portable => {
            view.check()?;
            for (to, tensor) in targets(view).zip(view.tensors()) {
                portable::fetch(&tensor?, view.dtype(), out, to)?;
            }
            view.check()
        }
    }
}

/// Copies the elements of `view` to the front of `target`, which has one slot of so many elements.
pub(crate) fn gather_to(view: &View, target: &Buffer) -> Result<()> {
    view.check()?;
    match target.form()? {
        Form::Bytes => target.edit(&[&view.buffer.tensor], |target, sources| on_bytes(view, sources[0], target))?,
        Form::Launched(stream) => launched::gather(&stream, view, target)?,
        Form::Portable => {
            let axis = view.sequence_axis().unwrap_or(0);
            let stretches: usize = view.dims()[..axis].iter().product();
            let grid = if view.elements() == 0 { None } else { portable::Grid::new(&target.tensor, stretches)? };
            for (piece, tensor) in view.pieces().zip(view.tensors()).filter(|_| grid.is_some()) {
                if let Some(grid) = &grid {
                    portable::put(grid, axis, piece.token, &portable::Strided::Tensor(tensor?))?;
                }
            }
        }
    }
    view.check()
}

fn on_bytes(view: &View, bytes: &[u8], out: &mut [u8]) {
    for (piece, to) in view.pieces().zip(targets(view)) {
        copy(&piece.dims, view.dtype().bytes(), out, to, bytes, piece.place);
    }
}

/// Where the pieces of a view go in memory without gaps.
pub(super) fn targets(view: &View) -> impl Iterator<Item = Place> + '_ {
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
