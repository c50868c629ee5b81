//! Reads tokens from pages: unquantised rows as they are, and codes as floats.

use kvtide_core::paged::KeyOrValue;
use kvtide_cuda::{Direction, QuantisedPage, Rows, Span, Strip, Strips, copy_strips};

use super::slabs::{Launched, heads, quantised_pages, sections};
use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::edit::download;
use crate::kernels::quantise::LaunchedRows;
use crate::tensor::view::View;

/// Neighbouring slots of a page that are read.
#[derive(Clone, Copy, Debug)]
pub(in crate::paged) struct ReadRun {
    pub block: u32,
    /// Its staging page, if its rows are there.
    pub staged: Option<u32>,
    pub slot: u32,
    pub tokens: u32,
    /// The index in the output of the first one.
    pub token: u32,
}

/// A read: slots of pages of one layer, and the number of tokens in the output.
#[derive(Clone, Copy, Debug)]
pub(in crate::paged) struct LayerRead<'a> {
    pub layer: u32,
    pub runs: &'a [ReadRun],
    pub tokens: usize,
}

/// The output for K or V: contiguous `[heads, tokens, dim]`.
type Out<'a> = Option<Span<'a>>;

impl Launched<'_> {
    /// Gathers K or V of a layer into device memory that was zeroed before.
    pub fn gather(&self, reading: LayerRead<'_>, part: KeyOrValue, view: &View) -> Result<()> {
        view.buffer.launch(&[self.slabs.slab.storage(), self.slabs.staging.storage()], |memory, sources| {
            let out = |of: KeyOrValue| (of == part).then_some(memory);
            self.take(reading, [sources[0], sources[1]], KeyOrValue::BOTH.map(out))
        })
    }

    /// Reads K and V of a layer into host memory, through device memory. Unwritten slots are zeros.
    pub fn read(&self, reading: LayerRead<'_>, [k, v]: [&mut [u8]; 2]) -> Result<()> {
        let second = k.len().next_multiple_of(16);
        let dims = Dims::new("shape", &[second + v.len()])?;
        let both = View::zeros(dims, DType::U8, &Budget::of(self.slabs.slab.tensor.device()))?;
        both.buffer.launch(&[self.slabs.slab.storage(), self.slabs.staging.storage()], |memory, sources| {
            self.take(reading, [sources[0], sources[1]], [Some(memory), Some(memory.from(second))])
        })?;
        download(&both.buffer.tensor, 0, k)?;
        download(&both.buffer.tensor, second, v)
    }

    fn take(&self, reading: LayerRead<'_>, [slab, staging]: [Span<'_>; 2], outs: [Out<'_>; 2]) -> Result<()> {
        let (slab, staging) = (self.slabs.slab.span(slab), self.slabs.staging.span(staging));
        if !self.slabs.shape.pages.is_low_bit() {
            return self.take_rows(reading, slab, outs);
        }
        let rows = KeyOrValue::BOTH.map(|part| {
            let dtype = self.slabs.shape.read_dtype(part);
            let token = self.slabs.shape.pages.section(part).head_dim * dtype.bytes();
            let memory = outs[part as usize].unwrap_or(Span::of(&[]));
            LaunchedRows { memory, head: reading.tokens * token, token, dtype }
        });
        let codecs = self.slabs.shape.codecs.each_ref().map(Option::as_ref);
        for is_staged in [false, true] {
            let (layout, memory, codecs) = match is_staged {
                true => (&self.slabs.shape.staged, staging, [None; 2]),
                false => (&self.slabs.shape.pages, slab, codecs),
            };
            let of_these = reading.runs.iter().filter(|run| run.staged.is_some() == is_staged);
            let pages: Vec<QuantisedPage> = of_these
                .map(|run| QuantisedPage {
                    page: match run.staged {
                        Some(page) => layout.page_offset(page, 0),
                        None => layout.page_offset(run.block, reading.layer),
                    } as u64,
                    rows: rows.map(|rows| u64::from(run.token) * rows.token as u64),
                    slot: run.slot,
                    tokens: run.tokens,
                })
                .collect();
            if !pages.is_empty() {
                let mut of = quantised_pages(layout, codecs, memory, rows);
                of.parts.iter_mut().zip(outs).filter(|(_, out)| out.is_none()).for_each(|(part, _)| part.dim = 0);
                kvtide_cuda::unseal(&self.stream, &of, &pages)?;
            }
        }
        Ok(())
    }

    fn take_rows(&self, reading: LayerRead<'_>, pages: Span<'_>, outs: [Out<'_>; 2]) -> Result<()> {
        let layout = &self.slabs.shape.pages;
        let strip = |run: &ReadRun| Strip {
            page: layout.page_offset(run.block, reading.layer) as u64,
            token: run.token,
            slot: run.slot,
            tokens: run.tokens,
            layer: 0,
        };
        let strips: Vec<Strip> = reading.runs.iter().map(strip).collect();
        let mut sections = sections(layout);
        let rows = [0, 1].map(|part| {
            let token = sections[part].row;
            // A part that is not requested has no rows.
            let memory = outs[part].or(outs[1 - part]).unwrap_or(Span::of(&[]));
            sections[part].row = if outs[part].is_some() { token } else { 0 };
            Rows { memory, offset: 0, layer: 0, head: reading.tokens * token, token }
        });
        let page_bytes = layout.page_bytes();
        let of = Strips { pages, page_bytes, sections, rows, heads: heads(layout), layers: 1, layer_bytes: page_bytes };
        Ok(copy_strips(&self.stream, Direction::Gather, &of, &strips)?)
    }
}
