//! A cache with transactions next to lists that keep every token.

use std::sync::Arc;

use kvtide_core::Code;
use kvtide_tensor::BeginOptions;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::Budget;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::kind::{Kind, Setup};
use super::lists::{Draft, Lists};
use crate::outcome::{Done, code, unless_out_of_memory};
use crate::sightings::Sightings;
use crate::sources::{Fed, Form};
use crate::tokens::Id;

/// A call. Numbers that choose among what is there are taken modulo how much there is.
#[derive(Clone, Debug)]
pub enum Op {
    /// Tokens of the cache itself.
    Feed(u32, [Form; 2]),
    Cut(u64),
    Snapshot,
    Restore(u32),
    /// Any change of the cache itself, while a transaction is open.
    Change(u32),
    Look(u32, u32),
    Forget(u32),
    Begin(Option<u32>),
    Draft(u32, [Form; 2]),
    /// Drafts the cache's content, or a part of it.
    DraftOwn(u32, u32),
    /// Nodes, each so many before itself: 0 is refused.
    Tree(Vec<u32>, [Form; 2]),
    Commit(Option<u64>),
    /// At each step one of the children.
    Path(Vec<u32>),
    AnyPath(Vec<u32>),
    /// Any of the open ones, with its children.
    Drop(u32),
}

/// A cache, its tokens, its drafts, and all that was seen.
pub struct Run<C: Kind> {
    pub setup: Setup,
    pub cache: C,
    pub lists: Lists,
    pub snapshots: Vec<(C::Snapshot, Vec<Id>)>,
    pub sightings: Sightings,
    /// A token was appended twice, or rows were put back.
    pub repeats: bool,
    pub budget: Arc<Budget>,
}

impl<C: Kind> Run<C> {
    pub fn new(setup: Setup) -> Result<Option<Self>, TestCaseError> {
        let Some(cache) = unless_out_of_memory(setup.limit, C::new(&setup))? else { return Ok(None) };
        let window = if C::WINDOW { setup.window as usize } else { usize::MAX / 4 };
        let sinks = if C::WINDOW { setup.sinks as usize } else { 0 };
        let lists = Lists { window, sinks, tokens: vec![], open: vec![], last: None, next: 1 };
        let (snapshots, sightings, budget) = (vec![], Sightings::default(), Budget::process());
        Ok(Some(Run { setup, cache, lists, snapshots, sightings, repeats: false, budget }))
    }

    pub fn call(&mut self, op: &Op) -> Done {
        let idle = self.lists.open.is_empty();
        match op {
            Op::Feed(tokens, forms) if idle => self.feed(*tokens, *forms),
            Op::Cut(len) if idle => self.cut(*len),
            Op::Restore(which) if idle => self.restore(*which),
            Op::Change(which) if !idle => self.change(*which),
            Op::Feed(..) | Op::Cut(_) | Op::Restore(_) | Op::Change(_) => Ok(()),
            Op::Snapshot => {
                let tokens = self.lists.everything();
                self.snapshots.extend(self.cache.snapshot().map(|snapshot| (snapshot, tokens)));
                Ok(())
            }
            Op::Look(start, len) => self.look(*start, *len),
            Op::Forget(which) => {
                self.sightings.forget(*which);
                Ok(())
            }
            Op::Begin(room) => self.begin(*room),
            Op::Draft(tokens, forms) => self.draft_new(*tokens as usize, None, *forms),
            Op::DraftOwn(start, len) => self.draft_own(*start, *len),
            Op::Tree(back, forms) => {
                let first = self.lists.open.last().map_or(0, |draft| draft.nodes.len());
                let parents: Vec<i32> = (first..).zip(back).map(|(node, &back)| node as i32 - back as i32).collect();
                self.draft_new(back.len(), Some(&parents), *forms)
            }
            Op::Commit(tokens) => self.commit(*tokens),
            Op::Path(choices) => {
                let path = self.lists.path(choices);
                self.accept(&path)
            }
            Op::AnyPath(path) => self.accept(path),
            Op::Drop(which) => self.drop(*which),
        }
    }

