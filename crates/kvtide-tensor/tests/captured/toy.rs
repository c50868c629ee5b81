//! A model of a few layers whose next token depends on all it has seen: small enough to be computed by loops.

use candle_core::{Device, Tensor};
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions, PagedModelOptions, PoolRoom, Result, StepTokens};

/// Its sizes.
#[derive(Clone, Debug)]
pub struct Toy {
    pub kinds: Vec<LayerKind>,
    pub kv_heads: usize,
    pub group: usize,
    pub dim: usize,
    pub dtype: DType,
    pub block_size: u32,
}

/// The numbers of a token: its heads' outputs.
pub type State = Vec<f32>;

pub const VOCABULARY: u32 = 61;

impl Toy {
    pub fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    pub fn width(&self) -> usize {
        self.heads() * self.dim
    }

    pub fn is_own(&self, layer: usize) -> bool {
        !matches!(self.kinds[layer], LayerKind::SharedWith(_))
    }

    pub fn embed(&self, token: u32) -> State {
        (0..self.width()).map(|at| (token as f32 * 0.7 + at as f32 * 1.3).sin()).collect()
    }

    /// Rows of a token in a layer: which of query (0), key (1) and value (2), and the head.
    fn row(
        &self,
        state: &[f32],
        (layer, position): (usize, u32),
        which: usize,
        head: usize,
    ) -> impl Iterator<Item = f32> {
        let shift = layer * 5 + which * 3 + head * 7;
        (0..self.dim).map(move |at| {
            let from = state[(at * 3 + shift) % state.len()];
            (from * 1.9 + (position as f32 * 0.13 + shift as f32).cos() * 0.3 + at as f32 * 0.2).sin()
        })
    }

    /// Queries `[tokens, heads, dim]`, keys and values `[kvHeads, tokens, dim]` of a layer.
    pub fn project(&self, states: &[State], layer: usize, positions: &[u32]) -> [Vec<f32>; 3] {
        let tokens = || states.iter().zip(positions);
        let queries = tokens().flat_map(|(state, &position)| {
            (0..self.heads()).flat_map(move |head| self.row(state, (layer, position), 0, head))
        });
        let rows = |which: usize| {
            let heads = 0..self.kv_heads;
            heads.flat_map(move |head| {
                tokens().flat_map(move |(state, &position)| self.row(state, (layer, position), which, head))
            })
        };
        [queries.collect(), rows(1).collect(), rows(2).collect()]
    }

    /// What attention found goes into the state.
    pub fn absorb(states: &mut [State], out: &[f32]) {
        for (to, from) in states.iter_mut().flatten().zip(out) {
            *to = (*to + 2.0 * from).sin();
        }
    }

    pub fn choose(state: &[f32]) -> u32 {
        let score = |token: u32| -> f32 {
            state.iter().enumerate().map(|(at, of)| of * ((token * 17 + at as u32 * 29) as f32).sin()).sum()
        };
        (0..VOCABULARY).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap_or(0)
    }

    pub fn tensor(&self, values: &[f32], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(self.dtype.candle()).unwrap()
    }

    fn model(&self) -> ModelDescription {
        let full = LayerDescription::full(self.kv_heads as u32, self.dim as u32);
        ModelDescription::new(self.kinds.iter().map(|&kind| full.with_kind(kind)).collect()).unwrap()
    }

    /// An empty cache of it: of alike layers where all are full ones, if `is_plain`.
    pub fn cache(&self, is_plain: bool, blocks: u32) -> PagedKvCache {
        if is_plain && self.kinds.iter().all(|kind| *kind == LayerKind::Full) {
            let options = PagedKvCacheOptions {
                capacity: blocks,
                block_size: self.block_size,
                num_layers: self.kinds.len() as u32,
                num_kv_heads: self.kv_heads as u32,
                head_dim: self.dim as u32,
                dtype: self.dtype,
                ..Default::default()
            };
            return PagedKvCache::new(options).unwrap();
        }
        let model = self.model();
        let room = PoolRoom::Blocks(vec![blocks; model.groups().len()]);
        let options = PagedModelOptions::new(model, room);
        PagedKvCache::of_model(PagedModelOptions { dtype: self.dtype, block_size: self.block_size, ..options }).unwrap()
    }

    /// One step of the model as it is: the next token of each sequence, and all outputs.
    pub fn step(&self, cache: &mut PagedKvCache, sequences: &[u64], tokens: &[u32]) -> Result<(Vec<u32>, Vec<f32>)> {
        let positions: Vec<u32> = sequences.iter().map(|&sequence| cache.sequence_length(sequence)).collect();
        let mut states: Vec<State> = tokens.iter().map(|&token| self.embed(token)).collect();
        let mut outputs = Vec::new();
        let mut step = cache.begin_step(StepTokens { sequences, ..Default::default() })?;
        for layer in 0..self.kinds.len() {
            let [q, k, v] = self.tensors(&self.project(&states, layer, &positions), sequences.len());
            if self.is_own(layer) {
                cache.write_layer(&mut step, layer as u32, &k, &v)?;
            }
            let out = cache.attend_layer(&step, layer as u32, &q, &Default::default())?.out.to_f32()?;
            Toy::absorb(&mut states, &out);
            outputs.extend(out);
        }
        cache.commit_step(&mut step, None)?;
        Ok((states.iter().map(|state| Toy::choose(state)).collect(), outputs))
    }

    pub fn tensors(&self, rows: &[Vec<f32>; 3], tokens: usize) -> [Tensor; 3] {
        let keys = [self.kv_heads, tokens, self.dim];
        let shapes = [[tokens, self.heads(), self.dim], keys, keys];
        [0, 1, 2].map(|at| self.tensor(&rows[at], &shapes[at]))
    }
}

/// K and V of a layer of a sequence.
pub fn content(cache: &mut PagedKvCache, sequence: u64, layer: u32) -> Vec<f32> {
    let kv = cache.gather(sequence, layer).unwrap();
    [kv.k, kv.v].iter().flat_map(|view| view.to_f32().unwrap()).collect()
}
