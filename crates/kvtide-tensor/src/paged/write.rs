//! Writes: one token, tokens of one layer, or tokens of all layers of several sequences.
//!
//! ```text
//! plan      which slots, which staging pages        refused: nothing has changed
//! prepare   memory of the bookkeeping, of staging, and of what quantises
//! copy      blocks that others see too
//! move      rows to pages
//! commit    slots marked, lengths moved on
//! ```
//!
//! O(bytes of the new tokens); a low-bit page is quantised once, when it is full.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::counted;
use kvtide_core::paged::{Append, KeyOrValue, Seal, WritePlan, Writer};

use super::launched::{self, copy_pieces};
use super::planned::PlannedWrite;
use super::portable;
use super::rows::{Expected, TokenRows};
use super::scratch::Scratch;
use super::slab::Slab;
use super::staging::Pages;
use crate::base::error::{Error, Result};
use crate::kernels::pages::{Sources, check_sources, scatter};
use crate::paged::PageGroup;
use crate::tensor::source::Source;

impl PageGroup {
    /// Writes one token of one layer; grows by itself.
    pub fn write_kv(&mut self, sequence: u64, layer: u32, position: u32, [k, v]: [Source<'_>; 2]) -> Result<()> {
        self.change()?;
        let rows = [
            TokenRows::one(&k, "key", self.expected(KeyOrValue::Key, None))?,
            TokenRows::one(&v, "value", self.expected(KeyOrValue::Value, None))?,
        ];
        self.write_rows(sequence, layer, position, &rows)
    }

    /// Writes neighbouring tokens of one layer from `position` on: K and V `[kvHeads, n, headDim]`, or with a 1 before it.
    /// Grows by itself.
    pub fn write_tokens(&mut self, sequence: u64, layer: u32, position: u32, sources: [Source<'_>; 2]) -> Result<()> {
        self.change()?;
        let rows = self.rows(sources, None)?;
        self.write_rows(sequence, layer, position, &rows)
    }

    fn write_rows(&mut self, sequence: u64, layer: u32, position: u32, rows: &[TokenRows<'_>; 2]) -> Result<()> {
        let tokens = rows[0].tokens;
        let write = self.planner.check_tokens(sequence, layer, position, tokens)?;
        let planned = self.plan_write(write)?;
        self.carry_out(planned, rows, None)
    }

    /// Appends tokens of all layers to sequences: K and V `[layers, kvHeads, tokens, headDim]`, their ids where they are known.
    pub fn append_rows(&mut self, append: &Append<'_>, sources: [Source<'_>; 2], tokens: Option<&[u32]>) -> Result<()> {
        self.change()?;
        let rows = self.rows(sources, Some(self.planner.num_layers() as usize))?;
        self.append_read(append, &rows, tokens)
    }

    /// The same to one sequence: tokens that a transaction drafts may be a tree.
    pub fn append_to(
        &mut self,
        sequence: u64,
        writer: Writer,
        sources: [Source<'_>; 2],
        parents: Option<&[i32]>,
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.change()?;
        let rows = self.rows(sources, Some(self.planner.num_layers() as usize))?;
        if let Some(parents) = parents
            && parents.len() != rows[0].tokens as usize
        {
            let expected = format!("one for each of {}", counted(rows[0].tokens.into(), "token"));
            return Err(Error::argument("parents", counted(parents.len() as u64, "parent"), expected));
        }
        let offsets = [0, rows[0].tokens];
        let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents, writer };
        self.append_read(&append, &rows, tokens)
    }

    fn append_read(&mut self, append: &Append<'_>, rows: &[TokenRows<'_>; 2], tokens: Option<&[u32]>) -> Result<()> {
        let write = self.planner.check_append(append)?;
        let wanted = write.tokens();
        if wanted != rows[0].tokens {
            let expected = format!("{}, as the offsets say", counted(wanted.into(), "token"));
            return Err(Error::argument("k", counted(rows[0].tokens.into(), "token"), expected));
        }
        if let Some(ids) = tokens
            && ids.len() != wanted as usize
        {
            return Err(Error::argument("tokens.length", ids.len(), format!("{wanted}, one for each token")));
        }
        let planned = self.plan_write(write)?;
        self.carry_out(planned, rows, tokens)
    }

    /// What K and V of a layer are to be.
    pub(crate) fn expected_rows(&self) -> [Expected; 2] {
        KeyOrValue::BOTH.map(|part| self.expected(part, None))
    }

    fn expected(&self, part: KeyOrValue, layers: Option<usize>) -> Expected {
        Expected {
            layers,
            heads: self.slab.layout.shape().num_kv_heads as usize,
            dim: self.slab.layout.section(part).head_dim,
            dtype: self.shape.dtype,
        }
    }

    /// K and V of a call, of as many tokens.
    pub(super) fn rows<'a>(&self, [k, v]: [Source<'a>; 2], layers: Option<usize>) -> Result<[TokenRows<'a>; 2]> {
        let rows = [
            TokenRows::new(&k, "k", self.expected(KeyOrValue::Key, layers))?,
            TokenRows::new(&v, "v", self.expected(KeyOrValue::Value, layers))?,
        ];
        for (rows, argument) in rows.iter().zip(["k", "v"]) {
            rows.check_device(argument, self.slab.tensor.device())?;
        }
        check_alike(rows[0].tokens, rows[1].tokens, &v)?;
        Ok(rows)
    }

    /// Refuses K and V of one layer as [`PageGroup::rows`] does, and copies nothing; answers how many tokens they are.
    pub(super) fn tokens_of(&self, [k, v]: [&Source<'_>; 2]) -> Result<u32> {
        let device = self.slab.tensor.device();
        let keys = TokenRows::check(k, "k", self.expected(KeyOrValue::Key, None), device)?;
        let values = TokenRows::check(v, "v", self.expected(KeyOrValue::Value, None), device)?;
        check_alike(keys, values, v)?;
        Ok(keys)
    }

    /// Moves rows where a plan says, and commits it. `tokens` are their ids, where they are known.
    fn carry_out(
        &mut self,
        mut planned: PlannedWrite,
        rows: &[TokenRows<'_>; 2],
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.poisoned = true;
        self.copy_before(&mut planned)?;
        let PlannedWrite { plan, scratch, .. } = &planned;
        self.open_staged(plan, scratch)?;
        self.move_in(plan, plan.layers(), rows, scratch)?;
        self.seal_filled(plan, scratch)?;
        self.planner.commit(plan, tokens)?;
        self.poisoned = false;
        Ok(())
    }

    /// Makes the staging pages of a plan ready for its rows.
    pub(super) fn open_staged(&self, plan: &WritePlan, scratch: &Scratch) -> Result<()> {
        self.both_slabs().open(plan, scratch)
    }

    /// Moves rows of some layers of a plan where it says.
    pub(super) fn move_in(
        &self,
        plan: &WritePlan,
        layers: Range<u32>,
        rows: &[TokenRows<'_>; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        if !self.shape.pages.is_low_bit() {
            if portable::is_chosen(&self.slab)? {
                return portable::scatter(&self.slab, plan, layers, rows);
            }
            if let Some(stream) = self.slab.stream()? {
                return launched::scatter(&stream, &self.slab, plan, layers, rows);
            }
            return edit_with(&self.slab, rows, |slab, sources| {
                scatter(slab, &self.shape.pages, layers.clone(), plan.runs(), sources)
            });
        }
        let pages = self.both_slabs();
        if let Some(stream) = self.slab.stream()? {
            launched::seal_whole(&stream, &self.shape, &self.slab, plan, layers.clone(), rows)?;
            return launched::stage(&stream, &self.staging, plan, layers, rows);
        }
        edit_with(&self.slab, rows, |slab, sources| {
            check_sources(&self.shape.staged, layers.clone(), plan.runs(), sources);
            pages.write_whole(plan, layers.clone(), slab, sources, scratch)
        })?;
        edit_with(&self.staging, rows, |staging, sources| {
            pages.stage(plan, layers.clone(), staging, sources);
            Ok(())
        })
    }

    /// Quantises the pages that a plan filled.
    pub(super) fn seal_filled(&self, plan: &WritePlan, scratch: &Scratch) -> Result<()> {
        let filled = plan.pages().iter().filter(|write| write.fills);
        self.seal(&filled.map(|write| Seal { page: write.page, staged: write.staged }).collect::<Vec<_>>(), scratch)
    }

    /// Quantises pages that lie in floats.
    pub(super) fn seal(&self, seals: &[Seal], scratch: &Scratch) -> Result<()> {
        self.both_slabs().close(seals, scratch)
    }

    pub(super) fn both_slabs(&self) -> Pages<'_> {
        Pages { shape: &self.shape, slab: &self.slab, staging: &self.staging }
    }

    /// Makes room for so many staging pages: twice as many as there were if that fits, with their rows.
    pub(super) fn reserve_staging(&mut self, pages: u32) -> Result<()> {
        if pages <= self.staging.blocks {
            return Ok(());
        }
        let wanted = self.staging.blocks.saturating_mul(2).max(pages);
        let grown = Slab::new(self.shape.staged, wanted, &self.budget)
            .or_else(|_| Slab::new(self.shape.staged, pages, &self.budget))?;
        let kept = self.staging.bytes() as usize;
        if kept > 0 {
            match grown.stream()? {
                Some(stream) => copy_pieces(&stream, (&self.staging, &grown), kept, 1, &[(0, 0)])?,
                None => grown.edit(&[self.staging.storage()], |new, old| {
                    new[..kept].copy_from_slice(self.staging.pages(old[0]));
                })?,
            }
            self.growths += 1;
            self.copied_bytes += kept as u64;
        }
        self.staging = Arc::new(grown);
        Ok(())
    }
}

/// Refuses values of other tokens than the keys.
fn check_alike(keys: u32, values: u32, v: &Source<'_>) -> Result<()> {
    if keys == values {
        return Ok(());
    }
    Err(Error::ShapeMismatch {
        argument: "v",
        value: v.dims(),
        expected: format!("{}, as k", counted(keys.into(), "token")),
    })
}

/// Runs `work` on a slab's pages and on the bytes of the rows that go there.
fn edit_with(
    slab: &Slab,
    rows: &[TokenRows<'_>; 2],
    work: impl Fn(&mut [u8], &Sources<'_>) -> Result<()>,
) -> Result<()> {
    let tensors: Vec<_> = rows.iter().filter_map(TokenRows::tensor).collect();
    let done = RefCell::new(Ok(()));
    slab.edit(&tensors, |pages, found| {
        let mut found = found.iter().copied();
        let sources = [0, 1].map(|part| (rows[part].bytes(&mut found), rows[part].rows));
        *done.borrow_mut() = work(pages, &sources);
    })?;
    done.into_inner()
}
