//! A worker: a cache, its tiers, its sequences and its jobs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtide_core::Code;
use kvtide_files::{CacheFile, CacheLoad, Save};
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{BeginOptions, PagedKvCache, PagedSnapshot, PromptOptions};
use kvtide_tiers::{
    Access, CallerGate, Clock, Envelope, GateOptions, GuardOptions, MemoryOptions, Policy, Prober, Restore,
    TierOptions, Tiers, TiersOptions, Writer,
};
use proptest::prelude::*;

use crate::calls::Shape;
use crate::driven::Driven;
use crate::rows::{Sequence, append, check, parts};
use crate::run::Done;
use crate::world::Form;

/// Tokens under a salt.
pub type Prefix = (u8, Vec<u32>);

pub struct Worker {
    pub form: Form,
    pub cache: PagedKvCache,
    pub tiers: Tiers,
    pub gate: Arc<CallerGate>,
    pub sequences: Vec<Sequence>,
    snapshots: Vec<(PagedSnapshot, Sequence)>,
    pub jobs: Vec<Job>,
    /// The prefixes that were computed since prefixes were forgotten, if they were.
    pub since_forgotten: Option<HashSet<Prefix>>,
}

pub enum Job {
    Restore(Driven<Restore>, Prefix),
    Write(Driven<Writer>),
    Probe(Driven<Prober>),
    /// A save that has begun; one whose pages are written.
    Save(Save),
    Written(Save),
    /// A load of a file, and how often prefixes had been forgotten when it was requested; one with blocks.
    Load(CacheFile, u64),
    Loading(CacheFile, CacheLoad, u64),
}

/// The most sequences and jobs at a time.
const MOST: usize = 4;

pub fn options(salt: u8) -> PromptOptions<'static> {
    PromptOptions { salt: if salt == 0 { b"" } else { b"a tenant" }, ..PromptOptions::default() }
}

pub fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Checks that a call was refused for lack of blocks or memory.
pub fn refused(error: &kvtide_tensor::Error) -> Done {
    prop_assert!(matches!(error.code(), Code::OutOfBlocks | Code::OutOfMemory), "{}", error);
    Ok(())
}

impl Worker {
    pub fn new(shape: &Shape, form: &Form, clock: Arc<dyn Clock>, budget: &Arc<Budget>) -> Self {
        let mut cache = form.cache();
        let second = Duration::from_secs(1);
        let gate = GateOptions { backoff_min: second, backoff_max: second * 4, ..GateOptions::default() };
        let gate = GuardOptions { gate, ..GuardOptions::default() };
        let gate = Arc::new(CallerGate::with_clock(gate, true, clock).unwrap());
        let (compressed, sealed) = shape.envelope;
        let envelope = Envelope::new(sealed.then_some([5; 32]), compressed.then_some(2)).unwrap();
        let policy = [Policy::Commit, Policy::SecondUse, Policy::Eviction][usize::from(shape.policy)];
        let below = TierOptions { name: "store", access: Access::Caller(gate.clone()), envelope, policy };
        let memory = |limit_bytes| MemoryOptions { limit_bytes, policy: Policy::Eviction };
        let tiers = TiersOptions {
            memory: shape.memory.map(memory),
            lower: vec![below],
            budget: Some(budget.clone()),
            ..TiersOptions::default()
        };
        let tiers = Tiers::attach(&mut cache, tiers).unwrap();
        Worker {
            form: form.clone(),
            cache,
            tiers,
            gate,
            sequences: Vec::new(),
            snapshots: Vec::new(),
            jobs: Vec::new(),
            since_forgotten: None,
        }
    }

    /// Returns the index of one of the sequences.
    pub fn pick(&self, of: usize) -> Option<usize> {
        of.checked_rem(self.sequences.len())
    }

    pub fn make_room(&mut self) {
        if self.sequences.len() == MOST {
            let oldest = self.sequences.remove(0);
            self.cache.drop_sequence(oldest.id).unwrap();
        }
    }

    /// Adds a job, unless there are too many.
    pub fn begin(&mut self, job: Job) {
        if self.jobs.len() < MOST {
            self.jobs.push(job);
        }
    }

    pub fn append(&mut self, of: usize, tokens: &[u32], are_known: bool) -> Done {
        let Some(at) = self.pick(of) else { return Ok(()) };
        let sequence = &mut self.sequences[at];
        for tokens in parts(&self.form, sequence.rows.len(), tokens) {
            let rows = sequence.next_rows(tokens, are_known);
            match append(&mut self.cache, &self.form, (sequence, None), are_known.then_some(tokens), &rows) {
                Ok(()) => sequence.push(tokens, &rows, are_known),
                Err(error) => return refused(&error),
            }
        }
        Ok(())
    }