    fn feed(&mut self, tokens: u32, forms: [Form; 2]) -> Done {
        let ids = self.lists.new_ids(tokens as usize);
        let fed = [0, 1].map(|part| Fed::new(forms[part], &self.setup.rows, part, &ids));
        let done = self.cache.feed(ids.len(), fed.each_ref().map(Fed::source));
        if self.overflows(ids.len()) {
            prop_assert_eq!(code(done), Err(Code::CacheOverflow));
            return Ok(());
        }
        let Some(seen) = unless_out_of_memory(self.setup.limit, done)? else { return Ok(()) };
        let mut model = self.lists.model(self.lists.tokens.clone());
        let shown = model.append(&ids);
        self.lists.tokens = model.tokens;
        self.lists.shown(&shown);
        self.see(seen, &shown)
    }

    fn overflows(&self, tokens: usize) -> bool {
        C::BOUND && self.lists.everything().len() + tokens > self.setup.max as usize
    }

    fn cut(&mut self, len: u64) -> Done {
        let can = self.lists.model(self.lists.tokens.clone()).can_set_len(len as usize);
        match self.cache.cut(len) {
            Some(done) if can => {
                done?;
                self.lists.tokens.truncate(len as usize);
                self.lists.last = None;
            }
            Some(done) => prop_assert_eq!(code(done), Err(Code::CannotRollBack)),
            None => {}
        }
        Ok(())
    }

    fn restore(&mut self, which: u32) -> Done {
        let Some(which) = (which as usize).checked_rem(self.snapshots.len()) else { return Ok(()) };
        let (snapshot, tokens) = &self.snapshots[which];
        self.repeats = true;
        if unless_out_of_memory(self.setup.limit, self.cache.restore(snapshot))?.is_some() {
            self.lists.tokens.clone_from(tokens);
            self.lists.last = None;
        }
        Ok(())
    }

    fn change(&mut self, which: u32) -> Done {
        let changes = C::changes();
        let (name, change) = changes[which as usize % changes.len()];
        let [k, v] = [0, 1].map(|part| self.setup.rows.tensor(part, &[1]));
        let done = code(change(&mut self.cache, [Source::from(&k), Source::from(&v)]));
        prop_assert_eq!(done, Err(Code::TransactionOpen), "{}", name);
        Ok(())
    }

    fn look(&mut self, start: u32, len: u32) -> Done {
        let shown = self.lists.model(self.lists.everything()).retained();
        let Some(seen) = self.cache.visible()? else { return Ok(()) };
        if let Some((views, whole)) = self.cache.views(seen)? {
            let start = start as usize % (shown.len() + 1);
            let len = len as usize % (shown.len() - start + 1);
            for (part, view) in views.iter().enumerate() {
                let view = view.narrow(2, start, len)?;
                self.sight(part, view, &whole[part], &shown[start..start + len])?;
            }
        }
        Ok(())
    }

    fn see(&mut self, seen: C::Seen, positions: &[usize]) -> Done {
        let Some((views, whole)) = self.cache.views(seen)? else { return Ok(()) };
        for (part, view) in views.into_iter().enumerate() {
            self.sight(part, view, &whole[part], positions)?;
        }
        Ok(())
    }

    fn sight(&mut self, part: usize, view: kvtide_tensor::View, whole: &kvtide_tensor::View, at: &[usize]) -> Done {
        let everything = self.lists.everything();
        let ids: Vec<Id> = at.iter().map(|&position| everything[position]).collect();
        let bytes = self.setup.rows.bytes(part, &ids);
        self.sightings.see(0, Some(whole), view, bytes, at)
    }

    pub fn begin(&mut self, room: Option<u32>) -> Done {
        let begun =
            self.cache.begin_draft(self.lists.open.last().map(|draft| draft.id), BeginOptions { max_tokens: room });
        if self.overflows(room.unwrap_or(0) as usize) {
            prop_assert_eq!(code(begun), Err(Code::CacheOverflow));
            return Ok(());
        }
        let Some(id) = unless_out_of_memory(self.setup.limit, begun)? else { return Ok(()) };
        self.lists.open.push(Draft { id, nodes: vec![], branched: false, last: self.lists.last.clone() });
        Ok(())
    }

    fn draft_new(&mut self, tokens: usize, parents: Option<&[i32]>, forms: [Form; 2]) -> Done {
        let ids = self.lists.new_ids(tokens);
        let fed = [0, 1].map(|part| Fed::new(forms[part], &self.setup.rows, part, &ids));
        self.draft(&ids, fed.each_ref().map(Fed::source), parents)
    }

