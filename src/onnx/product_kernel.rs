//! The product of rows with a weight, as a kernel of onnxruntime: the weight is read in onnxruntime's memory, or in the
//! file that it has mapped.

use std::sync::Arc;

use kvtide_tensor::DType;
use kvtide_tensor::buffers::from_f32;
use kvtide_tensor::linear::{WeightOrder, Weights, multiply};
use kvtide_tensor::runtime::with_host;

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
}

impl ProductKernel {
    pub fn read(shared: &Arc<Shared>, dtype: DType, info: &Info) -> Self {
        let order = if info.is_set(c"transB") { WeightOrder::Columns } else { WeightOrder::Rows };
        ProductKernel { shared: shared.clone(), dtype, order }
    }

    pub fn compute(&self, context: *mut KernelContext) -> Outcome<()> {
        let ProductKernel { shared, dtype, order } = self;
        let call = Call { library: shared.library, context, operator: OPERATOR };
        let input = |index| call.input(index, dtype.bytes())?.ok_or_else(|| wrong(index, "is missing"));
        let (rows, weight): (Input<'_>, Input<'_>) = (input(0)?, input(1)?);
        let [inner, columns] = match (order, weight.dims.as_slice()) {
            (WeightOrder::Rows, &[inner, columns]) | (WeightOrder::Columns, &[columns, inner]) => [inner, columns],
            (_, dims) => return Err(wrong(1, &format!("has the dimensions {dims:?}, expected two"))),
        };
        let mut dims = rows.dims;
        match dims.last_mut() {
            Some(last) if *last == inner => *last = columns,
            _ => return Err(wrong(0, &format!("has the dimensions {dims:?}, expected rows of {inner}"))),
        }
        let out = call.output(&dims, dtype.bytes())?;
        let [inner, columns] = [inner, columns].map(|size| size as usize);
        let weights = Weights { dtype: *dtype, bytes: weight.bytes, inner, columns, order: *order };
        let rows = widened(*dtype, rows.bytes)?;
        let share = move |count: usize, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        if *dtype == DType::F32 {
            let out = bytemuck::cast_slice_mut(out);
            return Ok(with_host(shared.threads, share, || multiply(&rows, &weights, out))?);
        }
        let mut products = zeros(out.len() / dtype.bytes())?;
        with_host(shared.threads, share, || multiply(&rows, &weights, &mut products))?;
        from_f32(*dtype, &products, out);
        Ok(())
    }
}

fn wrong(index: usize, reason: &str) -> Refusal {
    refused(OPERATOR, format!("its input {index} {reason}"))
}
