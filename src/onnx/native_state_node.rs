//! A node of a layer that keeps a state, between two subgraphs: for JavaScript.

use kvtide_core::Error;
use kvtide_tensor::buffers::from_f32;
use kvtide_tensor::runtime::{Budget, with_threads};
use kvtide_tensor::{DType, StepRun};
use napi::bindgen_prelude::{Either, Unknown};
use napi::{Env, Result};
use napi_derive::napi;

use super::call::{widened, zeros};
use super::info::Listed;
use super::rewritten::NativeOnnxAttribute;
use super::state_node::{StateNode, StateOperator};
use crate::border::argument::{ArrayArg, NEW_BYTES_MAX, new_array, positive};
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::sequences::lent_run::NativeLentRun;

/// One node of a layer that keeps a state.
#[napi]
pub struct NativeStateNode {
    node: StateNode,
    dtype: DType,
    threads: usize,
}

#[napi]
impl NativeStateNode {
    /// The node of an operator, whose inputs and output have elements of type `f32` or `f16`. It uses so many threads.
    #[napi(factory)]
    pub fn of(
        env: &Env,
        operator: String,
        attributes: Vec<NativeOnnxAttribute>,
        element: String,
        threads: f64,
    ) -> Result<Self> {
        guard(env, || {
            let found = StateOperator::ALL.into_iter().find(|known| known.text() == operator);
            let names = StateOperator::ALL.map(StateOperator::text).join(", ");
            let found = found.ok_or_else(|| Error::argument("operator", operator, format!("one of {names}")))?;
            let attributes = attributes.into_iter().map(|NativeOnnxAttribute { name, values }| (name, values));
            let node = StateNode::read(found, &Listed(attributes.collect()))?;
            let dtype = element.parse()?;
            if !matches!(dtype, DType::F32 | DType::F16) {
                return Err(Error::argument("element", element, "f32 or f16").into());
            }
            Ok(NativeStateNode { node, dtype, threads: positive("threads", threads)? as usize })
        })
    }

    /// Computes the states of all sequences of a step. Returns the output; an input may be missing.
    #[napi(ts_return_type = "Float32Array | Uint16Array")]
    pub fn compute<'a>(
        &self,
        env: &'a Env,
        run: &NativeLentRun,
        inputs: Vec<Option<ArrayArg>>,
    ) -> Result<Either<Unknown<'a>, ExternalArray>> {
        run.with(env, |run| {
            let dims = self.node.out_dims(run.tokens() as usize);
            let elements = dims.iter().map(|&dim| dim as usize).product::<usize>();
            let names = self.node.operator.inputs();
            let inputs = inputs.into_iter().zip(names).map(|(input, name)| match input {
                Some(input) => Ok(Some(widened(self.dtype, input.memory(name)?.bytes())?)),
                None => Ok(None),
            });
            let inputs = inputs.collect::<Outcome<Vec<_>>>()?;
            let inputs: Vec<Option<&[f32]>> = inputs.iter().map(Option::as_deref).collect();
            let compute = |run: &mut StepRun, out: &mut [f32]| {
                with_threads(self.threads, || self.node.compute(run, &inputs, out))
            };
            if self.dtype == DType::F32 && 4 * elements <= NEW_BYTES_MAX {
                let refused = |_| Budget::process().refusal(4 * elements as u64);
                let (array, memory) = new_array(env, 4, elements).map_err(refused)?;
                compute(run, bytemuck::cast_slice_mut(memory.bytes_mut()))?;
                return Ok(Either::A(array));
            }
            let mut out = zeros::<f32>(elements)?;
            compute(run, &mut out)?;
            if self.dtype == DType::F32 {
                return Ok(Either::B(ExternalArray::floats(out)));
            }
            let mut bits = zeros::<u16>(elements)?;
            from_f32(self.dtype, &out, bytemuck::cast_slice_mut(&mut bits));
            Ok(Either::B(ExternalArray::bits(bits)))
        })
    }
}
