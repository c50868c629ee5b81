//! A cache on tensors as a cache of values, in the encoding of [`Content`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use kvtide_core::paged::{PageFormat, PoolStats, Window};
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::runtime::Kernels;
use kvtide_tensor::{
    BeginOptions, DType, Error, HostTensor, PagedKvCache, PagedKvCacheOptions, PagedPrefix, PagedSnapshot,
    PromptOptions, StepTokens, Tokens, Transactional,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::calls::Shape;
use super::content::Content;
use super::elsewhere::{Hidden, Lent, SharedStep};
use super::model::Value;
use super::world::{Answer, Cache, Done, Seen, SeenStep, Share};

pub struct TensorCache {
    pub cache: PagedKvCache,
    pub content: Content,
    layers: u32,
    block_size: u32,
    /// Calls that may have opened a page that was full.
    opened: u32,
    /// The form in which steps are computed elsewhere, if they are.
    elsewhere: Option<Kernels>,
    lent: Option<Lent>,
    /// The lost tokens of the open step, if it was stale when its run ended.
    lost: Hidden,
    /// The bytes that each layer of each sequence showed last: no call on others changes a bit of them.
    shown: Sightings,
}

/// The last content of sequences, by sequence and layer.
#[derive(Default)]
struct Sightings {
    seen: BTreeMap<(u64, u32), [Vec<u8>; 2]>,
}

impl Sightings {
    /// A call on these sequences may change them.
    fn forget(&mut self, sequences: &[u64]) {
        self.seen.retain(|(of, _), _| !sequences.contains(of));
    }

    fn check(&mut self, sequence: u64, layer: u32, bytes: &[Vec<u8>; 2]) -> Done {
        if let Some(before) = self.seen.insert((sequence, layer), bytes.clone()) {
            prop_assert!(before == *bytes, "layer {} of {}: a call on others changed its bytes", layer, sequence);
        }
        Ok(())
    }
}

/// An object that holds blocks.
pub enum Hold {
    Snapshot(PagedSnapshot),
    Prefix(PagedPrefix),
}

/// K and V of some layers, as they are handed over.
pub struct Fed {
    pub content: Content,
    bytes: [Vec<u8>; 2],
    shapes: [Vec<usize>; 2],
}

impl Fed {
    pub fn host(&self, part: usize) -> HostTensor<'_> {
        HostTensor::new("k", &self.bytes[part], self.content.dtype, &self.shapes[part]).expect("as many bytes")
    }
}

