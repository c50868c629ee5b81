//! Steps over low-bit pages: a token sees the same whatever other tokens its step has. Pages before its own page are
//! quantised, and its own page is floats: for prompts in pieces, next to other sequences, in drafts, and after drafted
//! tokens were dropped.

use std::ops::Range;

use kvtide_core::paged::{PageFormat, Window};
use kvtide_tensor::attention::AttendOptions;
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{BeginOptions, DType, HostTensor, PagedKvCache, PagedKvCacheOptions, StepTokens};
use proptest::prelude::*;

use crate::numbers::{Numbers, to_bytes};
use crate::support;

const LAYERS: u32 = 2;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    tokens: usize,
    block_size: u32,
    heads: usize,
    group: usize,
    dims: [usize; 2],
    formats: [Option<PageFormat>; 2],
    rotated: [bool; 2],
    window: Option<Window>,
    steps: Vec<Piece>,
}

/// Some tokens in one step.
#[derive(Clone, Debug)]
struct Piece {
    tokens: usize,
    /// They are drafted, with so many more that are dropped again.
    drafted: Option<usize>,
    /// Its layers are computed apart from the cache.
    elsewhere: bool,
    /// Tokens of another sequence in the same step.
    beside: usize,
    /// It is computed and undone first.
    undone: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let format =
        || prop::sample::select(&[None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)][..]);
    let piece =
        (prop_oneof![1..4usize, 1..40usize, 60..90usize], prop::option::weighted(0.4, 0..6usize), any::<bool>());
    let piece =
        (piece, 0..9usize, prop::bool::weighted(0.2)).prop_map(|((tokens, drafted, elsewhere), beside, undone)| {
            Piece { tokens, drafted, elsewhere, beside, undone }
        });
    let shape = (prop::sample::select(&[1u32, 3, 4, 16][..]), 1..4usize, 1..5usize);
    let dims = [prop::sample::select(&[5usize, 16, 24][..]), prop::sample::select(&[8usize, 16][..])];
    let window = prop::option::weighted(0.4, (1..40u32, 0..6u32));
    let rest = ([format(), format()], any::<[bool; 2]>(), window, prop::collection::vec(piece, 1..9));
    (any::<u64>(), 1..130usize, shape, dims, rest).prop_map(|(seed, tokens, shape, dims, rest)| {
        let ((block_size, heads, group), (formats, rotated, window, steps)) = (shape, rest);
        let rotated = [0, 1].map(|part| rotated[part] && formats[part].is_some());
        let window = window.map(|(window, sinks)| Window::new(window, sinks).unwrap());
        Case { seed, tokens, block_size, heads, group, dims, formats, rotated, window, steps }
    })
}

/// The rows of all tokens of a sequence: queries `[tokens, heads, dim]`, K and V `[heads, tokens, dim]` of each layer.
struct Rows {
    queries: Vec<f32>,
    kv: Vec<[Vec<f32>; 2]>,
}

impl Rows {
    fn new(case: &Case, tokens: usize, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let queries = numbers.take(tokens * case.heads * case.group * case.dims[0]);
        let kv = (0..LAYERS).map(|_| [0, 1].map(|part| numbers.take(case.heads * tokens * case.dims[part])));
        Rows { queries, kv: kv.collect() }
    }

    /// K or V of neighbouring tokens in a layer, behind what is already there.
    fn add(&self, out: &mut [Vec<f32>], case: &Case, layer: u32, part: usize, tokens: Range<usize>) {
        let (rows, dim) = (&self.kv[layer as usize][part], case.dims[part]);
        let all = rows.len() / case.heads / dim;
        for (head, out) in out.iter_mut().enumerate() {
            out.extend_from_slice(&rows[(head * all + tokens.start) * dim..(head * all + tokens.end) * dim]);
        }
    }

    fn queries(&self, case: &Case, tokens: Range<usize>) -> &[f32] {
        let row = case.heads * case.group * case.dims[0];
        &self.queries[tokens.start * row..tokens.end * row]
    }
}

/// A cache, and the sequences of a run.
struct Run<'a> {
    case: &'a Case,
    cache: PagedKvCache,
    sequences: [u64; 2],
    lengths: [usize; 2],
    /// Their tokens, and others that are dropped.
    rows: [Rows; 2],
    dropped: Rows,
}

