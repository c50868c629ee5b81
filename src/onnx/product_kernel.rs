//! The product of rows with a weight, as a kernel of onnxruntime. The weight is read in onnxruntime's memory, or in the file
//! that it has mapped; or it is packed when the session is made.

use std::sync::Arc;

use kvtide_tensor::DType;
use kvtide_tensor::buffers::from_f32;
use kvtide_tensor::linear::{PackedWeights, WeightOrder, Weights, multiply};
use kvtide_tensor::runtime::{release_mapped, with_host};

use super::api::KernelContext;
use super::call::{Call, Input, refused, widened, zeros};
use super::info::{Attributes, Info};
use super::shared::Shared;
use crate::border::refusal::{Outcome, Refusal};

/// The name of the operator.
const OPERATOR: &str = "MatMul";

/// A product with a weight.
pub(super) struct ProductKernel {
    pub shared: Arc<Shared>,
    dtype: DType,
    order: WeightOrder,
    packed: Option<PackedWeights>,
}

impl ProductKernel {
    pub fn read(shared: &Arc<Shared>, dtype: DType, info: &Info) -> Outcome<Self> {
        let order = if info.is_set(c"transB") { WeightOrder::Columns } else { WeightOrder::Rows };
        let mut kernel = ProductKernel { shared: shared.clone(), dtype, order, packed: None };
        if info.is_set(c"packed") {
            let weight = info.weight(1, dtype.bytes())?.ok_or_else(|| wrong(1, "is not a weight"))?;
            kernel.packed = Some(PackedWeights::pack(&kernel.weights(&weight)?)?);
            release_mapped(&[weight.bytes]);
        }
        Ok(kernel)
    }

    /// The weights of an input.
    fn weights<'a>(&self, weight: &Input<'a>) -> Outcome<Weights<'a>> {
        let ProductKernel { dtype, order, .. } = *self;
        let [inner, columns] = match (order, weight.dims.as_slice()) {
            (WeightOrder::Rows, &[inner, columns]) | (WeightOrder::Columns, &[columns, inner]) => [inner, columns],
            (_, dims) => return Err(wrong(1, &format!("has the dimensions {dims:?}, expected two"))),
        };
        Ok(Weights { dtype, bytes: weight.bytes, inner: inner as usize, columns: columns as usize, order })
    }

    pub fn compute(&self, context: *mut KernelContext) -> Outcome<()> {
        let ProductKernel { shared, dtype, packed, .. } = self;
        let call = Call { library: shared.library, context, operator: OPERATOR };
        let input = |index| call.input(index, dtype.bytes())?.ok_or_else(|| wrong(index, "is missing"));
        let rows = input(0)?;
        if let Some(packed) = packed {
            let sizes = [packed.inner(), packed.columns()];
            return self.multiply(call, rows, sizes, |rows, out| packed.multiply(rows, out));
        }
        let weights = self.weights(&input(1)?)?;
        self.multiply(call, rows, [weights.inner, weights.columns], |rows, out| multiply(rows, &weights, out))
    }

    /// Multiplies rows of so many elements with so many columns.
    fn multiply(
        &self,
        call: Call,
        rows: Input<'_>,
        [inner, columns]: [usize; 2],
        multiply: impl Fn(&[f32], &mut [f32]) -> kvtide_tensor::Result<()>,
    ) -> Outcome<()> {
        let ProductKernel { shared, dtype, .. } = self;
        let mut dims = rows.dims;
        match dims.last_mut() {
            Some(last) if *last == inner as i64 => *last = columns as i64,
            _ => return Err(wrong(0, &format!("has the dimensions {dims:?}, expected rows of {inner}"))),
        }
        let out = call.output(&dims, dtype.bytes())?;
        if out.is_empty() {
            return Ok(());
        }
        let rows = widened(*dtype, rows.bytes)?;
        let share = move |count: usize, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        if *dtype == DType::F32 {
            let out = bytemuck::cast_slice_mut(out);
            return Ok(with_host(shared.threads, share, || multiply(&rows, out))?);
        }
        let mut products = zeros(out.len() / dtype.bytes())?;
        with_host(shared.threads, share, || multiply(&rows, &mut products))?;
        from_f32(*dtype, &products, out);
        Ok(())
    }
}

fn wrong(index: usize, reason: &str) -> Refusal {
    refused(OPERATOR, format!("its input {index} {reason}"))
}