impl TensorCache {
    pub fn new(shape: &Shape, content: Content) -> Result<Self, TestCaseError> {
        let window = shape.window.map(|(tokens, sinks)| Window::new(tokens, sinks).expect("a window"));
        let cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: shape.capacity,
            block_size: shape.block_size,
            num_layers: shape.layers,
            window,
            eviction: shape.policy.make().map(Arc::from),
            ..content.options()
        })?;
        Ok(TensorCache {
            cache,
            content,
            layers: shape.layers,
            block_size: shape.block_size,
            opened: 0,
            elsewhere: None,
            lent: None,
            lost: Hidden::default(),
            shown: Sightings::default(),
        })
    }

    /// The same, which computes its steps elsewhere.
    pub fn elsewhere(self, kernels: Kernels) -> Self {
        TensorCache { elsewhere: Some(kernels), ..self }
    }

    /// Brings the run home, if one is out.
    pub fn home(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.shown.forget(lent.sequences());
            self.lost = lent.home(&mut self.cache, &self.content);
        }
    }

    /// True if quantised tokens have the same bits as floats: a step that continues in such a page converts it to floats,
    /// for forks too; if the step is rolled back, the page is as before.
    fn keeps_bits(&self) -> bool {
        let quantised = self.content.formats.into_iter().flatten().any(PageFormat::is_low_bit);
        !quantised || self.content.dtype == DType::F32
    }

    fn hidden(&self) -> &Hidden {
        self.lent.as_ref().map_or(&self.lost, |lent| &lent.hidden)
    }

    /// Makes a call that touches pages, or may: refused with a run out, and made again once that is home.
    fn touching<T>(&mut self, always: bool, call: impl Fn(&mut PagedKvCache) -> Result<T, Error>) -> Answer<T> {
        if self.lent.is_some() {
            let answer = code(call(&mut self.cache));
            if !matches!(answer, Err(Code::Busy)) {
                assert!(!always, "not refused while a run is out: {:?}", answer.err());
                return answer;
            }
            self.home();
        }
        code(call(&mut self.cache))
    }

    /// K and V of the values `tokens[token][layer]` in all layers.
    fn fed_all(&self, tokens: &[Vec<Value>]) -> Fed {
        let of_layer = |layer: usize| tokens.iter().map(|token| token[layer]).collect();
        self.fed(&(0..self.layers as usize).map(of_layer).collect::<Vec<_>>(), true)
    }

    /// K and V of values layer by layer.
    fn fed(&self, layers: &[Vec<Value>], outer: bool) -> Fed {
        let Content { heads, dims, .. } = self.content;
        let shape = |dim: usize| {
            let all = [layers.len(), heads, layers[0].len(), dim];
            if outer { all.to_vec() } else { all[1..].to_vec() }
        };
        Fed { content: self.content, bytes: [0, 1].map(|part| self.content.fed(part, layers)), shapes: dims.map(shape) }
    }

    /// Drafted tokens in a step of their own.
    fn draft_step(&mut self, id: u64, parents: Option<&[i32]>, values: &[Vec<Value>], ids: &[u32]) -> Answer<()> {
        let offsets = [0, values.len() as u32];
        let tokens = StepTokens { sequences: &[id], offsets: Some(&offsets), parents };
        let mut step = self.touching(true, |cache| cache.begin_step(tokens))?;
        for layer in 0..self.layers {
            let of_layer: Vec<Value> = values.iter().map(|token| token[layer as usize]).collect();
            let fed = self.fed(&[of_layer], false);
            code(self.cache.write_layer(&mut step, layer, fed.host(0), fed.host(1)))?;
        }
        code(self.cache.commit_step(&mut step, Some(ids)))
    }

    /// The positions that left the window of a sequence with this number of tokens, of which so many are kept.
    pub fn gap(&self, kept: usize, seen: &Seen<'_>) -> Result<Range<usize>, TestCaseError> {
        let all = seen.values.len();
        prop_assert!(kept <= all);
        let sinks = seen.shape.window.map_or(0, |(_, sinks)| sinks as usize);
        let start = sinks.next_multiple_of(self.block_size as usize);
        let gap = if kept == all { 0..0 } else { start..start + all - kept };
        prop_assert!(seen.lets_go(&gap), "{:?} is seen", gap);
        Ok(gap)
    }
}

impl Cache for TensorCache {
    type Hold = Hold;
    type Step = SharedStep;

    fn create(&mut self, salt: u8) -> u64 {
        self.cache.create_sequence_of(PromptOptions { salt: &[salt], ..PromptOptions::default() }).expect("a sequence")
    }

    fn drop_sequence(&mut self, id: u64) -> Answer<()> {
        let done = code(self.cache.drop_sequence(id));
        assert_eq!(code(self.cache.gather(id, 0)).err(), Some(Code::SequenceNotFound));
        done
    }

    fn fork(&mut self, id: u64) -> Answer<u64> {
        code(self.cache.fork(id))
    }

    fn ensure(&mut self, id: u64, tokens: u32) -> Answer<()> {
        code(self.cache.ensure_capacity(id, tokens))
    }

    fn identify(&mut self, id: u64, tokens: &[u32]) -> Answer<u32> {
        code(self.cache.identify(id, tokens))
    }

    fn truncate(&mut self, id: u64, length: u32) -> Answer<()> {
        self.shown.forget(&[id]);
        let done = code(self.cache.truncate(id, length));
        self.opened += u32::from(done.is_ok());
        done
    }

