//! Tokens out of pages: rows as they lie, and codes as floats.

use kvtide_core::paged::KeyOrValue;
use kvtide_cuda::{Direction, QuantisedPage, Rows, Span, Strip, Strips, copy_strips};

use super::staging::{Slabs, pages_of};
use super::write::{heads, section};
use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::edit::download;
use crate::kernels::quantise::LaunchedRows;
use crate::tensor::view::View;

/// Neighbouring slots of a page that are read.
#[derive(Clone, Copy, Debug)]
pub(in crate::paged) struct Taken {
    pub block: u32,
    /// Its staging page, when its rows lie there.
    pub staged: Option<u32>,
    pub slot: u32,
    pub tokens: u32,
    /// Where in the output the first one goes.
    pub token: u32,
}

/// What is read: slots of pages of one layer, and how many tokens the output has.
#[derive(Clone, Copy, Debug)]
pub(in crate::paged) struct Reading<'a> {
    pub layer: u32,
    pub taken: &'a [Taken],
    pub tokens: usize,
}

/// Where K or V goes: `[heads, tokens, dim]` without gaps.
type Out<'a> = Option<Span<'a>>;

impl Slabs<'_> {
    /// Gathers K or V of a layer into memory of the device, which is zeros before.
    pub fn gather(&self, reading: Reading<'_>, part: KeyOrValue, view: &View) -> Result<()> {
        view.buffer.launch(&[self.slab.storage(), self.staging.storage()], |memory, sources| {
            let out = |of: KeyOrValue| (of == part).then_some(memory);
            self.take(reading, [sources[0], sources[1]], KeyOrValue::BOTH.map(out))
        })
    }

    /// Reads K and V of a layer into the host's memory, by way of the device's. What is not taken is zeros.
    pub fn read(&self, reading: Reading<'_>, [k, v]: [&mut [u8]; 2]) -> Result<()> {
        let second = k.len().next_multiple_of(16);
        let dims = Dims::new("shape", &[second + v.len()])?;
        let both = View::zeros(dims, DType::U8, &Budget::of(self.slab.tensor.device()))?;
        both.buffer.launch(&[self.slab.storage(), self.staging.storage()], |memory, sources| {
            self.take(reading, [sources[0], sources[1]], [Some(memory), Some(memory.from(second))])
        })?;
        download(&both.buffer.tensor, 0, k)?;
        download(&both.buffer.tensor, second, v)
    }

    fn take(&self, reading: Reading<'_>, [slab, staging]: [Span<'_>; 2], outs: [Out<'_>; 2]) -> Result<()> {
        let (slab, staging) = (self.slab.span(slab), self.staging.span(staging));
        if !self.shape.pages.is_low_bit() {
            return self.take_rows(reading, slab, outs);
        }
        let rows = KeyOrValue::BOTH.map(|part| {
            let dtype = self.shape.read_dtype(part);
            let token = self.shape.pages.section(part).head_dim * dtype.bytes();
            let memory = outs[part as usize].unwrap_or(Span::of(&[]));
            LaunchedRows { memory, head: reading.tokens * token, token, dtype }
        });
        let codecs = self.shape.codecs.each_ref().map(Option::as_ref);
        for is_staged in [false, true] {
            let (layout, memory, codecs) = match is_staged {
                true => (&self.shape.staged, staging, [None; 2]),
                false => (&self.shape.pages, slab, codecs),
            };
            let of_these = reading.taken.iter().filter(|taken| taken.staged.is_some() == is_staged);
            let pages: Vec<QuantisedPage> = of_these
                .map(|taken| QuantisedPage {
                    page: match taken.staged {
                        Some(page) => layout.page_offset(page, 0),
                        None => layout.page_offset(taken.block, reading.layer),
                    } as u64,
                    rows: rows.map(|rows| u64::from(taken.token) * rows.token as u64),
                    slot: taken.slot,
                    tokens: taken.tokens,
                })
                .collect();
            if !pages.is_empty() {
                let mut of = pages_of(layout, codecs, memory, rows);
                of.parts.iter_mut().zip(outs).filter(|(_, out)| out.is_none()).for_each(|(part, _)| part.dim = 0);
                kvtide_cuda::unseal(&self.stream, &of, &pages)?;
            }
        }
        Ok(())
    }

    fn take_rows(&self, reading: Reading<'_>, pages: Span<'_>, outs: [Out<'_>; 2]) -> Result<()> {
        let layout = &self.shape.pages;
        let strip = |taken: &Taken| Strip {
            page: layout.page_offset(taken.block, reading.layer) as u64,
            token: taken.token,
            slot: taken.slot,
            tokens: taken.tokens,
            layer: 0,
        };
        let strips: Vec<Strip> = reading.taken.iter().map(strip).collect();
        let mut sections = KeyOrValue::BOTH.map(|part| section(layout, part));
        let rows = [0, 1].map(|part| {
            let token = sections[part].row;
            // A part that is not asked for has no rows.
            let memory = outs[part].or(outs[1 - part]).unwrap_or(Span::of(&[]));
            sections[part].row = if outs[part].is_some() { token } else { 0 };
            Rows { memory, offset: 0, layer: 0, head: reading.tokens * token, token }
        });
        let page_bytes = layout.page_bytes();
        let of = Strips { pages, page_bytes, sections, rows, heads: heads(layout), layers: 1, layer_bytes: page_bytes };
        Ok(copy_strips(&self.stream, Direction::Gather, &of, &strips)?)
    }
}
