//! Attention over views of a window, with the window's own rules: the same as over every token that was ever appended, with
//! that window; and an error if it would attend to dropped tokens. Appends, drafts and trees of drafts, at random.

use kvtide_core::{Code, TransactionId};
use kvtide_tensor::attention::{AttendOptions, Attended, attend};
use kvtide_tensor::runtime::{Budget, Kernels, with_kernels};
use kvtide_tensor::{
    BeginOptions, DType, HostTensor, Kv, Result, RotatingCacheOptions, RotatingKvCache, Transactional,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::numbers::{Numbers, to_bytes};
use crate::oracle::{Naive, ancestors};
use crate::support;

const DIM: usize = 3;

/// A call. Numbers that choose among what is there are taken modulo how much there is.
#[derive(Clone, Debug)]
enum Call {
    Append(usize),
    /// Drafts this many tokens; with parents, each follows the node this many places before it.
    Draft(usize, Option<[usize; 8]>),
    Commit(usize),
    Path(usize),
    Rollback,
    /// So many of the last tokens ask what is retained, by a window of their own if they name one.
    Ask(usize, Option<u32>, bool),
}

#[derive(Clone, Debug)]
struct Setup {
    slopes: Option<[f32; 1]>,
    seed: u64,
    window: u32,
    sinks: u32,
    slack: u32,
}

struct World {
    cache: RotatingKvCache,
    setup: Setup,
    numbers: Numbers,
    /// K and V of every token, those that are drafted behind the others.
    tokens: Vec<[Vec<f32>; 2]>,
    open: Option<TransactionId>,
    /// The node that each drafted token follows; and whether they were given.
    parents: Vec<i32>,
    branched: bool,
}

fn host<'a>(bytes: &'a [u8], rows: usize) -> HostTensor<'a> {
    HostTensor::new("rows", bytes, DType::F32, &[1, 1, rows, DIM]).unwrap()
}

impl World {
    fn new(setup: &Setup) -> Self {
        let Setup { window: max_seq_len, sinks, slack, .. } = *setup;
        let options = RotatingCacheOptions { max_seq_len, sinks, slack: Some(slack), ..Default::default() };
        World {
            cache: RotatingKvCache::new(options).unwrap(),
            numbers: Numbers::new(setup.seed),
            setup: setup.clone(),
            tokens: Vec::new(),
            open: None,
            parents: Vec::new(),
            branched: false,
        }
    }

    fn call(&mut self, call: &Call) -> std::result::Result<(), TestCaseError> {
        match *call {
            Call::Append(count) if self.open.is_none() => {
                let [k, v] = self.take(count);
                let shown = self.cache.append(host(&k, count), host(&v, count))?;
                self.agrees(&shown, count, &AttendOptions::default())?;
            }
            Call::Append(_) => {}
            Call::Draft(count, back) => self.draft(count, back)?,
            Call::Commit(kept) => {
                let Some(id) = self.open.take() else { return Ok(()) };
                let kept = kept % (self.parents.len() + 1);
                self.cache.commit_draft(id, Some(kept as u64))?;
                self.ended((0..kept).collect());
            }
            Call::Path(leaf) => {
                let Some(id) = self.open.take() else { return Ok(()) };
                let leaf = leaf.checked_rem(self.parents.len());
                let mut path = leaf.map_or(Vec::new(), |leaf| ancestors(&self.parents, leaf));
                path.reverse();
                let nodes: Vec<u32> = path.iter().map(|&node| node as u32).collect();
                self.cache.commit_draft_path(id, &nodes)?;
                self.ended(path);
            }
            Call::Rollback => {
                let Some(id) = self.open.take() else { return Ok(()) };
                self.cache.drop_draft(id);
                self.ended(Vec::new());
            }
            Call::Ask(queries, window, causal) if !self.branched && !self.tokens.is_empty() => {
                let shown = self.cache.current_data()?.expect("there are tokens");
                let queries = queries % self.tokens.len().min(6) + 1;
                let slopes = self.setup.slopes;
                let alibi_slopes = slopes.as_ref().map(<[f32; 1]>::as_slice);
                self.asked(&shown, queries, &AttendOptions { window, causal, alibi_slopes, ..Default::default() })?;
            }
            Call::Ask(..) => {}
        }
        Ok(())
    }