    fn write(&mut self, id: u64, layer: u32, position: u32, values: &[Value]) -> Answer<()> {
        self.shown.forget(&[id]);
        let fed = self.fed(&[values.to_vec()], false);
        // One token goes in by itself as well.
        let done = self.touching(true, |cache| match values {
            [_] => cache.write_kv(id, layer, position, fed.host(0), fed.host(1)),
            _ => cache.write_tokens(id, layer, position, fed.host(0), fed.host(1)),
        });
        self.opened += u32::from(done.is_ok());
        done
    }

    fn append(&mut self, shares: &[Share], values: &[Vec<Value>], ids: Option<&[u32]>) -> Answer<()> {
        let (fed, (sequences, offsets)) = (self.fed_all(values), flat(shares));
        self.shown.forget(&sequences);
        self.touching(true, |cache| cache.append_known(&sequences, fed.host(0), fed.host(1), Some(&offsets), ids))
    }

    fn retain(&mut self, id: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) {
        self.cache.retain(id, tokens, priority, until).expect("a priority");
    }

    fn advance(&mut self, now: u64) {
        self.cache.advance_clock(now).expect("a later time");
    }

    fn forget(&mut self) {
        self.cache.forget_prefixes().expect("nothing that refuses it");
    }

    fn snapshot(&mut self, id: u64) -> Answer<Hold> {
        code(self.cache.snapshot(id)).map(Hold::Snapshot)
    }

    fn restore(&mut self, id: u64, held: &Hold) -> Answer<()> {
        self.shown.forget(&[id]);
        let Hold::Snapshot(snapshot) = held else { unreachable!("prefixes are not restored") };
        code(self.cache.restore(id, snapshot))
    }

    fn find(&mut self, tokens: &[u32], salt: u8, partial: bool) -> Hold {
        let prompt = PromptOptions { salt: &[salt], ..PromptOptions::default() };
        Hold::Prefix(self.cache.find_prefix(tokens, prompt, partial).expect("a prefix"))
    }

    fn held_length(held: &Hold) -> u32 {
        match held {
            Hold::Snapshot(snapshot) => snapshot.length(),
            Hold::Prefix(prefix) => prefix.length(),
        }
    }

    fn create_from(&mut self, held: Hold) -> u64 {
        // The start of a block is opened where it goes on.
        self.opened += u32::from(!Self::held_length(&held).is_multiple_of(self.block_size));
        let Hold::Prefix(prefix) = held else { unreachable!("no sequence is made of a snapshot") };
        self.cache.create_sequence_from(prefix).expect("a sequence")
    }

    fn release(&mut self, held: Hold) {
        drop(held);
    }

    fn begin(&mut self, id: u64, parent: Option<TransactionId>, room: Option<u32>) -> Answer<TransactionId> {
        let max_tokens = room.map(|tokens| tokens - self.cache.sequence_length(id));
        code(self.cache.sequence(id).expect("a sequence").begin_draft(parent, BeginOptions { max_tokens }))
    }

    /// Some come in a step of their own, some in the sequence's own call.
    fn append_draft(
        &mut self,
        (id, draft): (u64, TransactionId),
        parents: Option<&[i32]>,
        values: &[Vec<Value>],
        ids: Option<&[u32]>,
    ) -> Answer<()> {
        self.shown.forget(&[id]);
        if let Some(ids) = ids
            && id.is_multiple_of(2)
        {
            return self.draft_step(id, parents, values, ids);
        }
        let fed = self.fed_all(values);
        let tokens = || Tokens { parents, ids, ..Tokens::of_all(fed.host(0), fed.host(1)) };
        self.touching(true, |cache| cache.append_to(id, Some(draft), tokens()))
    }

    fn commit(&mut self, (id, draft): (u64, TransactionId), tokens: Option<u64>) -> Answer<()> {
        self.shown.forget(&[id]);
        self.touching(false, |cache| cache.sequence(id)?.commit_draft(draft, tokens))
    }

    fn commit_path(&mut self, (id, draft): (u64, TransactionId), path: &[u32]) -> Answer<()> {
        self.shown.forget(&[id]);
        self.touching(false, |cache| cache.sequence(id)?.commit_draft_path(draft, path))
    }

