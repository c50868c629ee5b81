//! Copies rows from one buffer to another, and tokens between the host's memory and a buffer.
//!
//! Three forms: on bytes, by a device's kernels, and in candle's operations. O(bytes copied).

use kvtide_core::Run;

use super::{Place, Strided, copy, launched, portable, rows};
use crate::base::error::Result;
use crate::device::edit::inspect;
use crate::device::form::Form;
use crate::tensor::buffer::Buffer;
use crate::tensor::resolved::Resolved;

/// Copies the rows of `run` in one buffer to `slot` of another one of the same shape: all parts in one operation.
pub(crate) fn copy_rows(source: &Buffer, run: Run, target: &Buffer, slot: u32) -> Result<()> {
    let count = source.shape.parts * source.stretch_count();
    let bytes = run.len as usize * source.row_bytes();
    match target.form()? {
        Form::Bytes => {
            let (to, from) = (target.stretches(0, slot), source.stretches(0, run.start));
            target.edit(&[&source.tensor], |target, sources| rows(count, bytes, target, to, sources[0], from))
        }
        Form::Launched(stream) => launched::copy_rows(&stream, source, run, target, slot),
        Form::Portable => {
            let (Some(from), Some(to)) = (source.grid()?, target.grid()?) else { return Ok(()) };
            let element = source.shape.dtype.bytes();
            let row = source.row_bytes() / element;
            let (start, slot) = (run.start as usize * row, slot as usize * row);
            portable::relay(count, bytes / element, element, &from, start, &to, slot)
        }
    }
}

/// Copies tokens of the host's memory to the only slot of `target`, without gaps.
pub(crate) fn upload(tokens: Strided<'_>, target: &Buffer) -> Result<()> {
    match (target.form()?, &tokens) {
        (Form::Bytes, Strided::Host { bytes, dims, dtype, from }) => {
            let to = Place { offset: 0, strides: dims.contiguous_strides().scaled(dtype.bytes()) };
            target.edit(&[], |target, _| copy(dims, dtype.bytes(), target, to, bytes, *from))
        }
        _ => match target.grid()? {
            Some(grid) => portable::put(&grid, 0, 0, &tokens),
            None => Ok(()),
        },
    }
}

/// Copies the tokens of `source` to `out`, which is as long, without gaps.
pub(crate) fn collect(source: &Resolved<'_>, out: &mut [u8]) -> Result<()> {
    let strides = source.dims.contiguous_strides().scaled(source.dtype.bytes());
    let whole = Place { offset: 0, strides };
    let form = source.tensor().map(|tensor| Form::of(tensor.device())).transpose()?;
    match (form, source.tensor()) {
        (Some(Form::Portable | Form::Launched(_)), Some(_)) => {
            source.each_strided(0, source.tokens(), |done, tokens| match tokens {
                Strided::Tensor(tensor) => {
                    let to = Place { offset: done * strides[source.axis()], ..whole };
                    portable::fetch(&tensor, source.dtype, out, to)
                }
                Strided::Host { .. } => unreachable!("a source with a tensor is no host memory"),
            })
        }
        (_, Some(tensor)) => inspect(tensor, |bytes| {
            source.copy_strided(bytes, 0, source.tokens(), out, whole);
            Ok(())
        }),
        (_, None) => {
            source.copy_strided(source.bytes(&mut std::iter::empty()), 0, source.tokens(), out, whole);
            Ok(())
        }
    }
}
