//! Sets of workers. Each distinct set is stored once and has an id: two sets are equal if their ids are.
//!
//! ```text
//! blocks      a  b  c  d  e  f          most blocks have the same holders as the block before
//! their sets  7  7  7  7  3  3
//! sets        7: {0, 4, 61}   3: {4}    one bit for each worker, `stride` words
//! ```
//!
//! So a block needs four bytes for its set, whatever the number of workers. Sets are reference-counted: a set is freed
//! with its last reference. The hash of a set is the exclusive or of one random number per member. Adding or removing a
//! member is O(stride), and `stride` is one for up to 64 workers.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use kvtide_core::Error as CoreError;

use super::worker_id::{WORKERS_MAX, WorkerId};
use crate::error::Result;

/// The id of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetId(u32);

impl SetId {
    /// The empty set, which is never freed.
    pub(super) const EMPTY: SetId = SetId(0);

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self == SetId::EMPTY
    }

    fn at(self) -> usize {
        self.0 as usize
    }
}

pub(super) const STRIDE_MAX: usize = WORKERS_MAX / 64;

#[derive(Debug)]
pub(super) struct WorkerSets {
    stride: usize,
    words: Vec<u64>,
    hashes: Vec<u64>,
    /// The reference count of each set; 0 for free ids.
    mentions: Vec<u32>,
    free: Vec<u32>,
    by_content: HashTable<u32>,
    of_member: Vec<u64>,
}

