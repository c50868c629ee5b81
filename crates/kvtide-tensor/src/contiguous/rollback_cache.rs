//! K and V with tentative tokens, for speculative decoding: rejected tokens are rolled back.
//!
//! A snapshot is a mark: it uses no memory, and cannot be restored once its tokens were overwritten. A rollback is O(1),
//! accepting a path of a draft tree O(path), an append O(new tokens) amortised. Tokens that a draft commits become like the
//! token that they follow: committed, or tentative after tentative tokens.

use kvtide_core::{Ending, Mark, RollbackPlanner, Tree};

use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::contiguous::Contiguous;
use crate::contiguous::options::RollbackCacheOptions;
use crate::contiguous::transaction::Drafting;
use crate::tensor::shown::Shown;
use crate::tensor::source::{Resolved, Source, check_pair, resolve_pair};
use crate::tensor::tree_mask::TreeMask;
use crate::tensor::view::Kv;

/// A cache of committed tokens followed by tentative ones.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvtide_tensor::RollbackCache;
///
/// let mut cache = RollbackCache::new(Default::default())?;
/// let tokens = |n| Tensor::zeros((1, 2, n, 4), DType::F32, &Device::Cpu);
/// cache.append(&tokens(3)?, &tokens(3)?, None)?;
/// cache.commit(3)?;
/// let mark = cache.snapshot();
/// cache.append(&tokens(5)?, &tokens(5)?, None)?;
/// cache.rollback(&mark)?;
/// assert_eq!((cache.total_len(), cache.committed_len()), (3, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RollbackCache {
    planner: RollbackPlanner,
    rows: Contiguous,
    id: u64,
}

/// A committed length of one [`RollbackCache`] to return to.
#[derive(Clone, Copy, Debug)]
pub struct RollbackMark {
    mark: Mark,
    cache: u64,
}

impl RollbackMark {
    /// The committed length that it marks.
    #[must_use]
    pub fn committed_len(&self) -> u32 {
        self.mark.committed()
    }
}

impl RollbackCache {
    /// An empty cache; the first append determines its shape and dtype.
    pub fn new(options: RollbackCacheOptions) -> Result<Self> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static CACHES: AtomicU64 = AtomicU64::new(0);
        crate::device::check_kernels(&options.device)?;
        Ok(RollbackCache {
            planner: RollbackPlanner::new()?,
            rows: Contiguous::new(Budget::within(&options.device, options.budget.as_ref(), options.memory_limit_bytes)),
            id: CACHES.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The number of committed and tentative tokens.
    #[must_use]
    pub fn total_len(&self) -> u32 {
        self.planner.total()
    }

    /// The number of committed tokens.
    #[must_use]
    pub fn committed_len(&self) -> u32 {
        self.planner.committed()
    }

    /// Appends tentative tokens: a chain, or the nodes of a draft tree with these `parents`.
    pub fn append<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Kv> {
        Ok(self.append_shown(k, v, parents)?.into_kv())
    }

    /// Like [`append`](Self::append), without making views.
    pub fn append_shown<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Shown> {
        self.rows.check_undrafted()?;
        let mut sources = resolve_pair(&k.into(), &v.into())?;
        check_pair(&sources, self.rows.shape.as_ref())?;
        let plan = self.planner.plan_append(sources[0].tokens(), parents)?;
        self.planner.reserve(sources[0].tokens())?;
        let next = plan.next;
        let shown = self.rows.carry_out(&plan, next.slots(), next.len().into(), &mut sources)?;
        self.planner.commit_append(&plan, parents)?;
        Ok(shown)
    }

    /// Fills an empty cache with the content of another one: the first `committed` tokens are committed, the others are
    /// tentative, with the parents of the other cache's [`tree`](Self::tree).
    pub fn resume<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        committed: u32,
        parents: &[i32],
    ) -> Result<()> {
        if self.total_len() > 0 {
            return Err(Error::argument("totalLen", self.total_len(), "0: only an empty cache can be filled"));
        }
        let tree = Tree::behind(committed, parents)?;
        let (k, v) = (k.into(), v.into());
        let tokens = u64::from(resolve_pair(&k, &v)?[0].tokens());
        if tokens.checked_sub(committed.into()) != Some(tree.len() as u64) {
            let expected = format!("one for each of {tokens} tokens but the {committed} committed ones");
            return Err(Error::argument("parents.length", tree.len(), expected));
        }
        self.append_shown(k, v, None)?;
        self.planner.resume(committed, tree);
        Ok(())
    }

    /// Fails while a transaction is open.
    pub fn check_undrafted(&self) -> Result<()> {
        self.rows.check_undrafted()
    }

    /// Commits the tokens before `len`. The tokens after it stay tentative. A tentative token whose parent is a committed
    /// token other than the last one keeps its position and its mask, but [`accept_path`](Self::accept_path) can no longer
    /// accept it.
    pub fn commit(&mut self, len: u64) -> Result<()> {
        self.rows.check_undrafted()?;
        Ok(self.planner.commit(len)?)
    }

    /// Marks the committed length.
    #[must_use]
    pub fn snapshot(&self) -> RollbackMark {
        RollbackMark { mark: self.planner.mark(), cache: self.id }
    }

    /// Returns to a mark.
    pub fn rollback(&mut self, mark: &RollbackMark) -> Result<()> {
        self.rows.check_undrafted()?;
        if mark.cache != self.id {
            return Err(kvtide_core::Error::SnapshotInvalid { reason: "it belongs to another cache" }.into());
        }
        Ok(self.planner.rollback(&mark.mark)?)
    }

    /// Views of all tokens; `None` if none was ever appended.
    pub fn current(&self) -> Result<Option<Kv>> {
        Ok(self.current_shown()?.map(Shown::into_kv))
    }

    /// Like [`current`](Self::current), without making views.
    pub fn current_shown(&self) -> Result<Option<Shown>> {
        self.rows.check()?;
        let state = self.planner.state();
        Ok(self.rows.show(state.live(), state.len().into()))
    }

    /// Moves the tentative tokens on `path`, in order, directly after the committed ones, commits them, and drops the other
    /// tentative tokens.
    pub fn accept_path(&mut self, path: &[u32]) -> Result<()> {
        self.rows.check_undrafted()?;
        let (moves, written) = self.planner.plan_path(path)?;
        self.rows.move_rows(&moves, written)?;
        Ok(self.planner.commit_path(path.len() as u32, written)?)
    }

    /// The tree of the tentative tokens; parents below -1 are earlier committed tokens.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        self.planner.tree()
    }

