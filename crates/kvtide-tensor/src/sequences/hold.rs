//! Blocks that are held by snapshots and by matches, in addition to those of sequences. Dropping the handle releases them.
//! O(groups), plus the released blocks.

use kvtide_core::paged::{Admission, AdmissionRequest, Admitted, PromptBlocks};

use super::cache::PagedKvCache;
use super::prefix_namer::PromptOptions;
use crate::base::error::Result;
use crate::paged::{Hold, PageGroup};

/// The content of a sequence at one moment, whatever happens to the sequence: restoring it is O(1).
#[derive(Debug)]
pub struct PagedSnapshot {
    /// The blocks of each group.
    groups: Vec<Hold>,
    cache: u64,
}

impl PagedSnapshot {
    /// The number of its tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.groups[0].length()
    }
}

/// A match: the prefix of a prompt that is cached in all groups. It is held while this lives, and a sequence can be created
/// from it.
#[derive(Debug)]
pub struct PagedPrefix {
    /// The blocks of each group.
    groups: Vec<Hold>,
    cache: u64,
}

impl PagedPrefix {
    /// The number of cached tokens, which need not be computed.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.groups[0].length()
    }
}

impl PagedKvCache {
    /// The longest cached prefix of a prompt, at most all tokens except the last, whose logits are needed. With `partial`,
    /// the prefix may end within a block, which the sequence copies on its first write.
    pub fn find_prefix(&mut self, tokens: &[u32], options: PromptOptions<'_>, partial: bool) -> Result<PagedPrefix> {
        self.check_all(|_| Ok(()))?;
        let identity = self.namer.identity(options)?;
        let groups = PageGroup::find_prefix(&mut self.groups, tokens, &identity, partial)?;
        self.hand_down_found(&groups);
        Ok(PagedPrefix { groups, cache: self.id })
    }

    /// As [`PagedKvCache::find_prefix`], for a prompt whose [keys were computed](PagedKvCache::prompt_blocks) before:
    /// nothing is hashed.
    pub fn find_named_prefix(&mut self, blocks: &PromptBlocks, partial: bool) -> Result<PagedPrefix> {
        self.check_all(|_| Ok(()))?;
        let groups = PageGroup::find_named(&mut self.groups, blocks, partial)?;
        self.hand_down_found(&groups);
        Ok(PagedPrefix { groups, cache: self.id })
    }

    /// Creates a sequence that starts with the cached prefix of a prompt, with room for the rest of the prompt and the
    /// answer, reserved in all groups at once. If there is too little room, returns the shortage, changes nothing, and does
    /// not count the prompt.
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
        // There are enough blocks, but there may be too little memory for the block tables.
        taken.inspect_err(|_| self.release_sequence(sequence)).map(|()| Ok(sequence))
    }

    /// Fails if no sequence can be created from the prefix now: it belongs to another cache, or a background call reads this
    /// one.
    pub fn check_prefix(&self, prefix: &PagedPrefix) -> Result<()> {
        self.check_change()?;
        self.check_held(prefix.cache)
    }

    /// Creates a sequence that starts with a prefix.
    pub fn create_sequence_from(&mut self, prefix: PagedPrefix) -> Result<u64> {
        self.check_prefix(&prefix)?;
        self.check(|_| Ok(()))?;
        let mut prefixes = prefix.groups.into_iter();
        self.each(|group| group.create_sequence_from(prefixes.next().expect("one for each group")))
    }

    /// Takes a snapshot of a sequence, without the tokens of an open step.
    pub fn snapshot(&mut self, sequence: u64) -> Result<PagedSnapshot> {
        self.check(|_| Ok(()))?;
        let groups = self.groups.iter_mut().map(|group| group.snapshot(sequence)).collect::<Result<_>>()?;
        Ok(PagedSnapshot { groups, cache: self.id })
    }

    /// Restores a sequence from a snapshot of any sequence of this cache with the same salt and extras.
    pub fn restore(&mut self, sequence: u64, snapshot: &PagedSnapshot) -> Result<()> {
        self.check_held(snapshot.cache)?;
        let mut held = snapshot.groups.iter();
        self.check(|group| group.check_restore(sequence, held.next().expect("one for each group")))?;
        self.groups.iter_mut().zip(&snapshot.groups).try_for_each(|(group, held)| group.restore(sequence, held))
    }

    /// Gives a sequence without tokens the salt and extras of `options`.
    pub fn rename(&mut self, sequence: u64, options: PromptOptions<'_>) -> Result<()> {
        self.check(|group| Ok(group.planner().check_rename(sequence)?))?;
        let identity = self.namer.identity(options)?;
        self.groups.iter_mut().try_for_each(|group| group.rename(sequence, identity.clone()))
    }
}
