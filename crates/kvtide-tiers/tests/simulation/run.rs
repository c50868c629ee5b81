//! Two workers, their store and their disk, next to the model.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvtide_core::Code;
use kvtide_files::{CacheFile, LoadOptions, Save, Sink, Source, Watch, load_sequence, save_sequence_bytes};
use kvtide_tensor::PagedKvCache;
use kvtide_tensor::runtime::Budget;
use kvtide_tiers::{Clock, TierSet};
use proptest::prelude::*;

use crate::calls::{Call, Fate, Shape};
use crate::disk::{Fault, SimDisk};
use crate::driven::{Driven, Next};
use crate::rows::{Sequence, check, form};
use crate::shelf::Shelf;
use crate::worker::{Job, Prefix, Worker, later, options, refused};
use crate::world::{Form, KEY};

pub type Done = Result<(), TestCaseError>;

const PATH: &str = "/caches/shared.kv";

/// A clock that goes on when a test says so.
#[derive(Debug, Default)]
struct SimClock(AtomicU64);

impl Clock for SimClock {
    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Finds a prompt's prefix, and compares its content with the model. Returns its length.
fn check_prefix(cache: &mut PagedKvCache, form: &Form, salt: u8, tokens: &[u32]) -> Result<usize, TestCaseError> {
    let prefix = cache.find_prefix(tokens, options(salt), false).unwrap();
    let found = &tokens[..prefix.length() as usize];
    let mut sequence = Sequence { salt, ..Sequence::default() };
    sequence.push(found, &sequence.next_rows(found, true), true);
    sequence.id = cache.create_sequence_from(prefix).unwrap();
    check(cache, form, &sequence)?;
    cache.drop_sequence(sequence.id).unwrap();
    Ok(found.len())
}

pub struct World {
    shape: Shape,
    form: Form,
    clock: Arc<SimClock>,
    disk: Arc<SimDisk>,
    shelf: Shelf,
    budget: Arc<Budget>,
    workers: [Worker; 2],
    at: usize,
    /// All prefixes that were computed.
    computed: HashSet<Prefix>,
    /// The latest prompts.
    prompts: Vec<Prefix>,
    /// True once a save was acknowledged, and the contents that the file may have after the power failed.
    is_saved: bool,
    contents: Vec<Vec<u8>>,
    log: Vec<String>,
}

impl World {
    pub fn new(shape: &Shape) -> Self {
        let form = Form { blocks: shape.blocks, block_size: 2, ..form(shape.form) };
        let (clock, budget) = (Arc::new(SimClock::default()), Budget::new(None));
        let worker = || Worker::new(shape, &form, clock.clone(), &budget);
        let workers = [worker(), worker()];
        World {
            shape: *shape,
            form: form.clone(),
            clock,
            disk: Arc::default(),
            shelf: Shelf { digits: shape.digits, ..Shelf::default() },
            budget,
            workers,
            at: 0,
            computed: HashSet::new(),
            prompts: Vec::new(),
            is_saved: false,
            contents: Vec::new(),
            log: Vec::new(),
        }
    }

    fn worker(&mut self) -> &mut Worker {
        &mut self.workers[self.at]
    }

