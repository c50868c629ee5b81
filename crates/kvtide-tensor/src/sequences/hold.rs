//! What holds blocks beside sequences: snapshots, and prefixes that were found. Dropped, they give their blocks back. O(groups), but
//! for the blocks that are let go of.

use kvtide_core::paged::{Admission, AdmissionRequest, Admitted};

use super::cache::PagedKvCache;
use super::prefix_namer::PromptOptions;
use crate::base::error::Result;
use crate::paged::{Hold, PageGroup};

/// What a sequence held when it was made, whatever happens to the sequence: restoring it is O(1).
#[derive(Debug)]
pub struct PagedSnapshot {
    /// Of each group.
    groups: Vec<Hold>,
    cache: u64,
}

impl PagedSnapshot {
    /// Tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.groups[0].length()
    }
}

/// The start of a prompt that is there in all groups: it stays there while this lives, and a sequence can be made of it.
#[derive(Debug)]
pub struct PagedPrefix {
    /// Of each group.
    groups: Vec<Hold>,
    cache: u64,
}

impl PagedPrefix {
    /// Tokens that are there, and need not be computed.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.groups[0].length()
    }
}

impl PagedKvCache {
    /// The longest prefix of a prompt that is there, at most all tokens but the last, whose logits are needed. With `partial`
    /// also the start of a block, which the sequence gets a copy of at its first write.
    pub fn find_prefix(&mut self, tokens: &[u32], options: PromptOptions<'_>, partial: bool) -> Result<PagedPrefix> {
        self.check_all(|_| Ok(()))?;
        let identity = self.namer.identity(options)?;
        let groups = PageGroup::find_prefix(&mut self.groups, tokens, &identity, partial)?;
        self.hand_down_found(&groups);
        Ok(PagedPrefix { groups, cache: self.id })
    }

    /// A new sequence that starts with what is there of a prompt, with room for the rest of it and for what follows: taken in all groups
    /// at once. Or what is lacking for that; nothing has changed then, and the prompt does not count as asked for.
    pub fn admit(&mut self, asked: AdmissionRequest<'_>, options: PromptOptions<'_>) -> Result<Admission<u64>> {
        self.check_all(|_| Ok(()))?;
        let identity = self.namer.identity(options)?;
        let Admitted { held: groups, tokens } = match PageGroup::admit(&mut self.groups, asked, &identity)? {
            Ok(admitted) => admitted,
            Err(lacking) => return Ok(Err(lacking)),
        };
        self.hand_down_found(&groups);
        let sequence = self.create_sequence_from(PagedPrefix { groups, cache: self.id })?;
        let taken = self.groups.iter_mut().zip(tokens).try_for_each(|(group, tokens)| {
            let wanted = [(sequence, tokens)];
            let missing = group.missing_blocks(&wanted)?;
            group.take_missing(&wanted, &missing);
            Ok(())
        });
        // There are enough blocks; what may lack is memory for the tables.
        taken.inspect_err(|_| self.release_sequence(sequence)).map(|()| Ok(sequence))
    }

    /// Refuses a prefix that no sequence can start with now: of another cache, or while someone reads this one.
    pub fn check_prefix(&self, prefix: &PagedPrefix) -> Result<()> {
        self.check_change()?;
        self.check_held(prefix.cache)
    }

    /// A new sequence that starts with a prefix.
    pub fn create_sequence_from(&mut self, prefix: PagedPrefix) -> Result<u64> {
        self.check_prefix(&prefix)?;
        self.check(|_| Ok(()))?;
        let mut prefixes = prefix.groups.into_iter();
        self.each(|group| group.create_sequence_from(prefixes.next().expect("one for each group")))
    }

    /// What a sequence holds now.
    pub fn snapshot(&mut self, sequence: u64) -> Result<PagedSnapshot> {
        self.check(|_| Ok(()))?;
        let groups = self.groups.iter_mut().map(|group| group.snapshot(sequence)).collect::<Result<_>>()?;
        Ok(PagedSnapshot { groups, cache: self.id })
    }

    /// Gives a sequence what a snapshot holds; any sequence of the cache with the same salt and extras.
    pub fn restore(&mut self, sequence: u64, snapshot: &PagedSnapshot) -> Result<()> {
        self.check_held(snapshot.cache)?;
        let mut held = snapshot.groups.iter();
        self.check(|group| group.check_restore(sequence, held.next().expect("one for each group")))?;
        self.groups.iter_mut().zip(&snapshot.groups).try_for_each(|(group, held)| group.restore(sequence, held))
    }
}
