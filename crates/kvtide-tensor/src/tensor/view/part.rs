//! Parts of a view, and other shapes of it, without a copy where there can be none.

use std::sync::Arc;

use kvtide_core::counted;

use super::View;
use crate::base::dims::Dims;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;

impl View {
    /// The part `start .. start + len` along `axis`, without a copy.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<View> {
        let dims = self.region.dims;
        let Some(&size) = dims.get(axis) else {
            return Err(Error::argument("dim", axis, format!("below {}, the number of dimensions", dims.len())));
        };
        if start > size {
            return Err(Error::argument("start", start, format!("at most {size}, the size of dimension {axis}")));
        }
        if len > size - start {
            return Err(Error::argument("length", len, format!("at most {} from {start} on", size - start)));
        }
        let mut view = self.clone();
        if self.sequence == Some(axis) {
            let head = self.runs.iter().next().map_or(0, |run| run.len as usize);
            view.runs = self.runs.slice(start as u32, len as u32);
            view.positions = if start < head {
                // What lies behind the first run is told as long as it ends where it did.
                let is_cut = start + len < size && start + len <= head;
                let next = if is_cut { self.positions[0] + (start + len) as u64 } else { self.positions[1] };
                [self.positions[0] + start as u64, next]
            } else {
                [self.positions[1] + (start - head) as u64; 2]
            };
            view.region.dims[axis] = len;
        } else {
            view.region = self.region.narrow(axis, start, len);
        }
        Ok(view)
    }

    /// The same elements in another shape: without a copy when they are contiguous, else in memory of its own.
    pub fn reshape(&self, shape: &[usize], budget: &Arc<Budget>) -> Result<View> {
        let dims = Dims::shape("shape", shape)?;
        if dims.elements() != Some(self.elements()) {
            let expected = format!("{}, as in {:?}", counted(self.elements() as u64, "element"), self.shape());
            return Err(Error::ShapeMismatch { argument: "shape", value: shape.to_vec(), expected });
        }
        if !self.is_contiguous() {
            return self.copied(budget)?.reshape(shape, budget);
        }
        let region = self.anchored().reshaped(dims);
        Ok(View { region, sequence: None, ..self.clone() })
    }
}
