//! Writes of one token, of tokens of one layer, or of tokens of all layers of several sequences.
//!
//! ```text
//! check     the caller's arguments
//! plan      slots and staging pages, shared blocks that need copies; reserves all memory
//!           an error up to here changes nothing
//! copy      shared blocks (copy on write)
//! write     rows to pages, or to the staging slab
//! commit    slots are marked, lengths advance
//! ```
//!
//! So a call that fails its checks makes no copy, and of several groups of layers either all carry out the call or none. A
//! failure after the plan is a fault and poisons the cache. O(bytes of the new tokens and of the copies); a low-bit page is
//! quantised once, when it is full.

use kvtide_core::counted;
use kvtide_core::paged::{Append, CheckedWrite, CopyPlan, KeyOrValue, WritePlan, Writer};

use super::group::PageGroup;
use super::rows::{Expected, TokenRows};
use super::scratch::Scratch;
use super::slabs::{PagedShape, Slabs};
use crate::base::error::{Error, Result};
use crate::tensor::source::Source;

/// A write whose memory is reserved.
#[derive(Debug)]
#[must_use = "nothing is written until it is carried out"]
pub(crate) struct PlannedWrite {
    copies: CopyPlan,
    pub(super) plan: WritePlan,
    pub(super) scratch: Scratch,
}