    fn undo(&mut self, (id, draft): (u64, TransactionId)) {
        self.shown.forget(&[id]);
        self.cache.sequence(id).expect("a sequence").drop_draft(draft);
    }

    fn begin_step(&mut self, shares: &[Share]) -> Answer<SharedStep> {
        let (sequences, offsets) = flat(shares);
        self.shown.forget(&sequences);
        let tokens = StepTokens { sequences: &sequences, offsets: Some(&offsets), parents: None };
        self.touching(true, |cache| cache.begin_step(tokens)).map(|step| Rc::new(RefCell::new(step)))
    }

    fn write_layer(&mut self, step: &mut SharedStep, layer: u32, values: &[Value]) -> Answer<()> {
        self.shown.forget(step.borrow().sequences());
        let fed = self.fed(&[values.to_vec()], false);
        let Some(kernels) = self.elsewhere else {
            return code(self.cache.write_layer(&mut step.borrow_mut(), layer, fed.host(0), fed.host(1)));
        };
        // A stale step is still written to while its run is out, but the result must never be visible.
        let answer = code(self.cache.check_step(&step.borrow()));
        if self.lent.is_none() {
            self.opened += 1;
            let run = code(self.cache.run_step(&mut step.borrow_mut()))?;
            assert_eq!(code(self.cache.run_step(&mut step.borrow_mut())).err(), Some(Code::Busy));
            self.lent = Some(Lent::new(step, run));
        }
        if let Some(lent) = &mut self.lent {
            // What a stale step had written before it was stale stays shown; nothing new of it ever is.
            let written = code(self.cache.check_written(&step.borrow(), layer));
            let is_known = matches!(written, Ok(()) | Err(Code::StaleStep));
            lent.write(layer, fed, kernels, is_known);
        }
        answer
    }

    fn commit_step(&mut self, step: &mut SharedStep, ids: Option<&[u32]>) -> Answer<()> {
        self.shown.forget(step.borrow().sequences());
        if self.lent.is_some() {
            // What is refused is refused before, or because it is elsewhere.
            let refused = code(self.cache.commit_step(&mut step.borrow_mut(), ids));
            assert!(matches!(refused, Err(Code::Busy | Code::StaleStep)), "{refused:?}");
            self.home();
        }
        let step = &mut *step.borrow_mut();
        code(self.cache.commit_step(step, ids))?;
        assert_eq!(code(self.cache.commit_step(step, ids)), Err(Code::TransactionClosed));
        Ok(())
    }

    /// Drops a step. If it is dropped open, the next call on the cache must find no trace of it. Its run may still be out.
    fn drop_step(&mut self, step: SharedStep) {
        let step = &mut *step.borrow_mut();
        self.shown.forget(step.sequences());
        self.lost = Hidden::default();
        if step.tokens().is_multiple_of(2) {
            self.cache.undo_step(step).expect("nothing that refuses it");
        }
    }

    fn ids(&self) -> Vec<u64> {
        self.cache.sequence_ids()
    }

    fn lengths(&self, id: u64) -> [u32; 2] {
        [self.cache.sequence_length(id), self.cache.committed_length(id)]
    }

    fn pool(&mut self) -> PoolStats {
        self.cache.pools().expect("a pool")[0]
    }

    fn staged_count(&mut self) -> u32 {
        self.cache.staged_count()
    }

    fn check_invariants(&self, _: &[&Hold]) -> Result<(), String> {
        self.cache.check_invariants()
    }