    /// The attention mask of a draft with these parents, `[n, committed + n]`: 0 where a token attends, -inf elsewhere.
    pub fn tree_mask(&self, parents: &[i32]) -> Result<Vec<f32>> {
        let mask = TreeMask {
            before: [0..self.committed_len().into(), 0..0],
            window: None,
            tree: Tree::new(parents)?,
            tentative: 0,
        };
        mask.values(0)
    }

    /// The positions of the tokens of a draft with these parents: committed + depth.
    pub fn tree_positions(&self, parents: &[i32]) -> Result<Vec<u32>> {
        let tree = Tree::new(parents)?;
        Ok(tree.depths().into_iter().map(|depth| self.committed_len() + depth as u32).collect())
    }

    /// The number of its current buffer, as in [`Shown::buffer_id`].
    #[must_use]
    pub fn buffer_id(&self) -> Option<u64> {
        self.rows.buffer_id()
    }

    /// The cache's costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.rows.stats()
    }

    /// Closes it: its views fail from now on.
    pub fn close(&mut self) {
        self.rows.close();
    }

    /// Checks the invariants that hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        let (total, committed, drafted) = (self.total_len(), self.committed_len(), self.rows.drafts.drafted());
        let nodes = self.planner.tree().len();
        if committed as usize + nodes + drafted as usize != total as usize {
            return Err(format!("{committed} committed, {nodes} tentative and {drafted} drafted of {total} tokens"));
        }
        self.rows.check_invariants(self.planner.state().slots(), self.planner.state().live())
    }

    fn add(&mut self, sources: &mut [Resolved<'_>], room: u32) -> Result<Shown> {
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let plan = self.planner.plan_draft(tokens, room)?;
        let shown = self.rows.carry_out(&plan, plan.next.slots(), plan.next.len().into(), sources)?;
        self.planner.commit_draft(plan.next);
        Ok(shown)
    }
}

impl Drafting for RollbackCache {
    fn rows(&self) -> &Contiguous {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut Contiguous {
        &mut self.rows
    }

    fn make_room(&mut self, tokens: u32) -> Result<()> {
        // If the shape is not known yet, the first tokens allocate the room.
        if self.rows.shape.is_none() {
            return Ok(());
        }
        self.planner.plan_draft(tokens, 0)?;
        self.add(&mut [], tokens).map(|_| ())
    }

    fn draft(&mut self, sources: &mut [Resolved<'_>; 2], _: bool) -> Result<Shown> {
        self.add(sources, self.rows.drafts.room())
    }

    fn draft_slot(&self) -> u32 {
        self.total_len() - self.rows.drafts.drafted()
    }

    fn reserve_end(&mut self, ending: &Ending) -> Result<()> {
        if ending.is_outermost() {
            self.planner.reserve(ending.kept)?;
        }
        Ok(())
    }

    fn end(&mut self, ending: &Ending) {
        self.planner.cut(ending.dropped);
        if ending.is_outermost() {
            self.planner.keep_draft(ending.kept, self.rows.drafts.kept_parents(ending));
        }
        self.rows.end_draft(ending);
    }

    fn tree_mask(&self) -> Result<TreeMask> {
        let tentative = self.planner.tree().len();
        let tree = Tree::joined([self.planner.tree(), self.rows.drafts.tree()])?;
        Ok(TreeMask { before: [0..self.committed_len().into(), 0..0], window: None, tree, tentative })
    }
}