impl PageGroup {
    /// Writes one token of one layer; the sequence grows as needed.
    pub fn write_kv(&mut self, sequence: u64, layer: u32, position: u32, [k, v]: [Source<'_>; 2]) -> Result<()> {
        self.change_pages()?;
        let rows = [
            TokenRows::one(&k, "key", self.expected(KeyOrValue::Key, None))?,
            TokenRows::one(&v, "value", self.expected(KeyOrValue::Value, None))?,
        ];
        let rows = self.slabs.converted(rows, None)?;
        self.write_rows(sequence, layer, position, &rows)
    }

    /// Writes neighbouring tokens of one layer from `position` on: K and V `[kvHeads, n, headDim]`, or with a 1 in front.
    /// The sequence grows as needed.
    pub fn write_tokens(&mut self, sequence: u64, layer: u32, position: u32, sources: [Source<'_>; 2]) -> Result<()> {
        self.change_pages()?;
        let rows = self.rows(sources, None)?;
        self.write_rows(sequence, layer, position, &rows)
    }

    fn write_rows(&mut self, sequence: u64, layer: u32, position: u32, rows: &[TokenRows<'_>; 2]) -> Result<()> {
        let tokens = rows[0].tokens;
        let write = self.planner.check_tokens(sequence, layer, position, tokens)?;
        let planned = self.plan_write(write)?;
        self.carry_out(planned, rows, None)
    }

    /// Appends tokens of all layers to sequences: K and V `[layers, kvHeads, tokens, headDim]`, with their ids if known.
    pub fn append_rows(&mut self, append: &Append<'_>, sources: [Source<'_>; 2], ids: Option<&[u32]>) -> Result<()> {
        self.change_pages()?;
        let rows = self.rows(sources, Some(self.planner.num_layers() as usize))?;
        self.append_checked(append, &rows, ids)
    }

    /// Like [`PageGroup::append_rows`], for one sequence; drafted tokens of a transaction may be a tree.
    pub fn append_to(
        &mut self,
        sequence: u64,
        writer: Writer,
        sources: [Source<'_>; 2],
        parents: Option<&[i32]>,
        ids: Option<&[u32]>,
    ) -> Result<()> {
        self.change_pages()?;
        let rows = self.rows(sources, Some(self.planner.num_layers() as usize))?;
        if let Some(parents) = parents
            && parents.len() != rows[0].tokens as usize
        {
            let expected = format!("one for each of {}", counted(rows[0].tokens.into(), "token"));
            return Err(Error::argument("parents", counted(parents.len() as u64, "parent"), expected));
        }
        let offsets = [0, rows[0].tokens];
        let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents, writer };
        self.append_checked(&append, &rows, ids)
    }

    fn append_checked(&mut self, append: &Append<'_>, rows: &[TokenRows<'_>; 2], ids: Option<&[u32]>) -> Result<()> {
        let write = self.planner.check_append(append)?;
        check_count(rows[0].tokens, write.tokens(), "the number in the offsets")?;
        check_ids(ids, write.tokens())?;
        let planned = self.plan_write(write)?;
        self.carry_out(planned, rows, ids)
    }

    /// The expected shape of K or V in a call, with one layer unless `layers` is given.
    pub(crate) fn expected(&self, part: KeyOrValue, layers: Option<usize>) -> Expected {
        self.slabs.expected(part, layers)
    }

    /// K and V of a call, with equally many tokens.
    fn rows<'a>(&self, sources: [Source<'a>; 2], layers: Option<usize>) -> Result<[TokenRows<'a>; 2]> {
        self.slabs.rows(sources, layers)
    }

    /// Checks K and V of one layer like [`PageGroup::rows`], without copying; returns the number of tokens.
    pub(super) fn tokens_of(&self, [k, v]: [&Source<'_>; 2]) -> Result<u32> {
        let device = self.slab().tensor.device();
        let keys = TokenRows::check(k, "k", self.expected(KeyOrValue::Key, None), device)?;
        let values = TokenRows::check(v, "v", self.expected(KeyOrValue::Value, None), device)?;
        check_alike(keys, values, v)?;
        Ok(keys)
    }

    /// Plans a write that was checked, with the copies before it, and reserves the memory of both: after that it cannot fail
    /// for lack of memory.
    pub(super) fn plan_write(&mut self, write: CheckedWrite) -> Result<PlannedWrite> {
        let (copies, plan) = self.planner.plan_write(write)?;
        let scratch = Scratch::of(&self.slabs.shape, &plan, !copies.copies().is_empty())?;
        let staging_pages = self.planner.reserve_after(&copies, &plan)?;
        self.hand_down_evicted();
        self.reserve_staging(staging_pages)?;
        Ok(PlannedWrite { copies, plan, scratch })
    }

    /// Copies shared blocks, so that the plan writes only to blocks that are not shared, and prepares its staging pages.
    pub(super) fn prepare_write(&mut self, planned: &mut PlannedWrite) -> Result<()> {
        let PlannedWrite { copies, plan, scratch } = planned;
        if !copies.copies().is_empty() {
            self.copy_blocks(copies)?;
        }
        self.planner.commit_copies_before(copies, plan)?;
        self.slabs.open(plan, scratch)
    }

    pub(super) fn copy_blocks(&mut self, copies: &CopyPlan) -> Result<()> {
        self.slabs.copy_blocks(copies)?;
        self.copied_bytes += copies.copies().len() as u64 * self.shape().pages.block_bytes() as u64;
        Ok(())
    }

    /// Carries a write out and commits it.
    fn carry_out(&mut self, mut planned: PlannedWrite, rows: &[TokenRows<'_>; 2], ids: Option<&[u32]>) -> Result<()> {
        self.poisoned = true;
        self.prepare_write(&mut planned)?;
        let PlannedWrite { plan, scratch, .. } = &planned;
        self.slabs.write(plan, plan.layers(), rows, scratch)?;
        self.planner.commit(plan, ids)?;
        self.poisoned = false;
        Ok(())
    }
}

impl Slabs {
    /// The expected shape of K or V in a call, with one layer unless `layers` is given.
    fn expected(&self, part: KeyOrValue, layers: Option<usize>) -> Expected {
        let PagedShape { dtype, pages, .. } = &self.shape;
        Expected { layers, heads: self.shape.heads(), dim: pages.section(part).head_dim, dtype: *dtype }
    }

    /// K and V of a call, with equally many tokens.
    pub(super) fn rows<'a>(&self, [k, v]: [Source<'a>; 2], layers: Option<usize>) -> Result<[TokenRows<'a>; 2]> {
        let rows = [
            TokenRows::new(&k, "k", self.expected(KeyOrValue::Key, layers))?,
            TokenRows::new(&v, "v", self.expected(KeyOrValue::Value, layers))?,
        ];
        for (rows, argument) in rows.iter().zip(["k", "v"]) {
            rows.check_device(argument, self.slab.tensor.device())?;
        }
        check_alike(rows[0].tokens, rows[1].tokens, &v)?;
        self.converted(rows, layers)
    }

    /// Converts the rows to the float type of the pages, if that differs.
    fn converted<'a>(&self, [k, v]: [TokenRows<'a>; 2], layers: Option<usize>) -> Result<[TokenRows<'a>; 2]> {
        let (layers, heads) = (layers.unwrap_or(1), self.shape.heads());
        let of = |rows: TokenRows<'a>, part| rows.into_dtype(self.shape.row_dtype(part), layers, heads);
        Ok([of(k, KeyOrValue::Key)?, of(v, KeyOrValue::Value)?])
    }
}

/// Fails unless there are as many tokens as expected.
pub(super) fn check_count(tokens: u32, expected: u32, why: &str) -> Result<()> {
    if tokens == expected {
        return Ok(());
    }
    let expected = format!("{}, {why}", counted(expected.into(), "token"));
    Err(Error::argument("k", counted(tokens.into(), "token"), expected))
}

/// Fails unless there are as many ids as tokens.
pub(crate) fn check_ids(ids: Option<&[u32]>, tokens: u32) -> Result<()> {
    match ids {
        Some(ids) if ids.len() != tokens as usize => {
            Err(Error::argument("tokens.length", ids.len(), format!("{tokens}, one for each token")))
        }
        _ => Ok(()),
    }
}

/// Fails unless there are as many values as keys.
fn check_alike(keys: u32, values: u32, v: &Source<'_>) -> Result<()> {
    if keys == values {
        return Ok(());
    }
    Err(Error::ShapeMismatch {
        argument: "v",
        value: v.dims(),
        expected: format!("{}, the number in k", counted(keys.into(), "token")),
    })
}
