//! One call of attention: what it asks, and the keys and values that it reads. It borrows JavaScript's memory for the length of
//! the call, or has copies of it and pinned views, to be worked on elsewhere.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_tensor::{Attended, Budget, KvRows, LayerPages, OwnedSource, Room, Source, attend, attend_with};

use crate::attention::lists::ListsArg;
use crate::attention::queries::{OwnedQueries, Queries};
use crate::border::refusal::Outcome;
use crate::border::tensor_arg::{TensorArg, source};

/// What a call reads besides queries.
enum KeysAndValues<'a> {
    Tensors(Source<'a>, Source<'a>),
    Pages(Cow<'a, LayerPages<'static>>),
}

/// The same, for work in the background.
enum OwnedKeysAndValues {
    Tensors(OwnedSource, OwnedSource),
    Pages(LayerPages<'static>),
}

/// One call.
pub(crate) struct Request<'a> {
    queries: Queries<'a>,
    kv: KeysAndValues<'a>,
}

/// One call that outlives the one from JavaScript.
pub(crate) struct OwnedRequest {
    queries: OwnedQueries,
    kv: OwnedKeysAndValues,
}

impl<'a> Request<'a> {
    /// Reads the arguments of a call.
    pub fn read([q, k, v]: [&'a TensorArg; 3], lists: &'a ListsArg, call: &[f64]) -> Outcome<Self> {
        let queries = Queries::read(q, lists, call)?;
        Ok(Request { queries, kv: KeysAndValues::Tensors(source("k", k, call, 1)?, source("v", v, call, 2)?) })
    }

    /// A call over pages of a layer.
    pub fn over_pages(queries: Queries<'a>, pages: LayerPages<'_>) -> Self {
        Request { queries, kv: KeysAndValues::Pages(Cow::Owned(pages.pinned())) }
    }

    /// Copies what lies in JavaScript's memory, and pins the caches.
    pub fn to_owned(&self, budget: &Arc<Budget>) -> Outcome<OwnedRequest> {
        let own = |source: &Source<'_>, argument| OwnedSource::new(source, argument, budget);
        Ok(OwnedRequest {
            queries: self.queries.to_owned(budget)?,
            kv: match &self.kv {
                KeysAndValues::Tensors(k, v) => OwnedKeysAndValues::Tensors(own(k, "k")?, own(v, "v")?),
                KeysAndValues::Pages(pages) => OwnedKeysAndValues::Pages(pages.clone().into_owned()),
            },
        })
    }

    /// True when the sums are wanted too.
    pub fn with_lse(&self) -> bool {
        self.queries.numbers.with_lse
    }

    /// True when something that it reads lies in this memory.
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        let is_kv = match &self.kv {
            KeysAndValues::Tensors(k, v) => k.overlaps(memory, bytes) || v.overlaps(memory, bytes),
            // Nobody outside has memory of pages.
            KeysAndValues::Pages(_) => false,
        };
        is_kv || self.queries.overlaps(memory, bytes)
    }

    /// Does the work, in memory that `take` gives.
    pub fn run<'o>(
        &self,
        stop: Option<&AtomicBool>,
        take: impl FnOnce(&Room) -> kvtide_tensor::Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Outcome<()> {
        let take = |room: &Room| {
            self.queries.numbers.check_out(room)?;
            take(room)
        };
        self.queries.ask(stop, |q, options| match &self.kv {
            KeysAndValues::Tensors(k, v) => Ok(attend_with(q, self.tensors(k, v), options, take)?),
            KeysAndValues::Pages(pages) => Ok(pages.attend_with(q, options, take)?),
        })
    }

    /// Does the work where the queries lie on a device of their own memory: the result stays there. Nothing where they do not.
    pub fn stay(&self, stop: Option<&AtomicBool>) -> Outcome<Option<Attended>> {
        if !self.queries.are_away() {
            return Ok(None);
        }
        self.queries.ask(stop, |q, options| {
            Ok(Some(match &self.kv {
                KeysAndValues::Tensors(k, v) => attend(q, self.tensors(k, v), options)?,
                KeysAndValues::Pages(pages) => pages.attend(q, options)?,
            }))
        })
    }

    fn tensors<'b>(&'b self, k: &Source<'b>, v: &Source<'b>) -> KvRows<'b> {
        let (k, v) = (k.clone(), v.clone());
        match (self.queries.numbers.ragged, &self.queries.lists.kv_offsets) {
            (true, Some(offsets)) => KvRows::Ragged { k, v, offsets },
            _ => KvRows::Batched { k, v },
        }
    }
}

impl OwnedRequest {
    /// True when the sums are wanted too.
    pub fn with_lse(&self) -> bool {
        self.queries.numbers.with_lse
    }

    /// The call.
    pub fn request(&self) -> Outcome<Request<'_>> {
        Ok(Request {
            queries: self.queries.queries()?,
            kv: match &self.kv {
                OwnedKeysAndValues::Tensors(k, v) => KeysAndValues::Tensors(k.source()?, v.source()?),
                OwnedKeysAndValues::Pages(pages) => KeysAndValues::Pages(Cow::Borrowed(pages)),
            },
        })
    }
}