impl<'a> Run<'a> {
    fn new(case: &'a Case) -> Self {
        let mut cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: 600,
            block_size: case.block_size,
            num_layers: LAYERS,
            num_kv_heads: case.heads as u32,
            head_dim: case.dims[0] as u32,
            value_head_dim: Some(case.dims[1] as u32),
            key_format: case.formats[0],
            value_format: case.formats[1],
            hadamard: case.rotated[0],
            value_hadamard: case.rotated[1],
            window: case.window,
            ..Default::default()
        })
        .unwrap();
        let sequences = [(); 2].map(|()| cache.create_sequence().unwrap());
        let of = |tokens, salt| Rows::new(case, tokens, case.seed ^ salt);
        let rows = [of(case.tokens, 1), of(100, 2)];
        Run { case, cache, sequences, lengths: [0; 2], rows, dropped: of(8, 3) }
    }

    /// Attention of the first sequence's tokens in one step, all layers, `[layers, tokens, heads * dim]`; the step is committed unless it
    /// is undone.
    fn step(&mut self, piece: &Piece, undone: bool) -> Vec<Vec<f32>> {
        let case = self.case;
        let more = if undone { 0 } else { piece.drafted.unwrap_or(0) };
        let draft = (!undone && piece.drafted.is_some())
            .then(|| self.cache.begin(self.sequences[0], None, BeginOptions::default()).unwrap());
        let counts = [piece.tokens + more, piece.beside];
        let offsets = [0, counts[0] as u32, (counts[0] + counts[1]) as u32];
        let tokens = StepTokens { sequences: &self.sequences, offsets: Some(&offsets), ..Default::default() };
        let mut step = self.cache.begin_step(tokens).unwrap();
        let ranges =
            [0, 1].map(|at| self.lengths[at]..self.lengths[at] + if at == 0 { piece.tokens } else { piece.beside });
        let total = counts[0] + counts[1];
        let mut run = piece.elsewhere.then(|| self.cache.run_step(&mut step).unwrap());
        let mut outs = Vec::new();
        for layer in 0..LAYERS {
            let parts = [0, 1].map(|part| {
                let mut heads = vec![Vec::new(); case.heads];
                self.rows[0].add(&mut heads, case, layer, part, ranges[0].clone());
                self.dropped.add(&mut heads, case, layer, part, 0..more);
                self.rows[1].add(&mut heads, case, layer, part, ranges[1].clone());
                to_bytes(DType::F32, &heads.concat())
            });
            let kv = |part: usize| {
                HostTensor::new("rows", &parts[part], DType::F32, &[case.heads, total, case.dims[part]]).unwrap()
            };
            let queries = [
                self.rows[0].queries(case, ranges[0].clone()),
                self.dropped.queries(case, 0..more),
                self.rows[1].queries(case, ranges[1].clone()),
            ];
            let q = to_bytes(DType::F32, &queries.concat());
            let q = HostTensor::new("q", &q, DType::F32, &[total, case.heads * case.group, case.dims[0]]).unwrap();
            let out = match &mut run {
                Some(run) => {
                    run.write_layer(layer, kv(0), kv(1)).unwrap();
                    run.attend_layer(layer, q, &AttendOptions::default()).unwrap()
                }
                None => {
                    self.cache.write_layer(&mut step, layer, kv(0), kv(1)).unwrap();
                    self.cache.attend_layer(&step, layer, q, &AttendOptions::default()).unwrap()
                }
            };
            let row = case.heads * case.group * case.dims[1];
            outs.push(out.out.to_f32().unwrap()[..piece.tokens * row].to_vec());
        }
        if let Some(run) = run {
            self.cache.end_run(&mut step, run).unwrap();
        }
        if undone {
            self.cache.undo_step(&mut step).unwrap();
            return outs;
        }
        self.cache.commit_step(&mut step, None).unwrap();
        self.lengths = [0, 1].map(|at| ranges[at].end);
        if let Some(draft) = draft {
            self.cache.commit(self.sequences[0], draft, Some(piece.tokens as u64)).unwrap();
        }
        self.cache.check_invariants().unwrap();
        outs
    }
}

/// Attention of all tokens in each layer, when they come in these pieces.
fn attended(case: &Case, pieces: &[Piece]) -> Vec<Vec<f32>> {
    let (mut run, mut all) = (Run::new(case), vec![Vec::new(); LAYERS as usize]);
    for piece in pieces.iter().cycle() {
        let tokens = piece.tokens.min(case.tokens - run.lengths[0]);
        if tokens == 0 {
            break;
        }
        let piece = Piece { tokens, beside: piece.beside.min(100 - run.lengths[1]), ..*piece };
        if piece.undone {
            run.step(&piece, true);
        }
        for (all, out) in all.iter_mut().zip(run.step(&piece, false)) {
            all.extend(out);
        }
    }
    all
}

#[test]
fn a_token_sees_the_same_whatever_its_step_has_in_it() {
    let one = [Piece { tokens: 1, drafted: None, elsewhere: false, beside: 0, undone: false }];
    support::run("steps", 200, case(), |case| {
        for kernels in Kernels::supported() {
            let [alone, found] =
                [&one[..], &case.steps].map(|pieces| with_kernels(kernels, || attended(&case, pieces)).unwrap());
            for (alone, found) in alone.iter().zip(&found) {
                let row = case.heads * case.group * case.dims[1];
                for (at, (alone, found)) in alone.iter().zip(found).enumerate() {
                    let token = at / row;
                    prop_assert!((alone - found).abs() < 1e-4, "{kernels:?}: {found} is not {alone}, token {token}");
                }
            }
        }
        Ok(())
    });
}
