//! A `KvCache` beside a list that keeps everything.

use std::mem;

use kvtide_core::Code;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{KvCache, KvCacheOptions, KvSnapshot, View};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::outcome::{Done, code, unless_out_of_memory};
use crate::sightings::{Sightings, Wrote};
use crate::sources::{Fed, Form};
use crate::tokens::{Id, Rows, place};
use crate::windows::pair;

/// A call. Numbers that choose among what is there are taken modulo how much there is.
#[derive(Clone, Debug)]
pub enum Op {
    Update(u32, [Form; 2]),
    /// The cache's own views, or a part of them.
    UpdateOwn(u32, u32),
    Truncate(u64),
    Reset,
    /// A kernel writes so many rows itself; they are counted afterwards.
    Kernel(u32),
    /// Keeps the present views and a part of them.
    Look(u32, u32),
    Forget(u32),
    Snapshot,
    DropSnapshot(u32),
    Restore(u32),
    /// Restores into a cache with so many slots and tokens of its own, and closes the present one or drops it.
    RestoreElsewhere {
        which: u32,
        slots: u32,
        tokens: u32,
        close: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub rows: Rows,
    pub initial: u32,
    pub max: u32,
    pub stable: bool,
    pub limit: Option<u64>,
}

impl Setup {
    fn options(&self) -> KvCacheOptions {
        KvCacheOptions {
            batch_size: self.rows.dims[0] as u32,
            num_kv_heads: self.rows.dims[1] as u32,
            initial_capacity: self.initial,
            max_seq_len: self.max,
            head_dim: self.rows.dims[3] as u32,
            dtype: self.rows.dtype,
            stable_addresses: self.stable,
            memory_limit_bytes: self.limit,
            ..Default::default()
        }
    }
}

/// A cache, its tokens, and all that was seen.
pub struct Pair {
    setup: Setup,
    cache: KvCache,
    number: usize,
    tokens: Vec<Id>,
    sightings: Sightings,
    /// With the tokens that each saw, the number of its cache, and whether no other was restored since it was taken or restored.
    snapshots: Vec<(KvSnapshot, Vec<Id>, (usize, bool))>,
    next: Id,
    /// The same token was appended twice.
    repeats: bool,
}

impl Pair {
    pub fn new(setup: Setup) -> Result<Option<Self>, TestCaseError> {
        let cache = match KvCache::new(setup.options()) {
            Err(error) if setup.limit.is_some() && error.code() == Code::OutOfMemory => return Ok(None),
            cache => cache?,
        };
        let (sightings, snapshots) = (Sightings::default(), Vec::new());
        Ok(Some(Pair { setup, cache, number: 0, tokens: vec![], sightings, snapshots, next: 1, repeats: false }))
    }

