//! A `RollbackCache` next to a list that knows when each position was last written.

use kvtide_core::Code;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{KvTransaction, RollbackCache, RollbackCacheOptions, RollbackMark, Transactional, View};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::outcome::{Done, code, unless_out_of_memory};
use crate::sightings::{Sightings, Wrote};
use crate::sources::{Fed, Form};
use crate::tokens::{Id, Rows};
use crate::windows::pair;

/// A call. Numbers that choose among what is there are taken modulo how much there is.
#[derive(Clone, Debug)]
pub enum Op {
    Append(u32, [Form; 2]),
    /// Nodes with these parents, each counted from the node itself backwards: 0 is refused.
    AppendTree(Vec<u32>, [Form; 2]),
    /// The cache's own views, or a part of them.
    AppendOwn(u32, u32),
    Commit(u64),
    Mark,
    Rollback(u32),
    /// A mark of another cache.
    RollbackForeign,
    /// A path: at each step one of the children.
    Accept(Vec<u32>),
    /// Any nodes.
    AcceptAny(Vec<u32>),
    Look(u32, u32),
    Forget(u32),
}

/// A mark, what it marks, and when it was made.
struct Marked {
    mark: RollbackMark,
    tokens: Vec<Id>,
    time: u64,
}

/// A cache, its tokens, and all that was seen.
pub struct Pair {
    rows: Rows,
    limit: Option<u64>,
    cache: RollbackCache,
    tokens: Vec<Id>,
    committed: usize,
    /// The positions of the tentative tokens' parents; -1 is before the first token.
    parents: Vec<i64>,
    /// The time at which each position was written last, also behind the end.
    written: Vec<u64>,
    time: u64,
    marks: Vec<Marked>,
    sightings: Sightings,
    next: Id,
    repeats: bool,
    appended: bool,
}

impl Pair {
    pub fn new(rows: Rows, limit: Option<u64>) -> Result<Self, TestCaseError> {
        let options = || RollbackCacheOptions { memory_limit_bytes: limit, ..Default::default() };
        Ok(Pair {
            cache: RollbackCache::new(options())?,
            rows,
            limit,
            tokens: vec![],
            committed: 0,
            parents: vec![],
            written: vec![],
            time: 0,
            marks: vec![],
            sightings: Sightings::default(),
            next: 1,
            repeats: false,
            appended: false,
        })
    }

    pub fn call(&mut self, op: &Op) -> Done {
        self.time += 1;
        match op {
            Op::Append(tokens, forms) => self.append_new(*tokens, *forms, None),
            Op::AppendTree(back, forms) => {
                let nodes = (self.parents.len()..).zip(back);
                let parents: Vec<i32> = nodes.map(|(node, &back)| node as i32 - back as i32).collect();
                self.append_new(parents.len() as u32, *forms, Some(&parents))
            }
            Op::AppendOwn(start, len) => self.append_own(*start, *len),
            Op::Commit(len) => self.commit(*len),
            Op::Mark => {
                let (mark, tokens) = (self.cache.snapshot(), self.tokens[..self.committed].to_vec());
                prop_assert_eq!(mark.committed_len() as usize, self.committed);
                self.marks.push(Marked { mark, tokens, time: self.time });
                Ok(())
            }
            Op::Rollback(which) => self.rollback(*which),
            Op::RollbackForeign => {
                let foreign = RollbackCache::new(Default::default())?.snapshot();
                prop_assert_eq!(code(self.cache.rollback(&foreign)), Err(Code::SnapshotInvalid));
                Ok(())
            }
            Op::Accept(choices) => {
                let path = self.path(choices);
                self.accept(&path)
            }
            Op::AcceptAny(nodes) => self.accept(nodes),
            Op::Look(start, len) => self.look(*start, *len),
            Op::Forget(which) => {
                self.sightings.forget(*which);
                Ok(())
            }
        }
    }