    fn check_layer(&mut self, id: u64, layer: u32, seen: &Seen<'_>) -> Done {
        // What a run has written is shown once it is home.
        let hidden = self.hidden().has(id, layer);
        let shown = seen.values.iter().enumerate().map(|(at, value)| value.filter(|_| !hidden || at < seen.resting));
        let (values, heads) = (&shown.collect::<Vec<_>>(), self.content.heads);
        let gathered = self.cache.gather(id, layer)?;
        let gap = self.gap(gathered.k.shape()[1], seen)?;
        let kept = (0..values.len()).filter(|at| !gap.contains(at));
        let shown: Vec<Value> = kept.map(|at| values[at].unwrap_or(0)).collect();
        let bytes = [gathered.k.to_bytes()?, gathered.v.to_bytes()?];
        for (part, bytes) in bytes.iter().enumerate() {
            let same = self.content.check(part, &shown, bytes, self.opened);
            prop_assert!(same.is_ok(), "layer {} of {}: {}", layer, id, same.unwrap_err());
        }
        if self.keeps_bits() {
            self.shown.check(id, layer, &bytes)?;
        }
        // Some by themselves: the ends, the edges of a gap, and one that moves along.
        let some = [0, gap.start, gap.end, values.len() / 2, values.len().wrapping_sub(1), values.len()];
        for at in some {
            let read = self.cache.read_kv(id, layer, at as u32);
            let is_there = at < values.len() && !gap.contains(&at) && values[at].is_some();
            if !is_there {
                let refused = code(read).err();
                prop_assert_eq!(refused, Some(Code::PositionOutOfRange), "{} of layer {} of {}", at, layer, id);
                continue;
            }
            let read = read?;
            let place = if at < gap.start || gap.is_empty() { at } else { at - gap.len() };
            for (part, one) in [read.key, read.value].into_iter().enumerate() {
                let row = one.len() / heads;
                let of_head = |head: usize| &bytes[part][(head * shown.len() + place) * row..][..row];
                prop_assert_eq!(one, (0..heads).flat_map(of_head).copied().collect::<Vec<_>>());
            }
        }
        Ok(())
    }

    fn check_draft(&mut self, (id, draft): (u64, TransactionId), positions: &[usize], is_stepping: bool) -> Done {
        let sequence = self.cache.sequence(id)?;
        prop_assert_eq!(sequence.drafted(draft)? as usize, positions.len());
        let positions: Vec<u64> = positions.iter().map(|&position| position as u64).collect();
        // A step adds more nodes, which may still be rolled back.
        let expected = if is_stepping { Err(Code::TransactionOpen) } else { Ok(positions) };
        prop_assert_eq!(code(sequence.draft_positions(draft)), expected);
        Ok(())
    }

    fn check_step(&mut self, step: &SharedStep, seen: &SeenStep<'_>) -> Done {
        let step = &*step.borrow();
        let stale = if seen.is_stale { Err(Code::StaleStep) } else { Ok(()) };
        prop_assert_eq!(code(self.cache.check_step(step)), stale);
        let (sequences, offsets) = flat(seen.shares);
        prop_assert_eq!((step.sequences(), step.tokens()), (&sequences[..], offsets[sequences.len()]));
        for (layer, &is_written) in (0..seen.shape.layers).zip(seen.written).filter(|_| !seen.is_stale) {
            let is_known = is_written && !self.hidden().has_layer(layer);
            let missing = (!is_known).then_some(Code::InvalidArgument);
            prop_assert_eq!(code(self.cache.check_written(step, layer)).err(), missing);
        }
        for (&id, (before, _)) in sequences.iter().zip(seen.places) {
            prop_assert_eq!(self.cache.sequence_length(id) as usize, *before);
        }
        Ok(())
    }
}

/// The code of a refusal. Of blocks there must have been too few.
pub fn code<T>(done: Result<T, Error>) -> Answer<T> {
    done.map_err(|error| {
        if let Error::Plan(kvtide_core::Error::OutOfBlocks { needed, free, .. }) = error {
            assert!(needed > free);
        }
        error.code()
    })
}

/// Sequences, and where the tokens of each begin.
fn flat(shares: &[Share]) -> (Vec<u64>, Vec<u32>) {
    let mut offsets = vec![0];
    shares.iter().for_each(|share| offsets.push(offsets[offsets.len() - 1] + share.1.len() as u32));
    (shares.iter().map(|share| share.0).collect(), offsets)
}
