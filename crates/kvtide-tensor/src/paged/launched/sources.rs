//! The rows of a call, made readable for a device.
//!
//! Tensors are already on the device. Memory of the caller is read in place by the CPU that stands in for a device; for any
//! other device its rows are copied there without the gaps between them, and kept for the duration of the call. O(bytes of
//! the rows) for copies, else O(1).

use candle_core::{Device, Tensor};
use kvtide_cuda::Span;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::zeroed::zeroed_bytes;
use crate::device::edit::upload;
use crate::kernels::pages::RowPlaces;
use crate::paged::rows::TokenRows;

/// K and V of a call.
pub(super) struct Placed<'a> {
    parts: [PlacedRows<'a>; 2],
}

/// K or V of a call.
struct PlacedRows<'a> {
    rows: &'a TokenRows<'a>,
    /// The copy that the device reads instead.
    uploaded: Option<(Tensor, RowPlaces)>,
}

impl<'a> Placed<'a> {
    /// Prepares rows of this many layers and heads for a device.
    pub fn new(rows: &'a [TokenRows<'a>; 2], layers: usize, heads: usize, device: &Device) -> Result<Self> {
        let place = |rows: &'a TokenRows<'a>| match rows.tensor().is_some() || device.is_cpu() {
            true => Ok(PlacedRows { rows, uploaded: None }),
            false => PlacedRows::upload(rows, layers, heads, device),
        };
        Ok(Placed { parts: [place(&rows[0])?, place(&rows[1])?] })
    }

    /// The tensors among them, in order: the sources of an operation.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.parts.iter().filter_map(PlacedRows::tensor).collect()
    }

    /// The places of the rows in their memory.
    pub fn rows(&self) -> [RowPlaces; 2] {
        self.parts.each_ref().map(|part| part.uploaded.as_ref().map_or(part.rows.rows, |(_, rows)| *rows))
    }

    /// Their memory; `tensors` is the memory of [`Placed::tensors`].
    pub fn spans<'b>(&'b self, tensors: &[Span<'b>]) -> [Span<'b>; 2] {
        let mut tensors = tensors.iter().copied();
        self.parts.each_ref().map(|part| match part.tensor() {
            Some(_) => tensors.next().expect("a span for each tensor"),
            None => Span::of(part.rows.bytes(&mut std::iter::empty())),
        })
    }
}

impl<'a> PlacedRows<'a> {
    fn tensor(&self) -> Option<&Tensor> {
        self.uploaded.as_ref().map(|(tensor, _)| tensor).or_else(|| self.rows.tensor())
    }

    /// Copies rows of the caller's memory to a device.
    fn upload(of: &'a TokenRows<'a>, layers: usize, heads: usize, device: &Device) -> Result<Self> {
        let (row, tokens) = (of.rows.row, of.tokens as usize);
        let [head, layer] = [tokens * row, heads * tokens * row];
        let bytes = of.bytes(&mut std::iter::empty());
        let mut copy = zeroed_bytes(layers * layer)?;
        for (place, copy) in copy.chunks_exact_mut(row.max(1)).enumerate() {
            let (of_layer, rest) = (place / (heads * tokens), place % (heads * tokens));
            let from = of.rows.at(of_layer, rest / tokens, rest % tokens);
            copy.copy_from_slice(&bytes[from..from + row]);
        }
        let tensor = upload(&copy, DType::U8, &[copy.len()], device)?;
        Ok(PlacedRows { rows: of, uploaded: Some((tensor, RowPlaces { offset: 0, layer, head, token: row, row })) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::edit::download;
    use crate::paged::rows::Expected;
    use crate::tensor::host::{HostTensor, SequenceLayout};
    use crate::tensor::source::Source;

    #[test]
    fn what_is_uploaded_has_the_rows_of_the_caller() {
        // 2 layers, 5 tokens of which 3 are used, 3 heads of 4 elements.
        let bytes: Vec<u8> = (0..2 * 5 * 3 * 4u32).flat_map(|at| (at as f32).to_ne_bytes()).collect();
        for layout in [SequenceLayout::Bhsd, SequenceLayout::Bshd] {
            let shape = if layout == SequenceLayout::Bhsd { [2, 3, 5, 4] } else { [2, 5, 3, 4] };
            let host = HostTensor::new("k", &bytes, DType::F32, &shape).unwrap().with_layout("k", layout).unwrap();
            let source = Source::Host(host.with_range(1, 4));
            let expected = Expected { layers: Some(2), heads: 3, dim: 4, dtype: DType::F32 };
            let rows = TokenRows::new(&source, "k", expected).unwrap();
            let part = PlacedRows::upload(&rows, 2, 3, &Device::Cpu).unwrap();
            let (tensor, placed) = part.uploaded.as_ref().unwrap();
            assert_eq!(tensor.elem_count(), 2 * 3 * 3 * 16, "no more than its rows");
            let mut copy = vec![0; tensor.elem_count()];
            download(tensor, 0, &mut copy).unwrap();
            for (layer, head, token) in (0..18).map(|at| (at / 9, at / 3 % 3, at % 3)) {
                let (from, to) = (rows.rows.at(layer, head, token), placed.at(layer, head, token));
                assert_eq!(copy[to..to + 16], bytes[from..from + 16], "{layer} {head} {token}");
            }
        }
    }
}
