//! Embeddings of a step: token ids go through the model of embeddings, a session of its own, and given rows replace
//! those of their ids. All of its outputs that the decoder takes are passed on by name, without a copy.
#![expect(unsafe_code, reason = "rows of tensors that a C library made are replaced")]

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use kvtide_core::Error;
use napi::{Env, Result};
use napi_derive::napi;

use super::api::number;
use super::run::{Fed, Made};
use super::session::{EMBEDS, Port, Session, failed};
use super::tensor::{dims, element, memory};
use crate::border::argument::ArrayArg;
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;

/// Rows that replace those of their tokens.
#[derive(Default)]
pub struct GivenRows {
    /// The tokens, by their places in the step.
    places: Vec<usize>,
    /// Their rows, one after the other.
    data: Vec<f32>,
}

impl GivenRows {
    pub fn read(places: Option<ArrayArg>, data: Option<ArrayArg>, tokens: usize) -> Outcome<Self> {
        let (Some(places), Some(data)) = (places, data) else { return Ok(Self::default()) };
        let places = places.elements::<i32>("places")?.unwrap_or(&[]);
        let data = data.elements::<f32>("embeds")?.unwrap_or(&[]).to_vec();
        if let Some(&place) = places.iter().find(|&&place| place < 0 || place as usize >= tokens) {
            return Err(Error::argument("places", f64::from(place), format!("from 0 to less than {tokens}")).into());
        }
        if data.len() % places.len().max(1) != 0 {
            let expected = format!("rows of the same width for {} places", places.len());
            return Err(Error::argument("embeds", format!("{} numbers", data.len()), expected).into());
        }
        Ok(Self { places: places.iter().map(|&place| place as usize).collect(), data })
    }
}

/// Converts floats to the bits of half floats.
#[napi(ts_args_type = "data: Float32Array", ts_return_type = "Uint16Array")]
pub fn halves(env: &Env, data: ArrayArg) -> Result<ExternalArray> {
    guard(env, || {
        let data = data.elements::<f32>("data")?.unwrap_or(&[]);
        let mut bits = vec![0u16; data.len()];
        bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(data);
        Ok(ExternalArray::bits(bits))
    })
}

impl Session {
    /// Computes the embeddings of token ids that `decoder` takes. The tensors are those of its inputs, in their order;
    /// [`None`] for one that this model does not give.
    pub(super) fn embed(&self, ids: &[i64], given: &GivenRows, decoder: &Session) -> Outcome<Vec<Option<Made<'_>>>> {
        let tokens = ids.len() as i64;
        let mut ids = ids.to_vec();
        if self.takes_features() {
            // The token of an image would ask for features, which are not given this way.
            given.places.iter().for_each(|&place| ids[place] = 0);
        }
        let fed = self.inputs.iter().map(|port| match port.is_whole() {
            true => Fed::new(self, port, &ids, &[1, tokens]),
            false => Fed::new(self, port, &[], &port.dims.iter().map(|&dim| dim.max(0)).collect::<Vec<_>>()),
        });
        let fed = fed.collect::<Outcome<Vec<_>>>()?;
        let values: Vec<_> = fed.iter().map(|fed| fed.value.cast_const()).collect();
        let gives = |input: &&Port| self.outputs.iter().any(|port| port.name == input.name);
        let asked: Vec<_> = decoder.inputs.iter().filter(gives).collect();
        let made = self.call(&values, &asked)?;
        for (port, made) in asked.iter().zip(&made) {
            if port.is(EMBEDS) {
                self.replace(made, given, ids.len())?;
            }
        }
        let mut made = made.into_iter();
        Ok(decoder.inputs.iter().map(|input| if gives(&input) { made.next() } else { None }).collect())
    }

    /// Replaces rows of a tensor, `[1, tokens, width]`.
    fn replace(&self, made: &Made<'_>, given: &GivenRows, tokens: usize) -> Outcome<()> {
        let (library, dims) = (self.library, dims(self.library, made.value)?);
        let &[1, found, width] = dims.as_slice() else {
            return Err(failed(format!("embeddings have the dimensions {dims:?}, expected [1, {tokens}, width]")));
        };
        let width = width as usize;
        if found as usize != tokens || given.data.len() != given.places.len() * width {
            let reason =
                format!("embeddings are [1, {found}, {width}] for {tokens} tokens, and {}", given.places.len());
            return Err(failed(format!("{reason} rows of them have {} numbers", given.data.len())));
        }
        if given.places.is_empty() {
            return Ok(());
        }
        let element = element(library, made.value)?;
        let bytes = match element {
            number::FLOAT => 4,
            number::FLOAT16 | number::BFLOAT16 => 2,
            other => return Err(failed(format!("embeddings are of element type {other}, expected floats"))),
        };
        // SAFETY: the tensor has these dimensions and this element type, and it is this call's own.
        let memory = unsafe { memory(library, made.value, tokens * width * bytes)? };
        for (&place, row) in given.places.iter().zip(given.data.chunks_exact(width.max(1))) {
            let to = &mut memory[place * width * bytes..(place + 1) * width * bytes];
            match element {
                number::FLOAT => to.copy_from_slice(bytemuck::cast_slice(row)),
                number::FLOAT16 => {
                    bytemuck::cast_slice_mut::<u8, u16>(to).reinterpret_cast_mut::<f16>().convert_from_f32_slice(row)
                }
                _ => bytemuck::cast_slice_mut::<u8, u16>(to).reinterpret_cast_mut::<bf16>().convert_from_f32_slice(row),
            }
        }
        Ok(())
    }

    /// True if it takes features of images as well, which it puts in place of their tokens.
    fn takes_features(&self) -> bool {
        self.inputs.iter().any(|port| !port.is_whole())
    }
}
