//! One node of a layer that keeps a state, as a kernel of onnxruntime: inputs and output are in onnxruntime's memory.

use std::borrow::Cow;
use std::sync::Arc;

use kvtide_tensor::DType;
use kvtide_tensor::buffers::from_f32;
use kvtide_tensor::runtime::with_host;

use super::api::KernelContext;
use super::call::{Call, no_step, refused, room, widened};
use super::info::Info;
use super::shared::{Shared, State};
use super::state_node::{StateNode, StateOperator};
use crate::border::refusal::Outcome;

/// One node of a layer that keeps a state.
pub(super) struct StateKernel {
    pub shared: Arc<Shared>,
    dtype: DType,
    node: StateNode,
}

impl StateKernel {
    pub fn read(shared: &Arc<Shared>, dtype: DType, operator: StateOperator, info: &Info) -> Outcome<Self> {
        Ok(StateKernel { shared: shared.clone(), dtype, node: StateNode::read(operator, info)? })
    }

    pub fn compute(&self, context: *mut KernelContext) -> Outcome<()> {
        let StateKernel { shared, dtype, node } = self;
        let operator = node.operator.text();
        let call = Call { library: shared.library, context, operator };
        let names = node.operator.inputs();
        let inputs = (0..names.len()).map(|index| call.input(index, dtype.bytes()));
        let inputs = inputs.collect::<Outcome<Vec<_>>>()?;
        let missing = || refused(operator, format!("its input {} is missing", names[0]));
        let tokens = node.tokens(&inputs[0].as_ref().ok_or_else(missing)?.dims)?;
        let out = call.output(&node.out_dims(tokens), dtype.bytes())?;
        let floats = inputs.iter().map(|input| input.as_ref().map(|input| widened(*dtype, input.bytes)).transpose());
        let floats = floats.collect::<Outcome<Vec<Option<Cow<'_, [f32]>>>>>()?;
        let floats: Vec<Option<&[f32]>> = floats.iter().map(Option::as_deref).collect();
        let mut state = shared.state();
        let State { run, turned: [_, rows], .. } = &mut *state;
        let run = run.as_mut().ok_or_else(|| no_step(operator))?;
        let share = move |count: usize, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        if *dtype == DType::F32 {
            let out = bytemuck::cast_slice_mut(out);
            return with_host(shared.threads, share, || node.compute(run, &floats, out));
        }
        let rows: &mut [f32] = bytemuck::cast_slice_mut(room(rows, out.len() / dtype.bytes() * 4)?);
        with_host(shared.threads, share, || node.compute(run, &floats, rows))?;
        from_f32(*dtype, rows, out);
        Ok(())
    }
}