    /// New tokens, as bytes.
    fn take(&mut self, count: usize) -> [Vec<u8>; 2] {
        let new: Vec<_> = (0..count).map(|_| [0, 1].map(|_| self.numbers.take(DIM))).collect();
        let bytes = [0, 1].map(|part| new.iter().flat_map(|token| to_bytes(DType::F32, &token[part])).collect());
        self.tokens.extend(new);
        bytes
    }

    fn draft(&mut self, count: usize, back: Option<[usize; 8]>) -> std::result::Result<(), TestCaseError> {
        let id = match self.open {
            Some(id) => id,
            None => self.cache.begin_draft(None, BeginOptions::default())?,
        };
        self.open = Some(id);
        let first = self.parents.len();
        let parents: Option<Vec<i32>> = back.map(|back| {
            (0..count).map(|at| (first + at) as i32 - 1 - back[at % 8] as i32).map(|node| node.max(-1)).collect()
        });
        let [k, v] = self.take(count);
        let shown: Kv = self.cache.append_draft(id, host(&k, count), host(&v, count), parents.as_deref())?.into();
        self.parents.extend(parents.clone().unwrap_or_else(|| (0..count).map(|at| (first + at) as i32 - 1).collect()));
        self.branched |= parents.is_some() && count > 0;
        if !self.branched && parents.is_none() {
            return self.agrees(&shown, count, &AttendOptions::default());
        }
        let (offsets, all) = ([0, self.parents.len() as i32], self.parents.clone());
        let tree = AttendOptions { tree: Some(&all), tree_offsets: Some(&offsets), ..Default::default() };
        self.agrees(&shown, count, &tree)?;
        let sloped = AttendOptions { alibi_slopes: Some(&[0.3]), ..tree };
        self.agrees(&shown, count, &sloped)?;
        let mask = self.cache.draft_mask(id, &Budget::process())?;
        let (rows, columns) = (mask.shape()[0], mask.shape()[1]);
        let bytes = mask.narrow(0, rows - count, count)?.to_bytes()?;
        let mask = HostTensor::new("mask", &bytes, DType::F32, &[count, columns])?;
        for causal in [true, false] {
            self.agrees(&shown, count, &AttendOptions { causal, mask: Some(mask.clone()), ..Default::default() })?;
        }
        // A mask alone does not say how deep nodes are.
        let masked = AttendOptions { mask: Some(mask.clone()), alibi_slopes: Some(&[0.3]), ..Default::default() };
        let refused = self.attended(&shown, count, &masked).0.map(drop).map_err(|error| error.code());
        let is_tree = self.parents.iter().enumerate().any(|(node, &parent)| parent != node as i32 - 1);
        prop_assert!(!is_tree || refused == Err(Code::InvalidArgument), "{refused:?}");
        self.agrees(&shown, count, &AttendOptions { mask: Some(mask), ..sloped })?;
        Ok(())
    }

    fn ended(&mut self, kept: Vec<usize>) {
        let first = self.tokens.len() - self.parents.len();
        let nodes = self.tokens.split_off(first);
        self.tokens.extend(kept.into_iter().map(|node| nodes[node].clone()));
        (self.parents, self.branched) = (Vec::new(), false);
    }

    /// Asks with the last tokens, where a window may see what is gone.
    fn asked(
        &mut self,
        shown: &Kv,
        queries: usize,
        options: &AttendOptions<'_>,
    ) -> std::result::Result<(), TestCaseError> {
        let (all, sinks) = (self.tokens.len(), self.setup.sinks as usize);
        let gone = sinks..all.saturating_sub(self.setup.window as usize);
        let window = options.window.unwrap_or(self.setup.window) as usize;
        let sees_gone = |position: usize| {
            (!options.causal || position >= gone.start) && (position + 1).saturating_sub(window) < gone.end
        };
        if gone.start < gone.end && (all - queries..all).any(sees_gone) {
            let refused = self.attended(shown, queries, options).0.map(drop).map_err(|error| error.code());
            prop_assert_eq!(refused, Err(Code::InvalidArgument));
            return Ok(());
        }
        self.agrees(shown, queries, options)
    }