    pub fn call(&mut self, call: &Call) -> Done {
        let worker = &mut self.workers[self.at];
        match *call {
            Call::Other => self.at = 1 - self.at,
            Call::Prompt(ref tokens, salt, partial) => return self.prompt(tokens, salt, partial),
            Call::Append(of, ref tokens, are_known) => worker.append(of, tokens, are_known)?,
            Call::Fork(of) => worker.fork(of),
            Call::Drop(of) => worker.drop(of),
            Call::Truncate(of, length) => worker.truncate(of, length),
            Call::Snapshot(of) => worker.snapshot(of),
            Call::Restore(of, snapshot) => worker.restore(of, snapshot)?,
            Call::Draft(of, ref tokens, kept) => worker.draft(of, tokens, kept as usize)?,
            Call::Move(of) => return self.move_over(of),
            Call::Forget => worker.forget(),
            Call::HandDown(most) => drop(worker.cache.hand_down(most)),
            Call::Down(is_down) => self.shelf.is_down = is_down,
            Call::Damage(kind, at) => self.shelf.damage(kind, at),
            Call::DiskFails(at) => self.disk.set_faults(&[(at.into(), Fault::Fails(std::io::ErrorKind::StorageFull))]),
            Call::Budget(room) => self.budget.set_limit(self.budget.used() + u64::from(room)),
            Call::Advance(millis) => self.advance(millis.into()),
            Call::Kill => self.kill(self.at),
            Call::PowerLoss(at, seed) => return self.lose_power(at, seed),
            _ => return self.call_of_job(call),
        }
        if let Call::Append(..) | Call::Draft(..) = call {
            self.note();
        }
        Ok(())
    }

