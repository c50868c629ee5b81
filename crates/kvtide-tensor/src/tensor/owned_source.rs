//! A source that outlives the call it was passed to, for background calls.
//!
//! The caller's memory is copied, but only the part that is read. A view is pinned and read in place.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::memory::{Budget, Lease};
use crate::base::zeroed::zeroed_bytes;
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// A tensor that owns or pins its memory.
#[derive(Debug)]
pub struct OwnedSource(Owned);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are a few for each call, and they are not moved")]
enum Owned {
    Tensor(Tensor),
    View(View),
    Copy { bytes: Vec<u8>, dtype: DType, dims: Dims, _lease: Lease },
}

impl OwnedSource {
    /// Takes over the current content of `source`; a copy is counted in `budget`.
    pub fn new(source: &Source<'_>, argument: &'static str, budget: &Arc<Budget>) -> Result<Self> {
        Ok(OwnedSource(match source {
            Source::Tensor(tensor) => Owned::Tensor((*tensor).clone()),
            Source::View(view) => Owned::View(view.pinned()?),
            Source::Host(host) => {
                let whole = host.range().is_none();
                let dims = if whole { host.dims() } else { source.resolve(argument, source.axis())?.dims };
                let wanted = dims.elements().and_then(|elements| elements.checked_mul(host.dtype().bytes()));
                let wanted = wanted.ok_or_else(|| budget.refusal(u64::MAX))?;
                let lease = budget.take(wanted as u64)?;
                let (dtype, bytes) = source.row_major(argument)?;
                let bytes = match bytes {
                    Cow::Owned(bytes) => bytes,
                    Cow::Borrowed(bytes) => {
                        let mut copy = zeroed_bytes(wanted)?;
                        copy.copy_from_slice(bytes);
                        copy
                    }
                };
                Owned::Copy { bytes, dtype, dims, _lease: lease }
            }
        }))
    }

    /// The source, as an argument of a call.
    pub fn source(&self) -> Result<Source<'_>> {
        Ok(match &self.0 {
            Owned::Tensor(tensor) => Source::Tensor(tensor),
            Owned::View(view) => Source::View(view),
            Owned::Copy { bytes, dtype, dims, .. } => Source::Host(HostTensor::new("source", bytes, *dtype, dims)?),
        })
    }
}

#[expect(dead_code, reason = "keeps the promise that it may move to another thread")]
fn owned_sources_are_send() {
    fn send<T: Send + Sync>() {}
    send::<OwnedSource>();
}