    fn append_new(&mut self, tokens: u32, forms: [Form; 2], parents: Option<&[i32]>) -> Done {
        let first = self.next;
        self.next += Id::from(tokens);
        let ids: Vec<Id> = (first..self.next).collect();
        let fed = [0, 1].map(|part| Fed::new(forms[part], &self.rows, part, &ids));
        self.append(&ids, [fed[0].source(), fed[1].source()], parents)
    }

    fn append_own(&mut self, start: u32, len: u32) -> Done {
        let Some(current) = self.cache.current()? else { return Ok(()) };
        let (start, len) = self.part(start, len);
        let ids = self.tokens[start..start + len].to_vec();
        let own = [current.k.narrow(2, start, len)?, current.v.narrow(2, start, len)?];
        self.repeats = true;
        self.append(&ids, [Source::from(&own[0]), Source::from(&own[1])], None)
    }

    fn append(&mut self, ids: &[Id], [k, v]: [Source<'_>; 2], parents: Option<&[i32]>) -> Done {
        let done = self.cache.append(k, v, parents);
        let first = self.parents.len();
        let fits = |(place, &parent): (usize, &i32)| parent >= -1 && parent < (first + place) as i32;
        if !parents.is_none_or(|parents| parents.iter().enumerate().all(fits)) {
            prop_assert_eq!(code(done), Err(Code::InvalidArgument));
            return Ok(());
        }
        let Some(kv) = unless_out_of_memory(self.limit, done)? else { return Ok(()) };
        self.appended = true;
        for place in 0..ids.len() {
            let parent = parents.map_or((first + place) as i32 - 1, |parents| parents[place]);
            self.parents.push(self.committed as i64 + i64::from(parent));
            self.write(self.tokens.len());
            self.tokens.push(ids[place]);
        }
        self.see(pair(kv), 0, self.tokens.len())
    }

    fn write(&mut self, position: usize) {
        self.written.resize(self.written.len().max(position + 1), 0);
        self.written[position] = self.time;
    }

    fn commit(&mut self, len: u64) -> Done {
        let done = code(self.cache.commit(len));
        if (self.committed..=self.tokens.len()).contains(&(len as usize)) {
            prop_assert_eq!(done, Ok(()));
            self.parents.drain(..len as usize - self.committed);
            self.committed = len as usize;
        } else {
            prop_assert_eq!(done, Err(Code::InvalidArgument));
        }
        Ok(())
    }

    fn rollback(&mut self, which: u32) -> Done {
        let Some(which) = (which as usize).checked_rem(self.marks.len()) else { return Ok(()) };
        let Marked { mark, tokens, time } = &self.marks[which];
        let done = code(self.cache.rollback(mark));
        let overwritten = self.written.iter().take(tokens.len()).any(|written| written > time);
        if tokens.len() > self.committed || overwritten {
            prop_assert_eq!(done, Err(Code::SnapshotInvalid));
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        prop_assert_eq!(&self.tokens[..tokens.len()], &tokens[..]);
        self.committed = tokens.len();
        self.tokens.truncate(self.committed);
        self.parents.clear();
        Ok(())
    }

    /// The nodes whose parent is the token at this position.
    fn children(&self, parent: i64) -> Vec<u32> {
        (0..self.parents.len()).filter(|&node| self.parents[node] == parent).map(|node| node as u32).collect()
    }

    fn path(&self, choices: &[u32]) -> Vec<u32> {
        let (mut path, mut at) = (Vec::new(), self.committed as i64 - 1);
        for &choice in choices {
            let children = self.children(at);
            let Some(place) = (choice as usize).checked_rem(children.len()) else { break };
            path.push(children[place]);
            at = self.committed as i64 + i64::from(children[place]);
        }
        path
    }

    fn accept(&mut self, path: &[u32]) -> Done {
        let (mut known, mut at) = (true, self.committed as i64 - 1);
        for &node in path {
            known &= self.children(at).contains(&node);
            at = self.committed as i64 + i64::from(node);
        }
        let done = code(self.cache.accept_path(path));
        if !known {
            prop_assert_eq!(done, Err(Code::InvalidPath));
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        let kept: Vec<Id> = path.iter().map(|&node| self.tokens[self.committed + node as usize]).collect();
        for (place, &node) in path.iter().enumerate().filter(|&(place, &node)| place != node as usize) {
            prop_assert!(place < node as usize);
            self.write(self.committed + place);
        }
        self.tokens.truncate(self.committed);
        self.tokens.extend(kept);
        self.committed = self.tokens.len();
        self.parents.clear();
        Ok(())
    }

    fn part(&self, start: u32, len: u32) -> (usize, usize) {
        let start = start as usize % (self.tokens.len() + 1);
        (start, len as usize % (self.tokens.len() - start + 1))
    }

    fn look(&mut self, start: u32, len: u32) -> Done {
        let Some(current) = self.cache.current()? else { return Ok(()) };
        let (start, len) = self.part(start, len);
        let part = [current.k.narrow(2, start, len)?, current.v.narrow(2, start, len)?];
        self.see(pair(current), 0, self.tokens.len())?;
        self.see(part, start, len)
    }

    fn see(&mut self, views: [View; 2], start: usize, len: usize) -> Done {
        let positions: Vec<usize> = (start..start + len).collect();
        let whole = self.cache.current()?.map(pair);
        for (part, view) in views.into_iter().enumerate() {
            let bytes = self.rows.bytes(part, &self.tokens[start..start + len]);
            self.sightings.see(0, whole.as_ref().map(|whole| &whole[part]), view, bytes, &positions)?;
        }
        Ok(())
    }

    pub fn check(&mut self) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        let lengths = (self.cache.total_len() as usize, self.cache.committed_len() as usize);
        prop_assert_eq!(lengths, (self.tokens.len(), self.committed));
        let parents = self.parents.iter().map(|&parent| parent - self.committed as i64);
        prop_assert!(parents.eq(self.cache.tree().parents().iter().map(|&parent| i64::from(parent))));
        let current = self.cache.current()?;
        prop_assert_eq!(current.is_some(), self.appended);
        for (part, view) in current.into_iter().flat_map(pair).enumerate() {
            prop_assert_eq!(view.to_bytes()?, self.rows.bytes(part, &self.tokens));
        }
        self.sightings.check(if self.repeats { Wrote::AnyTokens } else { Wrote::NewTokens })
    }

    /// A draft behind the last token sees it and what that token follows, by the list of parents, at the position behind it.
    fn check_mask(&mut self) -> Done {
        let Some(current) = self.cache.current()?.filter(|_| !self.tokens.is_empty()) else { return Ok(()) };
        let [k, v] = pair(current).map(|view| view.narrow(2, 0, 1));
        let (k, v) = (k?, v?);
        let mut draft = self.cache.begin(Default::default())?;
        if unless_out_of_memory(self.limit, draft.append(&k, &v, None))?.is_none() {
            return Ok(());
        }
        let before = self.tokens.len() as i64;
        let (mut seen, mut at) = (vec![before], before - 1);
        while at >= self.committed as i64 {
            seen.push(at);
            at = self.parents[at as usize - self.committed];
        }
        let branch = seen.len() as i64;
        seen.extend(0..=at);
        let expected: Vec<f32> =
            (0..=before).map(|position| if seen.contains(&position) { 0. } else { f32::NEG_INFINITY }).collect();
        let mask = draft.tree_mask()?.to_bytes()?;
        let mask: Vec<f32> = mask.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect();
        prop_assert_eq!(mask, expected);
        prop_assert_eq!(draft.tree_positions()?, [(at + branch) as u64]);
        draft.rollback()?;
        Ok(())
    }

    /// Nothing but the buffer costs memory once the views are gone.
    pub fn check_at_the_end(mut self) -> Done {
        self.sightings.clear();
        self.check_mask()?;
        let stats = self.cache.stats();
        prop_assert_eq!((stats.used_bytes, stats.held_bytes), (stats.buffer_bytes, 0));
        Ok(())
    }
}
