//! A rotating cache next to a window that keeps everything.

use std::mem;

use kvtide_core::Code;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{Error, Rotating, RotatingCacheOptions, RotatingSnapshot, View};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::outcome::{Done, code, unless_out_of_memory};
use crate::rotating::call::{End, Op, Setup};
use crate::rotating::model::Model;
use crate::sightings::{Sightings, Wrote};
use crate::sources::{Fed, Form};
use crate::tokens::Id;
use crate::windows::Window;

/// A cache, its model, and all that was seen.
pub struct Pair<const PARTS: usize> {
    setup: Setup,
    cache: Rotating<PARTS>,
    number: usize,
    model: Model,
    /// The result of the last append, and the number of tokens that it added.
    last: Option<(Vec<Id>, usize)>,
    sightings: Sightings,
    /// With what each saw, the number of its cache, and whether no other was restored since it was taken or restored.
    snapshots: Vec<(RotatingSnapshot<PARTS>, Model, (usize, bool))>,
    next: Id,
    /// The same token was appended twice.
    repeats: bool,
}

impl<const PARTS: usize> Pair<PARTS>
where
    Rotating<PARTS>: Window<PARTS>,
{
    pub fn new(setup: Setup) -> Result<Self, TestCaseError> {
        let model = Model { window: setup.window as usize, sinks: setup.sinks as usize, tokens: Vec::new() };
        let cache = Rotating::new(setup.options())?;
        let (sightings, snapshots) = (Sightings::default(), Vec::new());
        Ok(Pair { setup, cache, number: 0, model, last: None, sightings, snapshots, next: 1, repeats: false })
    }

    pub fn call(&mut self, op: &Op) -> Result<Wrote, TestCaseError> {
        match *op {
            Op::Append(tokens, forms) => self.append(tokens, forms)?,
            Op::AppendOwn(start, len) => self.append_own(start, len)?,
            Op::SetLen(len) => self.set_len(len)?,
            Op::Reset => {
                self.cache.reset()?;
                self.model.tokens.clear();
                self.last = None;
            }
            Op::Look(start, len) => self.look(start, len)?,
            Op::Forget(which) => self.sightings.forget(which),
            Op::Snapshot => self.snapshots.push((self.cache.snapshot()?, self.model.clone(), (self.number, true))),
            Op::DropSnapshot(which) => {
                self.chosen(which).map(|which| self.snapshots.swap_remove(which));
            }
            Op::Restore(which) => {
                // A snapshot of the cache's own puts back what was written over since, and nothing else.
                if !self.restore(which)? {
                    return Ok(Wrote::AnyTokens);
                }
            }
            Op::RestoreElsewhere(which, tokens, slack, end) => self.restore_elsewhere(which, tokens, slack, end)?,
            Op::Revive(which, accepted, form, end) => self.revive(which, accepted, form, end)?,
            Op::Accepted(which, keep, row, batch) => self.accepted(which, keep, row, batch)?,
        }
        Ok(if self.repeats { Wrote::AnyTokens } else { Wrote::NewTokens })
    }

    fn chosen(&self, which: u32) -> Option<usize> {
        (which as usize).checked_rem(self.snapshots.len())
    }

    fn new_ids(&mut self, tokens: u32) -> Vec<Id> {
        let first = self.next;
        self.next += Id::from(tokens);
        (first..self.next).collect()
    }

    fn append(&mut self, tokens: u32, forms: [Form; 2]) -> Done {
        let ids = self.new_ids(tokens);
        let fed: [Fed; PARTS] = std::array::from_fn(|part| Fed::new(forms[part], &self.setup.rows, part, &ids));
        let views = self.cache.feed(fed.each_ref().map(Fed::source));
        self.appended(&ids, views)
    }

    fn append_own(&mut self, start: u32, len: u32) -> Done {
        let Some(views) = self.cache.present()? else { return Ok(()) };
        let retained = self.model.retained();
        let start = start as usize % (retained.len() + 1);
        let len = len as usize % (retained.len() - start + 1);
        let ids = self.model.ids(&retained[start..start + len]);
        let mut own = views;
        for view in &mut own {
            *view = view.narrow(self.setup.rows.axis, start, len)?;
        }
        self.repeats = true;
        let views = self.cache.feed(own.each_ref().map(Source::from));
        self.appended(&ids, views)
    }

    fn appended(&mut self, ids: &[Id], views: Result<[View; PARTS], Error>) -> Done {
        let Some(views) = unless_out_of_memory(self.setup.limit, views)? else { return Ok(()) };
        let shown = self.model.append(ids);
        self.last = Some((self.model.ids(&shown), ids.len()));
        self.see(views, &shown)
    }

    fn see(&mut self, views: [View; PARTS], positions: &[usize]) -> Done {
        let whole = self.cache.whole()?;
        for (part, view) in views.into_iter().enumerate() {
            let bytes = self.setup.rows.bytes(part, &self.model.ids(positions));
            let whole = whole.as_ref().map(|whole| &whole[part]);
            self.sightings.see(self.number, whole, view, bytes, positions)?;
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> Done {
        let checked = code(self.cache.try_set_len(len));
        let done = code(self.cache.set_len(len));
        prop_assert_eq!(checked, done);
        if self.model.can_set_len(len as usize) {
            prop_assert_eq!(done, Ok(()));
            self.model.tokens.truncate(len as usize);
            self.last = None;
        } else {
            prop_assert_eq!(done, Err(Code::CannotRollBack));
        }
        Ok(())
    }

    fn look(&mut self, start: u32, len: u32) -> Done {
        let Some(views) = self.cache.present()? else { return Ok(()) };
        let retained = self.model.retained();
        let start = start as usize % (retained.len() + 1);
        let len = len as usize % (retained.len() - start + 1);
        let mut parts = views.clone();
        for view in &mut parts {
            *view = view.narrow(self.setup.rows.axis, start, len)?;
        }
        self.see(views, &retained)?;
        self.see(parts, &retained[start..start + len])
    }

    /// Restores a snapshot. True if the snapshot, if there was one, was of this cache, and no other was restored since it
    /// was taken or restored.
    fn restore(&mut self, which: u32) -> Result<bool, TestCaseError> {
        let Some(which) = self.chosen(which) else { return Ok(true) };
        let (snapshot, model, (number, latest)) = self.snapshots[which].clone();
        let restored = self.cache.restore(&snapshot);
        if unless_out_of_memory(self.setup.limit, restored)?.is_some() {
            self.model = model;
            self.last = None;
        }
        for (at, (.., (_, latest))) in self.snapshots.iter_mut().enumerate() {
            *latest = at == which;
        }
        Ok(latest && number == self.number)
    }

    fn restore_elsewhere(&mut self, which: u32, tokens: u32, slack: u32, end: End) -> Done {
        let Some(which) = self.chosen(which) else { return Ok(()) };
        let mut cache = Rotating::new(RotatingCacheOptions { slack: Some(slack), ..self.setup.options() })?;
        let ids = self.new_ids(tokens);
        let fed: [Fed; PARTS] = std::array::from_fn(|part| Fed::new(Form::Contiguous, &self.setup.rows, part, &ids));
        let fed = cache.feed(fed.each_ref().map(Fed::source)).map(|_| ());
        if unless_out_of_memory(self.setup.limit, fed)?.is_some() {
            let (snapshot, model, _) = self.snapshots[which].clone();
            let restored = cache.restore(&snapshot);
            if unless_out_of_memory(self.setup.limit, restored)?.is_some() {
                self.go_on(cache, model, end);
            }
        }
        Ok(())
    }

    fn revive(&mut self, which: u32, accepted: u32, form: Form, end: End) -> Done {
        let Some(which) = self.chosen(which) else { return Ok(()) };
        let ids = self.new_ids(accepted);
        let fed: [Fed; PARTS] = std::array::from_fn(|part| Fed::new(form, &self.setup.rows, part, &ids));
        let sources = (accepted > 0).then(|| fed.each_ref().map(Fed::source));
        let (snapshot, mut model, _) = self.snapshots[which].clone();
        let current = snapshot.current_seq_len();
        let wrong = Rotating::revive(&snapshot, sources.clone(), current + u64::from(accepted) + 1);
        prop_assert_eq!(code(wrong), Err(Code::InvalidArgument));
        let revived = Rotating::revive(&snapshot, sources, current + u64::from(accepted));
        if let Some(cache) = unless_out_of_memory(self.setup.limit, revived)? {
            model.append(&ids);
            self.go_on(cache, model, end);
        }
        Ok(())
    }

    fn go_on(&mut self, cache: Rotating<PARTS>, model: Model, end: End) {
        let mut before = mem::replace(&mut self.cache, cache);
        if let End::Close = end {
            before.close();
            self.sightings.close(self.number);
        }
        (self.model, self.last) = (model, None);
        self.number += 1;
    }

    fn accepted(&mut self, which: u32, keep: u64, row: u64, batch: u64) -> Done {
        let Some(which) = self.chosen(which) else { return Ok(()) };
        let snapshot = self.snapshots[which].0.clone();
        let (rows, keep) = (&self.setup.rows, snapshot.current_seq_len() + keep);
        let divisible = if rows.axis == 0 { 1 } else { rows.dims[0] as u64 };
        let accepted = (keep - snapshot.current_seq_len()) as usize;
        let answer = self.cache.accepted(&snapshot, keep, row, batch);
        let answer = answer.map_err(|error| error.code());
        let Some((shown, tokens)) = &self.last else {
            prop_assert_eq!(answer.map(|_| ()), Err(Code::CacheEmpty));
            return Ok(());
        };
        if batch == 0 || divisible % batch != 0 || row >= batch || accepted > *tokens {
            prop_assert_eq!(answer.map(|_| ()), Err(Code::InvalidArgument));
        } else if accepted == 0 {
            prop_assert!(matches!(answer, Ok(None)));
        } else {
            let first = shown.len() - tokens;
            let ids = &shown[first..first + accepted];
            let views = answer.ok().flatten().expect("tokens were accepted");
            for (part, view) in views.iter().enumerate() {
                let all = rows.bytes(part, ids);
                let len = all.len() / batch as usize;
                let expected = if rows.axis == 0 { &all[..] } else { &all[row as usize * len..][..len] };
                prop_assert_eq!(view.to_bytes()?, expected);
            }
        }
        Ok(())
    }

    pub fn check(&mut self, wrote: Wrote) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        let retained = self.model.retained();
        prop_assert_eq!(self.cache.current_seq_len(), self.model.tokens.len() as u64);
        prop_assert_eq!(self.cache.retained_len() as usize, retained.len());
        let capacity = self.cache.capacity_seq_len() as usize;
        prop_assert!(retained.len() <= capacity && capacity <= self.model.limit());
        let rows = &self.setup.rows;
        let read = |views: Option<[View; PARTS]>| {
            views
                .map(|views| views.each_ref().map(View::to_bytes).into_iter().collect::<Result<Vec<_>, _>>())
                .transpose()
        };
        let bytes = |ids: &[Id]| (0..PARTS).map(|part| rows.bytes(part, ids)).collect::<Vec<_>>();
        let present = (!self.model.tokens.is_empty()).then(|| bytes(&self.model.ids(&retained)));
        prop_assert_eq!(read(self.cache.present()?)?, present);
        prop_assert_eq!(read(self.cache.latest())?, self.last.as_ref().map(|(ids, _)| bytes(ids)));
        self.sightings.check(wrote)
    }

    /// Whatever has happened: every snapshot gives what it saw, and nothing but the buffer costs memory in the end.
    pub fn check_at_the_end(mut self) -> Done {
        for (snapshot, model, _) in &self.snapshots {
            let revived = Rotating::revive(snapshot, None, snapshot.current_seq_len());
            let Some(cache) = unless_out_of_memory(self.setup.limit, revived)? else { continue };
            prop_assert_eq!(cache.current_seq_len(), model.tokens.len() as u64);
            for (part, view) in cache.present()?.into_iter().flatten().enumerate() {
                prop_assert_eq!(view.to_bytes()?, self.setup.rows.bytes(part, &model.ids(&model.retained())));
            }
        }
        self.sightings.clear();
        self.snapshots.clear();
        self.cache.reset()?;
        let stats = self.cache.stats();
        prop_assert_eq!((stats.used_bytes, stats.held_bytes), (stats.buffer_bytes, 0));
        Ok(())
    }
}
