//! Keys and values of an encoder's states, which a decoder's attentions read besides its cache. A session keeps them by
//! number, and a step names those of its sequences.

use std::ops::Range;
use std::sync::Arc;

use kvtide_core::Error;
use kvtide_tensor::attention::{AttendOptions, KvRows, attend_with};
use kvtide_tensor::buffers::SequenceLayout;
use kvtide_tensor::runtime::{Budget, Lease};
use kvtide_tensor::{DType, HostTensor};

use super::call::{turn, zeros};
use crate::border::argument::ArrayArg;
use crate::border::refusal::{Outcome, Refusal};

/// The heads of a layer, and the elements of its keys and of its values.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    dims: [usize; 2],
}

/// Keys and values of an encoder's states in all layers.
pub(super) struct Encoded {
    dtype: DType,
    /// The number of states that a mask has left.
    frames: usize,
    sizes: Vec<Sizes>,
    /// Keys before values, layer by layer, each `[heads, frames, dim]`.
    rows: Vec<u8>,
    _lease: Lease,
}

/// The numbers of an encoding, as JavaScript has them.
pub struct GivenEncoding {
    data: Vec<u8>,
    frames: usize,
    sizes: Vec<Sizes>,
    /// 1 for each state to keep.
    mask: Option<Vec<u8>>,
}

impl GivenEncoding {
    /// Keys before values, layer by layer, each `[heads, frames, dim]`. There are three numbers for a layer: its heads, and the
    /// elements of its keys and values.
    pub fn read(data: ArrayArg, frames: usize, sizes: ArrayArg, mask: Option<ArrayArg>) -> Outcome<Self> {
        let bytes = data.memory("data")?.bytes();
        let sizes = sizes.elements::<u32>("sizes")?.unwrap_or(&[]);
        if sizes.is_empty() || !sizes.len().is_multiple_of(3) {
            return Err(wrong("sizes", format!("{} numbers", sizes.len()), "three for each layer".into()));
        }
        let sizes = sizes.chunks_exact(3);
        let whole = |list: &[u32]| Sizes { heads: list[0] as usize, dims: [list[1] as usize, list[2] as usize] };
        let sizes = sizes.map(whole).collect();
        let mask = mask.map(|mask| mask.elements::<u8>("mask").map(|mask| mask.unwrap_or(&[]).to_vec())).transpose()?;
        let mut data = zeros(bytes.len())?;
        data.copy_from_slice(bytes);
        Ok(Self { data, frames, sizes, mask })
    }
}

impl Encoded {
    /// Leaves out the states that the mask hides.
    pub fn new(given: GivenEncoding) -> Outcome<Self> {
        let GivenEncoding { data, frames, sizes, mask } = given;
        let of_layer = |own: &Sizes| own.heads.checked_mul(own.dims[0].checked_add(own.dims[1])?);
        let layers = sizes.iter().try_fold(0usize, |sum, own| sum.checked_add(of_layer(own)?));
        let elements = layers.and_then(|elements| elements.checked_mul(frames)).unwrap_or(usize::MAX);
        let dtype = match data.len() {
            bytes if elements > 0 && Some(bytes) == elements.checked_mul(4) => DType::F32,
            bytes if elements > 0 && Some(bytes) == elements.checked_mul(2) => DType::F16,
            bytes => return Err(wrong("data", format!("{bytes} bytes"), format!("{elements} floats or half floats"))),
        };
        let Some(mask) = mask else {
            let lease = Budget::process().take(data.len() as u64)?;
            return Ok(Self { dtype, frames, sizes, rows: data, _lease: lease });
        };
        if mask.len() != frames {
            return Err(wrong("mask", format!("{} numbers", mask.len()), format!("{frames}, one for each state")));
        }
        let kept = mask.iter().filter(|&&number| number != 0).count();
        if kept == 0 {
            return Err(wrong("mask", "zeros".into(), "at least one 1".into()));
        }
        let bytes = data.len() / frames * kept;
        let lease = Budget::process().take(bytes as u64)?;
        let mut rows = zeros(bytes)?;
        let (mut from, mut to) = (data.as_slice(), rows.as_mut_slice());
        for side in sizes.iter().flat_map(|own| own.dims.map(|dim| (own.heads, dim * dtype.bytes()))) {
            let (heads, row) = side;
            for _ in 0..heads {
                for &number in &mask {
                    let (own, others) = from.split_at(row);
                    from = others;
                    if number != 0 {
                        let (place, rest) = to.split_at_mut(row);
                        place.copy_from_slice(own);
                        to = rest;
                    }
                }
            }
        }
        Ok(Self { dtype, frames: kept, sizes, rows, _lease: lease })
    }