impl WorkerSets {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        WorkerSets {
            stride: 1,
            words: vec![0],
            hashes: vec![0],
            mentions: vec![1],
            free: Vec::new(),
            by_content: HashTable::new(),
            of_member: (0..WORKERS_MAX).map(|worker| random.hash_one(worker)).collect(),
        }
    }

    /// Makes every set large enough for a worker. O(sets) if that takes another word.
    pub(super) fn make_room(&mut self, worker: WorkerId) -> Result<()> {
        let stride = worker.index() / 64 + 1;
        if stride <= self.stride {
            return Ok(());
        }
        let mut words = reserved(self.mentions.len() * stride)?;
        for set in self.words.chunks(self.stride) {
            words.extend(set);
            words.resize(words.len() + stride - self.stride, 0);
        }
        (self.words, self.stride) = (words, stride);
        Ok(())
    }

    #[inline]
    pub(super) fn contains(&self, set: SetId, worker: WorkerId) -> bool {
        let (word, bit) = (worker.index() / 64, worker.index() % 64);
        word < self.stride && self.words[set.at() * self.stride + word] >> bit & 1 == 1
    }

    /// Allocates memory for so many calls of `flip`.
    pub(super) fn reserve(&mut self, flips: usize) -> Result<()> {
        let what = "sets of workers";
        let out_of_memory = || CoreError::OutOfMemory { count: flips as u64, what };
        self.words.try_reserve(flips * self.stride).map_err(|_| out_of_memory())?;
        for numbers in [&mut self.mentions, &mut self.free] {
            numbers.try_reserve(flips).map_err(|_| out_of_memory())?;
        }
        self.hashes.try_reserve(flips).map_err(|_| out_of_memory())?;
        let hashes = &self.hashes;
        self.by_content.try_reserve(flips, |&id| hashes[id as usize]).map_err(|_| out_of_memory())?;
        Ok(())
    }

    /// Replaces one reference to a set by a reference to the set with `worker` added or removed.
    pub(super) fn flip(&mut self, set: SetId, worker: WorkerId) -> SetId {
        let changed = self.mention_flipped(set, worker);
        self.forget(set);
        changed
    }

    /// Adds a reference to the set that has `worker` added or removed.
    fn mention_flipped(&mut self, set: SetId, worker: WorkerId) -> SetId {
        let mut content = [0; STRIDE_MAX];
        let content = &mut content[..self.stride];
        content.copy_from_slice(&self.words[set.at() * self.stride..][..self.stride]);
        content[worker.index() / 64] ^= 1 << (worker.index() % 64);
        if content.iter().all(|&word| word == 0) {
            return SetId::EMPTY;
        }
        let hash = self.hashes[set.at()] ^ self.of_member[worker.index()];
        let (words, stride) = (&self.words, self.stride);
        let is_same = |&id: &u32| words[id as usize * stride..][..stride] == *content;
        if let Some(&id) = self.by_content.find(hash, is_same) {
            self.mentions[id as usize] += 1;
            return SetId(id);
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.words.resize(self.words.len() + self.stride, 0);
            self.hashes.push(0);
            self.mentions.push(0);
            (self.mentions.len() - 1) as u32
        });
        self.words[id as usize * self.stride..][..self.stride].copy_from_slice(content);
        self.hashes[id as usize] = hash;
        self.mentions[id as usize] = 1;
        let hashes = &self.hashes;
        self.by_content.insert_unique(hash, id, |&id| hashes[id as usize]);
        SetId(id)
    }

    /// Drops one reference to a set.
    pub(super) fn forget(&mut self, set: SetId) {
        if set.is_empty() {
            return;
        }
        self.mentions[set.at()] -= 1;
        if self.mentions[set.at()] == 0 {
            if let Ok(entry) = self.by_content.find_entry(self.hashes[set.at()], |&id| id == set.0) {
                entry.remove();
            }
            self.free.push(set.0);
        }
    }

    /// For every set that contains `worker`, the set without it. References are replaced afterwards, by `take_over`.
    /// O(sets).
    pub(super) fn without(&mut self, worker: WorkerId) -> Result<Vec<Option<SetId>>> {
        let count = self.mentions.len();
        self.reserve(count)?;
        let mut without = reserved(count)?;
        for id in 0..count as u32 {
            let has = self.mentions[id as usize] > 0 && self.contains(SetId(id), worker);
            without.push(has.then(|| self.mention_flipped(SetId(id), worker)));
        }
        Ok(without)
    }

    /// The replacement that `without` found for a set, or the set itself.
    pub(super) fn instead(&self, set: SetId, without: &[Option<SetId>]) -> SetId {
        without.get(set.at()).copied().flatten().unwrap_or(set)
    }

    /// Replaces a reference by a reference to the set that `without` found.
    pub(super) fn take_over(&mut self, set: &mut SetId, without: &[Option<SetId>]) {
        let instead = self.instead(*set, without);
        if instead != *set {
            if !instead.is_empty() {
                self.mentions[instead.at()] += 1;
            }
            self.forget(*set);
            *set = instead;
        }
    }

    /// Drops the references that `without` took.
    pub(super) fn end(&mut self, without: Vec<Option<SetId>>) {
        without.into_iter().flatten().for_each(|set| self.forget(set));
    }

    /// The words of a set.
    pub(super) fn words(&self, set: SetId) -> &[u64] {
        &self.words[set.at() * self.stride..][..self.stride]
    }

    /// The members of a set, in order.
    pub(super) fn members(&self, set: SetId) -> Workers<'_> {
        Workers::of_words(self.words(set))
    }

    /// The number of workers that fit into the sets.
    pub(super) fn room(&self) -> usize {
        self.stride * 64
    }

    /// The number of sets with references.
    pub(super) fn len(&self) -> usize {
        self.mentions.len() - self.free.len()
    }

    pub(super) fn bytes(&self) -> usize {
        (self.words.capacity() + self.hashes.capacity() + self.of_member.capacity()) * 8
            + (self.mentions.capacity() + self.free.capacity()) * 4
            + self.by_content.allocation_size()
    }

    /// Asserts that reference counts match these references, and that each set is stored once.
    pub(super) fn check(&self, mentioned: impl Iterator<Item = SetId>) {
        let mut counts = vec![0; self.mentions.len()];
        mentioned.for_each(|set| counts[set.at()] += 1);
        counts[0] = 1;
        assert_eq!(counts, self.mentions, "reference counts of sets");
        for id in (1..counts.len()).filter(|&id| counts[id] > 0) {
            let set = SetId(id as u32);
            let hash = self.members(set).fold(0, |hash, worker| hash ^ self.of_member[worker.index()]);
            assert_eq!(self.hashes[id], hash, "the hash of a set");
            let same = self.by_content.iter().filter(|&&other| self.words(SetId(other)) == self.words(set)).count();
            assert_eq!(same, 1, "a set is stored once");
        }
    }
}

fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut numbers = Vec::new();
    let out_of_memory = |_| CoreError::OutOfMemory { count: count as u64, what: "sets of workers" };
    numbers.try_reserve_exact(count).map_err(out_of_memory)?;
    Ok(numbers)
}

/// The workers of a set, in order.
#[derive(Clone, Debug)]
pub struct Workers<'a> {
    words: Cow<'a, [u64]>,
    word: usize,
    bits: u64,
}

impl<'a> Workers<'a> {
    pub(super) fn of_words(words: &'a [u64]) -> Self {
        Workers { words: Cow::Borrowed(words), word: 0, bits: words.first().copied().unwrap_or(0) }
    }

    pub(super) fn of_owned(words: Vec<u64>) -> Self {
        let bits = words.first().copied().unwrap_or(0);
        Workers { words: Cow::Owned(words), word: 0, bits }
    }

    /// The number of workers in the whole set. O(1) for each 64 workers.
    #[must_use]
    pub fn count_all(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

impl Iterator for Workers<'_> {
    type Item = WorkerId;

    #[inline]
    fn next(&mut self) -> Option<WorkerId> {
        while self.bits == 0 {
            self.word += 1;
            self.bits = *self.words.get(self.word)?;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(WorkerId::of_index(self.word * 64 + bit))
    }
}
