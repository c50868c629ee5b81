//! What a captured step of the model works on, and the step.

use candle_core::{Device, Tensor};
use kvtide_tensor::{AttendOptions, Result, StepRecorder};

use crate::toy::{State, Toy};

/// The tensors that a captured step of the model works on: made before, so that their addresses stay.
pub struct Buffers {
    toy: Toy,
    tokens: usize,
    /// The token that each sequence goes on with.
    pub next: Tensor,
    states: Tensor,
    rows: [Tensor; 3],
    /// Of each layer.
    pub outs: Vec<Tensor>,
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn put(to: &Tensor, from: &Tensor) {
    to.slice_set(from, 0, 0).unwrap();
}

impl Buffers {
    pub fn new(toy: &Toy, tokens: &[u32]) -> Self {
        let count = tokens.len();
        let zeros = || [(); 3].map(|()| vec![0.0; count * toy.width()]);
        let sized = |mut rows: [Vec<f32>; 3]| {
            rows[1..].iter_mut().for_each(|row| row.truncate(count * toy.kv_heads * toy.dim));
            toy.tensors(&rows, count)
        };
        let outs =
            toy.kinds.iter().map(|_| toy.tensor(&vec![0.0; count * toy.width()], &[count, toy.heads(), toy.dim]));
        Buffers {
            tokens: count,
            next: Tensor::from_slice(tokens, count, &Device::Cpu).unwrap(),
            states: Tensor::zeros((count, toy.width()), candle_core::DType::F32, &Device::Cpu).unwrap(),
            rows: sized(zeros()),
            outs: outs.collect(),
            toy: toy.clone(),
        }
    }

    fn states(tensor: &Tensor) -> Vec<State> {
        tensor.to_vec2().unwrap()
    }

    fn set_states(tensor: &Tensor, states: &[State]) {
        let flat = states.concat();
        put(tensor, &Tensor::from_slice(&flat, tensor.shape(), &Device::Cpu).unwrap());
    }

    /// The whole step: what the CPU computes for the GPU is recorded between the launches.
    pub fn record(&self, step: &mut StepRecorder<'_>) -> Result<()> {
        let (toy, next, states) = (self.toy.clone(), self.next.clone(), self.states.clone());
        step.compute(move || {
            let tokens: Vec<u32> = next.to_vec1().unwrap();
            Self::set_states(&states, &tokens.iter().map(|&token| toy.embed(token)).collect::<Vec<_>>());
        });
        let options = AttendOptions::default();
        for layer in 0..self.toy.kinds.len() {
            let (toy, states, rows, tokens) = (self.toy.clone(), self.states.clone(), self.rows.clone(), self.tokens);
            let positions = step.positions()?;
            step.compute(move || {
                let projected = toy.project(&Self::states(&states), layer, &positions.to_vec1().unwrap());
                toy.tensors(&projected, tokens).iter().zip(&rows).for_each(|(from, to)| put(to, from));
            });
            let [q, k, v] = &self.rows;
            if self.toy.is_own(layer) {
                step.write(layer as u32, k, v)?;
            }
            step.attend(layer as u32, q, &options, &self.outs[layer])?;
            let (states, out) = (self.states.clone(), self.outs[layer].clone());
            step.compute(move || {
                let mut all = Self::states(&states);
                Toy::absorb(&mut all, &floats(&out));
                Self::set_states(&states, &all);
            });
        }
        let (states, next) = (self.states.clone(), self.next.clone());
        step.compute(move || {
            let tokens: Vec<u32> = Self::states(&states).iter().map(|state| Toy::choose(state)).collect();
            put(&next, &Tensor::from_slice(&tokens, tokens.len(), &Device::Cpu).unwrap());
        });
        Ok(())
    }

    pub fn outputs(&self) -> Vec<f32> {
        self.outs.iter().flat_map(floats).collect()
    }
}
