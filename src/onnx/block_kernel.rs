//! The product of rows with weights of 4 bits, as a kernel of onnxruntime. The weights are packed when the session is made.

use std::sync::Arc;

use kvtide_tensor::linear::{BlockCodes, BlockWeights};
use kvtide_tensor::runtime::with_host;

use super::api::KernelContext;
use super::call::{Call, Input, refused};
use super::info::{Attributes, Info};
use super::operator::{CODES, SCALES, ZEROS};
use super::shared::Shared;
use crate::border::refusal::Outcome;

/// The name of the operator.
const OPERATOR: &str = "MatMulNBits";

/// A product with weights of 4 bits.
pub(super) struct BlockKernel {
    pub shared: Arc<Shared>,
    weights: BlockWeights,
}

impl BlockKernel {
    pub fn read(shared: &Arc<Shared>, info: &Info) -> Outcome<Self> {
        let size = |name| info.whole(OPERATOR, name).map(|size| size as usize);
        let missing = |index: usize| refused(OPERATOR, format!("its input {index} is not a weight"));
        let weight = |index, bytes| info.weight(index, bytes)?.ok_or_else(|| missing(index));
        let scales = Input { dims: Vec::new(), bytes: weight(SCALES, size_of::<f32>())? };
        let codes = BlockCodes {
            codes: weight(CODES, 1)?,
            scales: &scales.floats(),
            zero_points: info.weight(ZEROS, 1)?,
            inner: size(c"K")?,
            columns: size(c"N")?,
            block: size(c"block_size")?,
        };
        Ok(BlockKernel { shared: shared.clone(), weights: BlockWeights::pack(&codes)? })
    }

    pub fn compute(&self, context: *mut KernelContext) -> Outcome<()> {
        let BlockKernel { shared, weights } = self;
        let call = Call { library: shared.library, context, operator: OPERATOR };
        let rows = call.input(0, size_of::<f32>())?.ok_or_else(|| refused(OPERATOR, "it has no rows".into()))?;
        let mut dims = rows.dims.clone();
        match dims.last_mut() {
            Some(last) if *last == weights.inner() as i64 => *last = weights.columns() as i64,
            _ => {
                let reason = format!("its input 0 has the dimensions {dims:?}, expected rows of {}", weights.inner());
                return Err(refused(OPERATOR, reason));
            }
        }
        let out = bytemuck::cast_slice_mut(call.output(&dims, size_of::<f32>())?);
        let share = move |count: usize, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        Ok(with_host(shared.threads, share, || weights.multiply(&rows.floats(), out))?)
    }
}