    /// The keys and values of a layer, which exists.
    fn layer(&self, layer: usize) -> [&[u8]; 2] {
        let bytes = |own: &Sizes, dim| own.heads * self.frames * dim * self.dtype.bytes();
        let before: usize = self.sizes[..layer].iter().map(|own| bytes(own, own.dims[0] + own.dims[1])).sum();
        let own = &self.sizes[layer];
        let (keys, rest) = self.rows[before..].split_at(bytes(own, own.dims[0]));
        [keys, &rest[..bytes(own, own.dims[1])]]
    }
}

fn wrong(argument: &'static str, value: String, expected: String) -> Refusal {
    Error::argument(argument, value, expected).into()
}

/// The encodings of a step: those of its tokens, in their order. Neighbours with the same encoding are one span.
#[derive(Default)]
pub struct StepEncodings {
    spans: Vec<(Range<usize>, Arc<Encoded>)>,
}

/// The queries of an attention over encodings.
pub(super) struct CrossedQueries<'a> {
    pub layer: usize,
    pub dtype: DType,
    pub heads: usize,
    pub kv_heads: usize,
    pub dims: [usize; 2],
    /// `[tokens, heads, dim]`.
    pub bytes: &'a [u8],
}

impl StepEncodings {
    /// Adds the encoding of the next tokens.
    pub(super) fn push(&mut self, tokens: usize, encoded: Arc<Encoded>) {
        let start = self.tokens();
        match self.spans.last_mut() {
            Some((span, last)) if Arc::ptr_eq(last, &encoded) => span.end = start + tokens,
            _ => self.spans.push((start..start + tokens, encoded)),
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.spans.last().map_or(0, |(span, _)| span.end)
    }

    /// Attends to the encodings. The output is `[tokens, heads, dim]`. The error is a reason, if sizes do not fit.
    pub(super) fn attend(
        &self,
        queries: &CrossedQueries<'_>,
        options: &AttendOptions<'_>,
        out: &mut [u8],
    ) -> Result<Outcome<()>, String> {
        let &CrossedQueries { layer, dtype, heads, kv_heads, dims, bytes } = queries;
        let [row, out_row] = dims.map(|dim| heads * dim * dtype.bytes());
        if self.tokens() * row != bytes.len() || self.tokens() * out_row != out.len() {
            return Err(format!(
                "the step has encodings of {} tokens, and {} queries",
                self.tokens(),
                bytes.len().checked_div(row).unwrap_or(0)
            ));
        }
        for (span, encoded) in &self.spans {
            let own = encoded.sizes.get(layer).filter(|own| own.heads == kv_heads && own.dims == dims);
            if own.is_none() || encoded.dtype != dtype {
                return Err(format!(
                    "an encoding has no {dtype} keys of {kv_heads} heads of {} in layer {layer}",
                    dims[0]
                ));
            }
            let [from, to] = [row, out_row].map(|row| span.start * row..span.end * row);
            let attended = self.attend_span(queries, span.len(), &bytes[from], encoded, options, &mut out[to]);
            if let Err(refusal) = attended {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }

    /// Attends to one encoding with `count` queries.
    fn attend_span(
        &self,
        &CrossedQueries { layer, dtype, heads, kv_heads, dims: [dim, value_dim], .. }: &CrossedQueries<'_>,
        count: usize,
        bytes: &[u8],
        encoded: &Encoded,
        options: &AttendOptions<'_>,
        out: &mut [u8],
    ) -> Outcome<()> {
        let [keys, values] = encoded.layer(layer);
        let rows = |name, bytes, dim| HostTensor::new(name, bytes, dtype, &[1, kv_heads, encoded.frames, dim]);
        let q = HostTensor::new("q", bytes, dtype, &[1, count, heads, dim])?.with_layout("q", SequenceLayout::Bshd)?;
        let kv = KvRows::Batched { k: rows("k", keys, dim)?.into(), v: rows("v", values, value_dim)?.into() };
        if count == 1 {
            return Ok(attend_with(q, kv, options, |_| Ok((out, &mut [])))?);
        }
        // The output has heads first.
        let mut turned = zeros(out.len())?;
        attend_with(q, kv, options, |_| Ok((&mut turned, &mut [])))?;
        turn(&turned, out, [heads, count, value_dim * dtype.bytes()]);
        Ok(())
    }
}
