//! A log of writes, which tells the slots of a buffer that were written since a view was made.
//!
//! Writes form *sweeps*: each write begins where the last one ended. A write that begins elsewhere (a compaction, an
//! append after a truncate) opens the next sweep. Within a sweep the slot itself is the time, so one number per sweep
//! is enough:
//!
//! ```text
//! slots   0         6              14        20
//!         [ sweep 3 | head →        |         ]
//!         written    left over from  sweep 1
//! ```
//!
//! A slot was written after a stamp if its sweep is later, or if the sweep is the same and the slot is at or behind the
//! stamp's head. Slots keep the last sweep that wrote them, in segments on two stacks, left and right of the head.
//! `record` is O(1) amortised over the segments that earlier calls made. `written_since` is O(log segments) for slots
//! left of the head, where live views are; right of it (after a roll-back) it checks each segment of the view.

use std::cmp::Ordering;

use crate::run::Run;

/// A moment in the history of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    sweep: u64,
    head: u32,
}

impl Stamp {
    /// The stamp as two numbers.
    #[must_use]
    pub fn to_raw(self) -> (u64, u32) {
        (self.sweep, self.head)
    }

    /// The stamp with these numbers.
    #[must_use]
    pub fn from_raw(sweep: u64, head: u32) -> Self {
        Stamp { sweep, head }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SweptRun {
    run: Run,
    sweep: u64,
}

impl SweptRun {
    fn written_since(&self, stamp: Stamp, run: Run) -> bool {
        !self.written_of(stamp, run).is_empty()
    }

    /// The slots of `run` that this sweep wrote after `stamp`.
    fn written_of(&self, stamp: Stamp, run: Run) -> Run {
        let shown = self.run.overlap(run);
        let first = match self.sweep.cmp(&stamp.sweep) {
            Ordering::Less => shown.end(),
            Ordering::Equal => shown.start.max(stamp.head).min(shown.end()),
            Ordering::Greater => shown.start,
        };
        Run::new(first, shown.end() - first)
    }
}

/// The last sweep that wrote each slot.
#[derive(Clone, Debug, Default)]
pub struct WriteLog {
    sweep: u64,
    head: u32,
    /// Segments left of the head, lowest slot first.
    left: Vec<SweptRun>,
    /// Segments right of the head, highest slot first.
    right: Vec<SweptRun>,
    /// True if a segment on `left` has an earlier sweep than one to its left: a write jumped over older slots.
    jumped: bool,
}

impl WriteLog {
    /// The stamp of the present moment.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp { sweep: self.sweep, head: self.head }
    }

    /// Records that the slots of `run` are being written.
    pub fn record(&mut self, run: Run) {
        if run.is_empty() {
            return;
        }
        if run.start != self.head || self.left.is_empty() {
            self.move_head(run.start);
            self.sweep += 1;
            self.left.push(SweptRun { run: Run::new(run.start, 0), sweep: self.sweep });
        }
        self.head = run.end();
        if let Some(current) = self.left.last_mut() {
            current.run.len = run.end() - current.run.start;
        }
        self.cover_right();
    }

    /// True if a slot of `run` was written after `stamp`.
    #[must_use]
    pub fn written_since(&self, stamp: Stamp, run: Run) -> bool {
        if run.is_empty() || stamp == self.stamp() {
            return false;
        }
        let shown = &self.left[..self.left.partition_point(|segment| segment.run.start < run.end())];
        let left = shown.iter().rev().take_while(|segment| segment.run.end() > run.start);
        // Without a jump, checking the latest segment is enough.
        let left = left.take(if self.jumped { usize::MAX } else { 1 });
        let right = self.right.iter().rev().take_while(|segment| segment.run.start < run.end());
        left.chain(right).any(|segment| segment.written_since(stamp, run))
    }

    /// The slots of `run` that were written after `stamp`, in ascending order. O(segments).
    #[must_use]
    pub fn written(&self, stamp: Stamp, run: Run) -> Vec<Run> {
        let segments = self.left.iter().chain(self.right.iter().rev());
        segments.map(|segment| segment.written_of(stamp, run)).filter(|written| !written.is_empty()).collect()
    }

    /// Moves the border between the stacks to `slot`, and splits the segment across it.
    fn move_head(&mut self, slot: u32) {
        while let Some(segment) = self.left.pop_if(|segment| segment.run.end() > slot) {
            let (before, behind) = split(segment, slot);
            self.right.push(behind);
            self.left.extend(before);
        }
        while let Some(segment) = self.right.pop_if(|segment| segment.run.start < slot) {
            let (before, behind) = split(segment, slot);
            self.jumped |= before.is_some() && !self.left.is_empty();
            self.left.extend(before);
            if !behind.run.is_empty() {
                self.right.push(behind);
            }
        }
        if self.left.is_empty() {
            self.jumped = false;
        }
    }

    /// Removes slots left of the head from the right stack.
    fn cover_right(&mut self) {
        while let Some(segment) = self.right.pop_if(|segment| segment.run.start < self.head) {
            let (_, behind) = split(segment, self.head);
            if !behind.run.is_empty() {
                self.right.push(behind);
            }
        }
    }
}

/// Splits `segment` into the slots before `slot` and those from `slot` on.
fn split(segment: SweptRun, slot: u32) -> (Option<SweptRun>, SweptRun) {
    let before = slot.saturating_sub(segment.run.start).min(segment.run.len);
    let head = SweptRun { run: segment.run.slice(0, before), ..segment };
    let tail = SweptRun { run: segment.run.slice(before, segment.run.len), ..segment };
    ((before > 0).then_some(head), tail)
}
