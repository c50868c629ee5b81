//! The product of rows with weights of 4 bits, as a kernel of onnxruntime, with a gate or without. The weights are packed
//! when the session is made.

use std::borrow::Cow;
use std::sync::Arc;

use kvtide_tensor::linear::{Activation, BlockCodes, BlockWeights, Gate, Precision};
use kvtide_tensor::runtime::{release_mapped, with_host};

use super::api::KernelContext;
use super::call::{Call, Input, refused};
use super::info::{Attributes, Info};
use super::operator::{CODES, GATE, SCALES, ZEROS};
use super::shared::Shared;
use crate::border::refusal::Outcome;

/// The name of the operator.
const OPERATOR: &str = "MatMulNBits";

/// A product with weights of 4 bits, or a gated one.
pub(super) struct BlockKernel {
    pub shared: Arc<Shared>,
    weights: BlockWeights,
}

impl BlockKernel {
    pub fn read(shared: &Arc<Shared>, info: &Info) -> Outcome<Self> {
        let activation = match info.int(c"activation") {
            None => None,
            Some(1) => Some(Activation::Silu),
            Some(2) => Some(Activation::GeluTanh),
            Some(other) => return Err(refused(OPERATOR, format!("activation is {other}, expected 1 or 2"))),
        };
        // The level that allows products of bytes.
        let precision = if info.int(c"accuracy_level") == Some(4) { Precision::Bytes } else { Precision::Floats };
        let scales = scales_of(info, CODES)?;
        let codes = codes_of(info, CODES, &scales)?;
        let weights = match activation {
            None => BlockWeights::pack(&codes, precision, None)?,
            Some(activation) => {
                let scales = scales_of(info, GATE)?;
                let gate = codes_of(info, GATE, &scales)?;
                let weights = BlockWeights::pack(&codes, precision, Some(Gate { codes: gate, activation }))?;
                release(&gate);
                weights
            }
        };
        release(&codes);
        Ok(BlockKernel { shared: shared.clone(), weights })
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
        let out = call.output(&dims, size_of::<f32>())?;
        if out.is_empty() {
            return Ok(());
        }
        let out = bytemuck::cast_slice_mut(out);
        let share = move |count: usize, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        Ok(with_host(shared.threads, share, || weights.multiply(&rows.floats(), out))?)
    }
}

/// The scales of a weight, whose inputs start at `place`.
fn scales_of(info: &Info, place: usize) -> Outcome<Cow<'_, [f32]>> {
    let bytes = weight(info, place + SCALES - CODES, size_of::<f32>())?;
    Ok(Input { dims: Vec::new(), bytes }.floats())
}

/// A weight, whose inputs start at `place`.
fn codes_of<'a>(info: &'a Info, place: usize, scales: &'a [f32]) -> Outcome<BlockCodes<'a>> {
    let size = |name| info.whole(OPERATOR, name).map(|size| size as usize);
    Ok(BlockCodes {
        codes: weight(info, place, 1)?,
        scales,
        zero_points: info.weight(place + ZEROS - CODES, 1)?.map(|zeros| zeros.bytes),
        inner: size(c"K")?,
        columns: size(c"N")?,
        block: size(c"block_size")?,
    })
}

/// Gives back the memory of a weight that was packed. onnxruntime maps the file of weights.
fn release(weight: &BlockCodes<'_>) {
    release_mapped(&[weight.codes, bytemuck::cast_slice(weight.scales), weight.zero_points.unwrap_or_default()]);
}

fn weight(info: &Info, place: usize, bytes: usize) -> Outcome<&[u8]> {
    let found = info.weight(place, bytes)?;
    found.map(|weight| weight.bytes).ok_or_else(|| refused(OPERATOR, format!("its input {place} is not a weight")))
}