    pub fn fork(&mut self, of: usize) {
        self.make_room();
        if let Some(at) = self.pick(of) {
            let id = self.cache.fork(self.sequences[at].id).unwrap();
            self.sequences.push(Sequence { id, ..self.sequences[at].clone() });
        }
    }

    pub fn drop(&mut self, of: usize) {
        if let Some(at) = self.pick(of) {
            self.cache.drop_sequence(self.sequences.remove(at).id).unwrap();
        }
    }

    pub fn truncate(&mut self, of: usize, length: u32) {
        let Some(at) = self.pick(of) else { return };
        let length = length.min(self.sequences[at].rows.len() as u32);
        // Refused if a window has dropped tokens that would be needed.
        if self.cache.truncate(self.sequences[at].id, length).is_ok() {
            self.sequences[at].truncate(length as usize);
        }
    }

    pub fn snapshot(&mut self, of: usize) {
        if let Some(at) = self.pick(of) {
            let sequence = self.sequences[at].clone();
            self.snapshots.push((self.cache.snapshot(sequence.id).unwrap(), sequence));
            if self.snapshots.len() > MOST {
                self.snapshots.remove(0);
            }
        }
    }

    pub fn restore(&mut self, of: usize, snapshot: usize) -> Done {
        let (Some(at), Some(from)) = (self.pick(of), snapshot.checked_rem(self.snapshots.len())) else {
            return Ok(());
        };
        let (snapshot, content) = &self.snapshots[from];
        let sequence = &mut self.sequences[at];
        if sequence.salt != content.salt {
            return Ok(());
        }
        match self.cache.restore(sequence.id, snapshot) {
            Ok(()) => *sequence = Sequence { id: sequence.id, ..content.clone() },
            Err(error) => refused(&error)?,
        }
        Ok(())
    }

    /// Tries tokens, and keeps some of them.
    pub fn draft(&mut self, of: usize, tokens: &[u32], kept: usize) -> Done {
        let Some(at) = self.pick(of) else { return Ok(()) };
        let sequence = &mut self.sequences[at];
        let draft = match self.cache.begin(sequence.id, None, BeginOptions::default()) {
            Ok(draft) => draft,
            Err(error) => return refused(&error),
        };
        let rows = sequence.next_rows(tokens, true);
        let appended = append(&mut self.cache, &self.form, (sequence, Some(draft)), Some(tokens), &rows);
        if let Err(error) = appended {
            self.cache.rollback(sequence.id, draft);
            return refused(&error);
        }
        if kept > tokens.len() {
            self.cache.rollback(sequence.id, draft);
            return Ok(());
        }
        match self.cache.commit(sequence.id, draft, Some(kept as u64)) {
            Ok(()) => sequence.push(&tokens[..kept], &rows[..kept], true),
            Err(error) => {
                self.cache.rollback(sequence.id, draft);
                // There is no state after some of the tokens of a draft.
                let is_cut = !self.form.states.is_empty() && kept < tokens.len();
                if !is_cut || error.code() != Code::CannotRollBack {
                    refused(&error)?;
                }
            }
        }
        Ok(())
    }

    pub fn forget(&mut self) {
        self.cache.forget_prefixes().unwrap();
        self.since_forgotten = Some(HashSet::new());
    }

    /// Compares the worker with the model.
    pub fn check(&mut self) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        for sequence in &self.sequences {
            check(&mut self.cache, &self.form, sequence)?;
        }
        Ok(())
    }

    /// Drops everything that holds blocks, and checks that all blocks are free.
    pub fn end(&mut self) -> Done {
        for job in &mut self.jobs {
            match job {
                Job::Restore(driven, _) => driven.give_up(),
                Job::Write(driven) => driven.give_up(),
                Job::Probe(driven) => driven.give_up(),
                _ => {}
            }
        }
        (self.jobs, self.snapshots) = (Vec::new(), Vec::new());
        for sequence in self.sequences.drain(..) {
            self.cache.drop_sequence(sequence.id).unwrap();
        }
        self.check()?;
        prop_assert_eq!(self.cache.free_count(), self.cache.total_count(), "blocks are held");
        let health = self.tiers.health().unwrap();
        prop_assert_eq!((health.operations_in_flight, health.bytes_in_flight), (0, 0));
        Ok(())
    }
}