    pub fn call(&mut self, op: &Op) -> Result<Wrote, TestCaseError> {
        match *op {
            Op::Update(tokens, forms) => {
                let ids = self.new_ids(tokens);
                let fed = [0, 1].map(|part| Fed::new(forms[part], &self.setup.rows, part, &ids));
                self.update(&ids, [fed[0].source(), fed[1].source()])?;
            }
            Op::UpdateOwn(start, len) => self.update_own(start, len)?,
            Op::Truncate(len) => self.truncate(len)?,
            Op::Reset => {
                self.cache.reset()?;
                self.tokens.clear();
            }
            Op::Kernel(tokens) => self.kernel(tokens)?,
            Op::Look(start, len) => self.look(start, len)?,
            Op::Forget(which) => self.sightings.forget(which),
            Op::Snapshot => self.snapshots.push((self.cache.snapshot()?, self.tokens.clone(), (self.number, true))),
            Op::DropSnapshot(which) => {
                self.chosen(which).map(|which| self.snapshots.swap_remove(which));
            }
            Op::Restore(which) => {
                // A snapshot of the cache's own puts back what was written over since, and nothing else.
                if !self.restore(which)? {
                    return Ok(Wrote::AnyTokens);
                }
            }
            Op::RestoreElsewhere { which, slots, tokens, close } => {
                self.restore_elsewhere(which, slots, tokens, close)?;
            }
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

    fn update(&mut self, ids: &[Id], [k, v]: [Source<'_>; 2]) -> Done {
        let done = self.cache.update(k, v);
        if self.tokens.len() + ids.len() > self.setup.max as usize {
            prop_assert_eq!(code(done), Err(Code::CacheOverflow));
        } else if let Some(kv) = unless_out_of_memory(self.setup.limit, done)? {
            self.tokens.extend(ids);
            self.see(pair(kv), 0, self.tokens.len())?;
        }
        Ok(())
    }

    fn update_own(&mut self, start: u32, len: u32) -> Done {
        let Some((views, start, len)) = self.part(start, len)? else { return Ok(()) };
        self.repeats = true;
        let ids = self.tokens[start..start + len].to_vec();
        let own = [views[0].narrow(2, start, len)?, views[1].narrow(2, start, len)?];
        self.update(&ids, [Source::from(&own[0]), Source::from(&own[1])])
    }

    /// The present views, and a part of them.
    fn part(&self, start: u32, len: u32) -> Result<Option<([View; 2], usize, usize)>, TestCaseError> {
        if self.tokens.is_empty() {
            prop_assert_eq!(code(self.cache.get_kv()), Err(Code::CacheEmpty));
            return Ok(None);
        }
        let start = start as usize % (self.tokens.len() + 1);
        let len = len as usize % (self.tokens.len() - start + 1);
        Ok(Some((pair(self.cache.get_kv()?), start, len)))
    }

    fn look(&mut self, start: u32, len: u32) -> Done {
        let Some((views, start, len)) = self.part(start, len)? else { return Ok(()) };
        let part = [views[0].narrow(2, start, len)?, views[1].narrow(2, start, len)?];
        self.see(views, 0, self.tokens.len())?;
        self.see(part, start, len)
    }

    fn see(&mut self, views: [View; 2], start: usize, len: usize) -> Done {
        let whole = pair(self.cache.raw()?);
        let positions: Vec<usize> = (start..start + len).collect();
        for (part, view) in views.into_iter().enumerate() {
            let bytes = self.setup.rows.bytes(part, &self.tokens[start..start + len]);
            self.sightings.see(self.number, Some(&whole[part]), view, bytes, &positions)?;
        }
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> Done {
        let done = code(self.cache.truncate(len));
        if len as usize <= self.tokens.len() {
            prop_assert_eq!(done, Ok(()));
            self.tokens.truncate(len as usize);
        } else {
            prop_assert_eq!(done, Err(Code::CannotRollBack));
        }
        Ok(())
    }

    /// A kernel's rows cannot be saved before they are written, so it must not run while a snapshot needs them.
    fn kernel(&mut self, tokens: u32) -> Done {
        let room = self.cache.capacity() as usize - self.tokens.len();
        if tokens as usize > room {
            let done = code(self.cache.increment_seq_len(tokens));
            prop_assert_eq!(done, Err(Code::CacheOverflow));
        } else if self.snapshots.is_empty() && tokens > 0 {
            let ids = self.new_ids(tokens);
            let (k, v) = self.cache.raw_tensors()?;
            for (part, raw) in [k, v].iter().enumerate() {
                raw.slice_set(&self.setup.rows.tensor(part, &ids), 2, self.tokens.len())?;
            }
            self.cache.increment_seq_len(tokens)?;
            self.tokens.extend(&ids);
        }
        Ok(())
    }

    /// Restores a snapshot. True if the snapshot, if there was one, was of this cache, and no other was restored since it
    /// was taken or restored.
    fn restore(&mut self, which: u32) -> Result<bool, TestCaseError> {
        let Some(which) = self.chosen(which) else { return Ok(true) };
        let (snapshot, tokens, (number, latest)) = self.snapshots[which].clone();
        let restored = self.cache.restore(&snapshot);
        if unless_out_of_memory(self.setup.limit, restored)?.is_some() {
            self.tokens = tokens;
        }
        for (at, (.., (_, latest))) in self.snapshots.iter_mut().enumerate() {
            *latest = at == which;
        }
        Ok(latest && number == self.number)
    }

    fn restore_elsewhere(&mut self, which: u32, slots: u32, tokens: u32, close: bool) -> Done {
        let Some(which) = self.chosen(which) else { return Ok(()) };
        let options = KvCacheOptions { initial_capacity: slots, ..self.setup.options() };
        let made = KvCache::new(options);
        let Some(mut cache) = unless_out_of_memory(self.setup.limit, made)? else { return Ok(()) };
        let ids = self.new_ids(tokens.min(self.setup.max));
        let rows = &self.setup.rows;
        let updated = cache.update(&rows.tensor(0, &ids), &rows.tensor(1, &ids)).map(|_| ());
        let Some(()) = unless_out_of_memory(self.setup.limit, updated)? else { return Ok(()) };
        let (snapshot, tokens, _) = self.snapshots[which].clone();
        let address = place(&cache.raw()?.k);
        let restored = cache.restore(&snapshot);
        if unless_out_of_memory(self.setup.limit, restored)?.is_some() {
            if self.setup.stable {
                prop_assert_eq!(place(&cache.raw()?.k), address, "a stable address has moved");
            }
            let mut before = mem::replace(&mut self.cache, cache);
            if close {
                before.close();
                self.sightings.close(self.number);
            }
            self.tokens = tokens;
            self.number += 1;
        }
        Ok(())
    }

    pub fn check(&mut self, wrote: Wrote) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        let (len, capacity) = (self.cache.seq_len(), self.cache.capacity());
        prop_assert_eq!((len as usize, self.cache.is_empty()), (self.tokens.len(), self.tokens.is_empty()));
        prop_assert!(len <= capacity && capacity <= self.setup.max);
        prop_assert!(!self.setup.stable || capacity == self.setup.max);
        let raw = self.cache.raw()?;
        prop_assert_eq!(raw.k.shape(), &self.setup.rows.shape(capacity as usize)[..]);
        if let Some((views, ..)) = self.part(0, 0)? {
            for (part, view) in views.iter().enumerate() {
                prop_assert_eq!(view.to_bytes()?, self.setup.rows.bytes(part, &self.tokens));
            }
        }
        self.sightings.check(wrote)
    }

    /// Whatever has happened: every snapshot gives what it saw, and nothing but the buffer costs memory in the end.
    pub fn check_at_the_end(mut self) -> Done {
        for (snapshot, tokens, _) in &self.snapshots {
            let mut cache = KvCache::new(KvCacheOptions { memory_limit_bytes: None, ..self.setup.options() })?;
            cache.restore(snapshot)?;
            prop_assert_eq!(cache.seq_len() as usize, tokens.len());
            if !tokens.is_empty() {
                for (part, view) in pair(cache.get_kv()?).iter().enumerate() {
                    prop_assert_eq!(view.to_bytes()?, self.setup.rows.bytes(part, tokens));
                }
            }
        }
        self.sightings.clear();
        self.snapshots.clear();
        let stats = self.cache.stats();
        prop_assert_eq!((stats.used_bytes, stats.held_bytes), (stats.buffer_bytes, 0));
        Ok(())
    }
}
