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

/// A product with a weight.
pub(super) struct ProductKernel {
    pub shared: Arc<Shared>,
    /// The name of the operator.
    operator: &'static str,
    /// The type of the weight.
    dtype: DType,
    order: WeightOrder,
    packed: Option<PackedWeights>,
}

impl ProductKernel {
    /// A product with a weight that is read where it is.
    pub fn read(shared: &Arc<Shared>, dtype: DType, info: &Info) -> Self {
        let order = if info.is_set(c"transB") { WeightOrder::Columns } else { WeightOrder::Rows };
        ProductKernel { shared: shared.clone(), operator: "MatMul", dtype, order, packed: None }
    }

    /// A product of floats with a weight that is packed now.
    pub fn packed(shared: &Arc<Shared>, dtype: DType, info: &Info) -> Outcome<Self> {
        let mut kernel = ProductKernel { operator: "PackedMatMul", ..ProductKernel::read(shared, dtype, info) };
        let weight = info.weight(1, dtype.bytes())?.ok_or_else(|| kernel.wrong(1, "is not a weight"))?;
        kernel.packed = Some(PackedWeights::pack(&kernel.weights(&weight)?)?);
        release_mapped(&[weight.bytes]);
        Ok(kernel)
    }

    /// The weights of an input.
    fn weights<'a>(&self, weight: &Input<'a>) -> Outcome<Weights<'a>> {
        let ProductKernel { dtype, order, .. } = *self;
        let [inner, columns] = match (order, weight.dims.as_slice()) {
            (WeightOrder::Rows, &[inner, columns]) | (WeightOrder::Columns, &[columns, inner]) => [inner, columns],
            (_, dims) => return Err(self.wrong(1, &format!("has the dimensions {dims:?}, expected two"))),
        };
        Ok(Weights { dtype, bytes: weight.bytes, inner: inner as usize, columns: columns as usize, order })
    }

    pub fn compute(&self, context: *mut KernelContext) -> Outcome<()> {
        let call = Call { library: self.shared.library, context, operator: self.operator };
        let input =
            |index, dtype: DType| call.input(index, dtype.bytes())?.ok_or_else(|| self.wrong(index, "is missing"));
        if let Some(packed) = &self.packed {
            let sizes = [packed.inner(), packed.columns()];
            let rows = input(0, DType::F32)?;
            return self.multiply(call, DType::F32, rows, sizes, |rows, out| packed.multiply(rows, out));
        }
        let weights = self.weights(&input(1, self.dtype)?)?;
        let sizes = [weights.inner, weights.columns];
        self.multiply(call, self.dtype, input(0, self.dtype)?, sizes, |rows, out| multiply(rows, &weights, out))
    }

    /// Multiplies rows of so many elements with so many columns.
    fn multiply(
        &self,
        call: Call,
        dtype: DType,
        rows: Input<'_>,
        [inner, columns]: [usize; 2],
        multiply: impl Fn(&[f32], &mut [f32]) -> kvtide_tensor::Result<()>,
    ) -> Outcome<()> {
        let shared = &self.shared;
        let mut dims = rows.dims;
        match dims.last_mut() {
            Some(last) if *last == inner as i64 => *last = columns as i64,
            _ => return Err(self.wrong(0, &format!("has the dimensions {dims:?}, expected rows of {inner}"))),
        }
        let out = call.output(&dims, dtype.bytes())?;
        if out.is_empty() {
            return Ok(());
        }
        let rows = widened(dtype, rows.bytes)?;
        let share = move |count: usize, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        if dtype == DType::F32 {
            let out = bytemuck::cast_slice_mut(out);
            return Ok(with_host(shared.threads, share, || multiply(&rows, out))?);
        }
        let mut products = zeros(out.len() / dtype.bytes())?;
        with_host(shared.threads, share, || multiply(&rows, &mut products))?;
        from_f32(dtype, &products, out);
        Ok(())
    }

    fn wrong(&self, index: usize, reason: &str) -> Refusal {
        refused(self.operator, format!("its input {index} {reason}"))
    }
}