    fn draft_own(&mut self, start: u32, len: u32) -> Done {
        let shown = self.lists.model(self.lists.everything()).retained();
        let Some(seen) = self.cache.visible()? else { return Ok(()) };
        let Some((views, _)) = self.cache.views(seen)? else { return Ok(()) };
        let start = start as usize % (shown.len() + 1);
        let len = len as usize % (shown.len() - start + 1);
        let everything = self.lists.everything();
        let ids: Vec<Id> = shown[start..start + len].iter().map(|&position| everything[position]).collect();
        let own = [views[0].narrow(2, start, len)?, views[1].narrow(2, start, len)?];
        self.repeats = true;
        self.draft(&ids, own.each_ref().map(Source::from), None)
    }

    fn draft(&mut self, ids: &[Id], [k, v]: [Source<'_>; 2], parents: Option<&[i32]>) -> Done {
        let before = self.lists.everything();
        let Some(Draft { id, nodes, .. }) = self.lists.open.last() else { return Ok(()) };
        let first = nodes.len() as i64;
        let done = self.cache.append_draft(*id, k, v, parents).map(Into::into);
        let fits = |(place, &parent): (usize, &i32)| parent >= -1 && i64::from(parent) < first + place as i64;
        if !parents.is_none_or(|parents| parents.iter().enumerate().all(fits)) {
            prop_assert_eq!(code(done), Err(Code::InvalidArgument));
            return Ok(());
        }
        if self.overflows(ids.len()) {
            prop_assert_eq!(code(done), Err(Code::CacheOverflow));
            return Ok(());
        }
        let Some(seen) = unless_out_of_memory::<C::Seen>(self.setup.limit, done)? else { return Ok(()) };
        let whole = parents.is_some() || self.lists.is_branched();
        if let Some(draft) = self.lists.open.last_mut() {
            for (place, &token) in ids.iter().enumerate() {
                draft.nodes.push((token, parents.map_or(first + place as i64 - 1, |parents| parents[place].into())));
            }
            draft.branched |= parents.is_some() && !ids.is_empty();
        }
        let shown = if whole { self.lists.kept() } else { self.lists.model(before).append(ids) };
        self.lists.shown(&shown);
        self.see(seen, &shown)
    }

    fn commit(&mut self, tokens: Option<u64>) -> Done {
        let Some(draft) = self.lists.open.last() else { return Ok(()) };
        let done = code(self.cache.commit_draft(draft.id, tokens));
        let kept = tokens.map_or(draft.nodes.len(), |tokens| tokens as usize);
        if kept > draft.nodes.len() {
            prop_assert_eq!(done, Err(Code::InvalidArgument));
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        let kept = draft.nodes[..kept].to_vec();
        self.lists.ended(kept, false);
        Ok(())
    }

    fn accept(&mut self, path: &[u32]) -> Done {
        let Some(draft) = self.lists.open.last() else { return Ok(()) };
        let done = self.cache.commit_draft_path(draft.id, path);
        let (mut known, mut at) = (true, -1);
        for &node in path {
            known &= draft.nodes.get(node as usize).is_some_and(|&(_, parent)| parent == at);
            at = node.into();
        }
        if !known {
            prop_assert_eq!(code(done), Err(Code::InvalidPath));
            return Ok(());
        }
        // A snapshot that was taken meanwhile needs the rows that others move to.
        let Some(()) = unless_out_of_memory(self.setup.limit, done)? else { return Ok(()) };
        let kept = (0..).zip(path).map(|(place, &node)| (draft.nodes[node as usize].0, place - 1)).collect();
        self.lists.ended(kept, true);
        Ok(())
    }

    pub fn drop(&mut self, which: u32) -> Done {
        let Some(which) = (which as usize).checked_rem(self.lists.open.len()) else { return Ok(()) };
        let id = self.lists.open[which].id;
        self.cache.drop_draft(id);
        self.lists.last = self.lists.open[which].last.clone();
        self.lists.open.truncate(which);
        prop_assert_eq!(code(self.cache.drafted(id)), Err(Code::TransactionClosed));
        self.cache.drop_draft(id);
        Ok(())
    }
}
