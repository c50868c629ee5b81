//! Carries out appends, and moves of rows inside the buffer.

use std::sync::Arc;

use kvtide_core::{Plan, Reads, Run, Runs, SlotMove, SlotWrite, Stamp};

use super::Contiguous;
use super::restore::save;
use crate::base::error::{Error, Result};
use crate::kernels::{copy_rows, move_rows, write};
use crate::tensor::buffer::{Buffer, RowShape};
use crate::tensor::resolved::Resolved;
use crate::tensor::shown::Shown;

impl Contiguous {
    /// Carries out an append. The buffer has `slots` slots afterwards, the last token shown is at position `end - 1`.
    pub fn carry_out<S>(
        &mut self,
        plan: &Plan<S>,
        slots: u32,
        end: u64,
        shape: &RowShape,
        sources: &mut [Resolved<'_>],
    ) -> Result<Shown> {
        self.check_change()?;
        for source in sources.iter_mut() {
            source.bring(self.budget.device())?;
        }
        if let Some(buffer) = &self.buffer {
            for source in sources.iter_mut() {
                source.stage(buffer)?;
            }
        }
        let assembled = match plan.reads {
            Reads::Shared(_) => None,
            Reads::Assembled(before) => Some(self.assemble(before, end, shape, sources)?),
        };
        let in_place = plan.resize.is_none() && !(plan.compacts() && self.is_snapshotted());
        let (buffer, stamp) = match &self.buffer {
            Some(_) if in_place => self.write_in_place(plan, sources)?,
            _ => self.write_afresh(plan, slots, shape, sources)?,
        };
        let shown = match (plan.reads, assembled) {
            (_, Some(assembled)) => assembled,
            (Reads::Shared(runs) | Reads::Assembled(runs), None) => Shown::new(buffer, runs, end, Some(stamp)),
        };
        Ok(shown.in_window(self.window))
    }

    /// Moves rows inside the buffer, to the slots `written`.
    pub fn move_rows(&mut self, moves: &[SlotMove], written: Run) -> Result<()> {
        self.check_change()?;
        let Some(buffer) = self.buffer.clone().filter(|_| !moves.is_empty()) else { return Ok(()) };
        save(&buffer, written, &self.budget, &mut self.stats)?;
        buffer.record(written);
        self.guarded(|| move_rows(&buffer, moves.iter().copied()))
    }

    /// The result that is more than the buffer holds: the rows `before`, and all of `sources`.
    fn assemble(&self, before: Runs, end: u64, shape: &RowShape, sources: &[Resolved<'_>]) -> Result<Shown> {
        let tokens = sources[0].tokens();
        let result = Arc::new(Buffer::new(*shape, before.len() + tokens, &self.budget, None)?);
        let mut slot = 0;
        for run in before.iter() {
            if let Some(buffer) = &self.buffer {
                copy_rows(buffer, run, &result, slot)?;
            }
            slot += run.len;
        }
        let all = SlotWrite { token: 0, target: Run::new(slot, tokens) };
        write(&result, std::iter::empty(), sources, [Some(all), None])?;
        result.set_held(true);
        result.set_spared(true);
        let mut parts = before.iter();
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        let runs = match second {
            Some(second) => Runs::two(Run::new(0, first.len), Run::new(first.len, second.len + tokens)),
            None => Runs::one(Run::new(0, first.len + tokens)),
        };
        Ok(Shown::new(result, runs, end, None))
    }

    /// Carries out a plan in the present buffer. Answers the buffer, and the moment after it.
    fn write_in_place<S>(&mut self, plan: &Plan<S>, sources: &[Resolved<'_>]) -> Result<(Arc<Buffer>, Stamp)> {
        let Contiguous { buffer: Some(buffer), budget, stats, poisoned, .. } = self else {
            return Err(Error::Disposed { object: "cache" });
        };
        for write in plan.writes() {
            save(buffer, write.target, budget, stats)?;
        }
        let compacts = plan.compacts();
        let moves = || plan.moves().filter(|moved| !moved.is_identity());
        if compacts {
            for moved in moves() {
                buffer.record(Run::new(moved.target, moved.source.len));
                stats.copied_bytes += buffer.bytes_of(moved.source.len);
            }
            stats.compactions += 1;
        }
        let stamp = plan.writes().map(|write| buffer.record(write.target)).last().unwrap_or_else(|| buffer.stamp());
        // Where live rows are overwritten, a failure, or a panic, leaves the cache poisoned; new rows alone are nobody's yet.
        *poisoned = compacts;
        write(buffer, moves().filter(|_| compacts), sources, plan.writes)?;
        *poisoned = false;
        Ok((buffer.clone(), stamp))
    }

    /// Carries out a plan in a new buffer, which becomes the cache's. Answers it, and the moment after it.
    fn write_afresh<S>(
        &mut self,
        plan: &Plan<S>,
        slots: u32,
        shape: &RowShape,
        sources: &[Resolved<'_>],
    ) -> Result<(Arc<Buffer>, Stamp)> {
        let fresh = self.allocate(*shape, slots)?;
        if let Some(present) = &self.buffer {
            for moved in plan.moves() {
                copy_rows(present, moved.source, &fresh, moved.target)?;
                self.stats.copied_bytes += fresh.bytes_of(moved.source.len);
            }
            *if plan.resize.is_some() { &mut self.stats.growths } else { &mut self.stats.copies_on_write } += 1;
        }
        plan.writes().for_each(|write| {
            fresh.record(write.target);
        });
        write(&fresh, std::iter::empty(), sources, plan.writes)?;
        self.adopt(fresh.clone());
        let stamp = fresh.stamp();
        Ok((fresh, stamp))
    }
}