    fn call_of_job(&mut self, call: &Call) -> Done {
        let (worker, shelf) = (&mut self.workers[self.at], &mut self.shelf);
        let pick = |worker: &Worker, of: usize| of.checked_rem(worker.jobs.len());
        match *call {
            Call::Ask(ref tokens, salt) => {
                let restore = worker.tiers.restore(&mut worker.cache, tokens, options(salt), TierSet::ALL, later());
                let driven = Driven::new(restore.unwrap(), worker.gate.clone());
                worker.begin(Job::Restore(driven, (salt, tokens.clone())));
            }
            Call::Write if !worker.jobs.iter().any(|job| matches!(job, Job::Write(_))) => {
                worker.begin(Job::Write(Driven::new(worker.tiers.writer(), worker.gate.clone())));
            }
            Call::Probe if !worker.jobs.iter().any(|job| matches!(job, Job::Probe(_))) => {
                worker.begin(Job::Probe(Driven::new(worker.tiers.prober(), worker.gate.clone())));
            }
            Call::BeginSave => {
                let save = Save::cache(&mut worker.cache).unwrap();
                worker.begin(Job::Save(save));
            }
            Call::BeginLoad => match Source::file_in(&*self.disk, Path::new(PATH)).and_then(CacheFile::open) {
                Ok(file) => {
                    let since = worker.cache.forgotten();
                    worker.begin(Job::Load(file, since));
                }
                Err(error) => prop_assert_eq!(error.code(), Code::IoError, "{}", error),
            },
            Call::Step(of, fate) => {
                if let Some(at) = pick(worker, of) {
                    self.step(at, fate)?;
                }
            }
            Call::Finish(of) => {
                let Some(at) = pick(worker, of) else { return Ok(()) };
                // A store that is down is asked a few times.
                for _ in 0..50 {
                    if self.step(at, Fate::Answers)? {
                        break;
                    }
                    self.advance(100);
                }
            }
            Call::Arrive(of) => match pick(worker, of).map(|at| &mut worker.jobs[at]) {
                Some(Job::Restore(driven, _)) => driven.arrive(shelf),
                Some(Job::Write(driven)) => driven.arrive(shelf),
                Some(Job::Probe(driven)) => driven.arrive(shelf),
                _ => {}
            },
            Call::GiveUp(of) => match pick(worker, of).map(|at| worker.jobs.remove(at)) {
                Some(Job::Restore(mut driven, _)) => driven.give_up(),
                // A writer is never given up: its calls are misses.
                Some(Job::Write(driven)) => worker.jobs.push(Job::Write(driven)),
                Some(Job::Probe(mut driven)) => driven.give_up(),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, millis: u64) {
        self.clock.0.fetch_add(millis, Ordering::Relaxed);
        self.disk.advance(Duration::from_millis(millis));
    }

    /// Kills a worker, which cleans nothing up, and starts it again.
    fn kill(&mut self, at: usize) {
        self.disk.set_down(true);
        self.restart(at);
        self.disk.set_down(false);
    }

    fn restart(&mut self, at: usize) {
        self.workers[at] = Worker::new(&self.shape, &self.form, self.clock.clone(), &self.budget);
    }

    /// Notes the prefixes of all sequences of the worker as computed.
    fn note(&mut self) {
        let worker = &mut self.workers[self.at];
        for Sequence { salt, ids, known, .. } in &worker.sequences {
            for length in 1..=*known {
                self.computed.insert((*salt, ids[..length].to_vec()));
                if let Some(own) = &mut worker.since_forgotten {
                    own.insert((*salt, ids[..length].to_vec()));
                }
            }
        }
    }

    /// Finds a prompt's prefix, computes the rest, and keeps the sequence.
    fn prompt(&mut self, tokens: &[u32], salt: u8, partial: bool) -> Done {
        self.prompts.push((salt, tokens.to_vec()));
        if self.prompts.len() > 6 {
            self.prompts.remove(0);
        }
        let worker = &mut self.workers[self.at];
        worker.make_room();
        let prefix = worker.cache.find_prefix(tokens, options(salt), partial).unwrap();
        let length = prefix.length() as usize;
        self.log.push(format!("{length} tokens found of {}", tokens.len()));
        let is_allowed = |own: &HashSet<Prefix>| length == 0 || own.contains(&(salt, tokens[..length].to_vec()));
        prop_assert!(is_allowed(&self.computed), "{} tokens of {:?}: not computed", length, tokens);
        prop_assert!(worker.since_forgotten.as_ref().is_none_or(is_allowed), "{} of {:?}: forgotten", length, tokens);
        let id = worker.cache.create_sequence_from(prefix).unwrap();
        let mut sequence = Sequence { id, salt, ..Sequence::default() };
        let rows = sequence.next_rows(&tokens[..length], true);
        sequence.push(&tokens[..length], &rows, true);
        worker.sequences.push(sequence);
        worker.append(worker.sequences.len() - 1, &tokens[length..], true)?;
        self.note();
        Ok(())
    }

    /// Saves a sequence, and loads it into the other worker's cache.
    fn move_over(&mut self, of: usize) -> Done {
        let Some(at) = self.worker().pick(of) else { return Ok(()) };
        let worker = self.worker();
        let sequence = worker.sequences[at].clone();
        let bytes = save_sequence_bytes(&mut worker.cache, sequence.id, &Watch::default()).unwrap();
        self.at = 1 - self.at;
        let worker = self.worker();
        worker.make_room();
        match load_sequence(&mut worker.cache, Source::bytes(bytes), options(sequence.salt), &Watch::default()) {
            Ok(id) => worker.sequences.push(Sequence { id, ..sequence }),
            Err(kvtide_files::Error::Cache(error)) => refused(&error)?,
            Err(error) => prop_assert!(false, "{}", error),
        }
        self.note();
        Ok(())
    }

    /// Advances a job by one step. Returns true if it has ended, and removes it.
    fn step(&mut self, at: usize, fate: Fate) -> Result<bool, TestCaseError> {
        let job = self.workers[self.at].jobs.remove(at);
        let next = match job {
            Job::Save(_) | Job::Written(_) => self.step_of_save(job)?,
            Job::Load(..) | Job::Loading(..) => self.step_of_load(job)?,
            _ => self.step_of_tiers(job, fate)?,
        };
        let has_ended = next.is_none();
        self.workers[self.at].jobs.splice(at..at, next);
        Ok(has_ended)
    }

    fn step_of_tiers(&mut self, mut job: Job, fate: Fate) -> Result<Option<Job>, TestCaseError> {
        let (worker, shelf) = (&mut self.workers[self.at], &mut self.shelf);
        let has_ended = match &mut job {
            Job::Restore(driven, (salt, tokens)) => match driven.step(fate, shelf) {
                Next::Cache => {
                    driven.driver.machine.begin(&mut worker.cache).unwrap();
                    // The threads that copy from memory end here, so that a trace repeats.
                    driven.driver.machine.fetch(later());
                    false
                }
                Next::Done => {
                    let arrived = driven.driver.machine.end(&mut worker.cache).unwrap();
                    let found = driven.driver.machine.find(&mut worker.cache, false).unwrap().length();
                    let again = check_prefix(&mut worker.cache, &self.form, *salt, tokens)?;
                    prop_assert_eq!(found as usize, again, "{:?}", tokens);
                    self.log.push(format!("{} blocks arrived from memory", arrived[0]));
                    self.log.push(format!("{} blocks arrived from the store", arrived[1]));
                    driven.give_up();
                    true
                }
                _ => false,
            },
            Job::Write(driven) => {
                let has_ended = *driven.step(fate, shelf) == Next::Done;
                if has_ended {
                    self.log.push(format!("written: {}", shelf.shown()));
                    driven.give_up();
                }
                has_ended
            }
            Job::Probe(driven) => {
                let has_ended = *driven.step(fate, shelf) == Next::Done;
                if has_ended {
                    driven.give_up();
                }
                has_ended
            }
            _ => true,
        };
        Ok((!has_ended).then_some(job))
    }

    fn step_of_save(&mut self, job: Job) -> Result<Option<Job>, TestCaseError> {
        let sink = || Sink::file_in(self.disk.clone(), Path::new(PATH));
        let saved = match job {
            Job::Save(mut save) => match sink().and_then(|sink| save.write(sink, &Watch::default())) {
                Ok(()) => return Ok(Some(Job::Written(save))),
                refusal => refusal,
            },
            Job::Written(mut save) => {
                save.leave_out(&self.workers[self.at].cache).and_then(|()| save.finish().map(drop))
            }
            _ => return Ok(None),
        };
        if let Err(error) = &saved {
            prop_assert_eq!(error.code(), Code::IoError, "{}", error);
        }
        self.acknowledge(saved.is_ok());
        Ok(None)
    }

    /// Notes the content of the file after a save that was acknowledged or refused.
    fn acknowledge(&mut self, is_saved: bool) {
        self.log.push(if is_saved { "saved" } else { "a save is refused" }.to_owned());
        if is_saved {
            self.is_saved = true;
            self.contents.clear();
        }
        if self.disk.files().iter().any(|path| path == Path::new(PATH)) {
            self.contents.push(self.disk.bytes(Path::new(PATH)));
        }
    }

    fn step_of_load(&mut self, job: Job) -> Result<Option<Job>, TestCaseError> {
        let worker = &mut self.workers[self.at];
        let done = match job {
            Job::Load(file, since) => match file.begin(&mut worker.cache) {
                Ok(load) => return Ok(Some(Job::Loading(file, load.since(since), since))),
                Err(error) => Err(error),
            },
            Job::Loading(file, load, since) => file.read(&load, &Watch::default()).and_then(|()| {
                let is_named = file.end(&mut worker.cache, &load)?;
                self.log.push(format!("{} blocks loaded: {is_named}", load.blocks()));
                if is_named && since == worker.cache.forgotten() {
                    // The file may have any prefix.
                    worker.since_forgotten = None;
                }
                Ok(())
            }),
            _ => Ok(()),
        };
        match done {
            Err(kvtide_files::Error::Cache(error)) => refused(&error)?,
            Err(error) => prop_assert_eq!(error.code(), Code::IoError, "{}", error),
            Ok(()) => {}
        }
        Ok(None)
    }

    /// The power fails, possibly during a save, and all workers start again.
    fn lose_power(&mut self, at: Option<u8>, seed: u32) -> Done {
        let (disk, cache) = (self.disk.clone(), &mut self.workers[self.at].cache);
        let mut is_torn = false;
        if let Some(at) = at {
            disk.set_faults(&[(at.into(), Fault::PowerFails)]);
            let mut save = || -> kvtide_files::Result<_> {
                let mut save = Save::cache(cache)?;
                save.write(Sink::file_in(disk.clone(), Path::new(PATH))?, &Watch::default())?;
                save.finish()
            };
            let saved = save();
            is_torn = saved.is_err();
            self.acknowledge(!is_torn);
        }
        (0..2).for_each(|at| self.kill(at));
        disk.lose_power(seed.into());
        let is_there = disk.files().iter().any(|path| path == Path::new(PATH));
        prop_assert!(is_there || !self.is_saved, "an acknowledged save is lost");
        if is_there {
            let bytes = disk.bytes(Path::new(PATH));
            prop_assert!(is_torn || self.contents.contains(&bytes), "the file is none of those that were saved");
            self.contents = vec![bytes];
            let mut cache = self.load()?;
            self.check_found(&mut cache)?;
        } else {
            self.contents.clear();
        }
        Ok(())
    }

    fn load(&self) -> Result<PagedKvCache, TestCaseError> {
        let options = LoadOptions { prefix_key: Some(KEY), ..LoadOptions::default() };
        let file = Source::file_in(&*self.disk, Path::new(PATH)).and_then(CacheFile::open);
        let cache = file.and_then(|file| file.load(options, &Watch::default()));
        cache.map_err(|error| TestCaseError::fail(format!("the saved cache is broken: {error}")))
    }

    /// Checks what a cache has of the latest prompts.
    fn check_found(&mut self, cache: &mut PagedKvCache) -> Done {
        cache.check_invariants().map_err(TestCaseError::fail)?;
        for (salt, tokens) in &self.prompts {
            let found = check_prefix(cache, &self.form, *salt, tokens)?;
            self.log.push(format!("{found} tokens of {} are in a file", tokens.len()));
        }
        Ok(())
    }

    pub fn check(&mut self) -> Done {
        let memory = self.shape.memory;
        let worker = self.worker();
        worker.check()?;
        if let Some(limit) = memory {
            prop_assert!(worker.tiers.stats()[0].1.bytes <= limit, "the memory tier is over its limit");
        }
        Ok(())
    }

    /// Ends the faults, and checks that nothing is held and that blocks are offloaded and restored again.
    pub fn end(mut self) -> Result<Vec<String>, TestCaseError> {
        self.shelf.is_down = false;
        self.disk.set_faults(&[]);
        self.budget.set_limit(u64::MAX);
        self.advance(1 << 24);
        for at in 0..2 {
            self.workers[at].check()?;
            self.workers[at].end()?;
            self.restart(at);
        }
        self.check_recovery()?;
        let World { workers, budget, log, .. } = self;
        drop(workers);
        prop_assert_eq!(budget.used(), 0, "bytes of blocks are held");
        Ok(log)
    }

    fn check_recovery(&mut self) -> Done {
        // Tokens that no call has, so that no entry of them is damaged.
        let tokens: Vec<u32> = (70..83).collect();
        self.at = 0;
        self.prompt(&tokens, 1, false)?;
        while self.worker().cache.hand_down(usize::MAX) {}
        self.finish(&Call::Write)?;
        prop_assert!(!self.worker().tiers.has_queued_for_caller());
        self.finish(&Call::BeginSave)?;
        let mut loaded = self.load()?;
        let found = loaded.find_prefix(&tokens, options(1), false).unwrap().length();
        prop_assert_eq!(found, 12, "a saved prompt is not found");
        self.check_found(&mut loaded)?;
        prop_assert_eq!(self.disk.files().len(), 1, "temporary files are left");
        if self.shape.policy == 0 && self.shape.digits.is_none() {
            self.at = 1;
            self.finish(&Call::Ask(tokens.clone(), 1))?;
            let found = self.worker().cache.find_prefix(&tokens, options(1), false).unwrap().length();
            prop_assert_eq!(found, 12, "an offloaded prompt is not restored");
            self.prompt(&tokens, 1, false)?;
            self.check()?;
        }
        Ok(())
    }

    /// Begins a job, and advances it until it ends.
    fn finish(&mut self, begin: &Call) -> Done {
        self.call(begin)?;
        self.call(&Call::Finish(0))?;
        prop_assert!(self.worker().jobs.is_empty(), "a job does not end: {:?}", begin);
        Ok(())
    }
}