    fn attended(&mut self, shown: &Kv, queries: usize, options: &AttendOptions<'_>) -> (Result<Attended>, Vec<f32>) {
        let q = self.numbers.take(queries * DIM);
        let bytes = to_bytes(DType::F32, &q);
        (attend(host(&bytes, queries), shown, options), q)
    }

    fn agrees(
        &mut self,
        shown: &Kv,
        queries: usize,
        options: &AttendOptions<'_>,
    ) -> std::result::Result<(), TestCaseError> {
        let (attended, q) = self.attended(shown, queries, options);
        let out = attended?.out.to_f32()?;
        let positions: Vec<i64> = (0..self.tokens.len() as i64).collect();
        let row = |token: usize, part: usize| self.tokens[token][part].iter().map(|&value| value.into()).collect();
        let parents = self.branched.then_some(&self.parents[..]);
        let naive = Naive {
            positions: &positions,
            kv_heads: 1,
            query_heads: 1,
            key: &|_, token| row(token, 0),
            value: &|_, token| if self.tokens.is_empty() { vec![0.0; DIM] } else { row(token, 1) },
            scale: 1.0 / (DIM as f64).sqrt(),
            causal: options.causal || parents.is_some(),
            window: Some(options.window.unwrap_or(self.setup.window).into()),
            sinks: if options.window.is_some() { 0 } else { self.setup.sinks.into() },
            start: i64::MIN,
            softcap: None,
            sink_logits: None,
            slopes: options.alibi_slopes,
            mask: &|_, _, _| 0.0,
            parents,
            first_node: parents.map_or(0, |parents| parents.len() as i64 - queries as i64),
        };
        for query in 0..queries {
            let place = self.tokens.len() - queries + query;
            let position = match parents {
                Some(parents) => {
                    let before = self.tokens.len() - parents.len();
                    (before + ancestors(parents, place - before).len() - 1) as i64
                }
                None => place as i64,
            };
            let asked: Vec<f64> = q[query * DIM..][..DIM].iter().map(|&value| value.into()).collect();
            let (expected, ..) = naive.attend(&asked, query, position, 0);
            let found = &out[query * DIM..][..DIM];
            let near = found.iter().zip(&expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-5);
            prop_assert!(near, "query {} of {}: {:?}, expected {:?}", query, queries, found, expected);
        }
        Ok(())
    }
}

fn call() -> impl Strategy<Value = Call> {
    let count = || prop_oneof![4 => 1..3usize, 1 => 0..12usize];
    let back = prop::option::of(prop::array::uniform8(0..3usize));
    let window = prop::option::weighted(0.3, 1..12u32);
    prop_oneof![
        4 => count().prop_map(Call::Append),
        4 => (count(), back).prop_map(|(count, back)| Call::Draft(count, back)),
        1 => any::<usize>().prop_map(Call::Commit),
        1 => any::<usize>().prop_map(Call::Path),
        1 => Just(Call::Rollback),
        4 => (0..6usize, window, any::<bool>()).prop_map(|(queries, window, causal)| Call::Ask(queries, window, causal)),
    ]
}

fn follows_the_window((kernels, setup, calls): (Kernels, Setup, Vec<Call>)) -> std::result::Result<(), TestCaseError> {
    with_kernels(kernels, || {
        let mut world = World::new(&setup);
        calls.iter().try_for_each(|call| world.call(call))
    })?
}

#[test]
fn attention_over_a_window_is_attention_over_everything_with_it() {
    let setup = (any::<u64>(), 1..7u32, 0..3u32, 0..5u32).prop_map(|(seed, window, sinks, slack)| Setup {
        slopes: (seed % 2 == 0).then_some([0.3]),
        seed,
        window,
        sinks,
        slack,
    });
    let kernels = prop::sample::select(Kernels::supported().collect::<Vec<_>>());
    let calls = (kernels, setup, prop::collection::vec(call(), 0..20));
    support::run("attention over windows", 3_000, calls, follows_the_window);
}
