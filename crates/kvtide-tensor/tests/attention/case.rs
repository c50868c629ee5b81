//! One attention call on tensors of random numbers, compared with the reference.

use kvtide_tensor::attention::{AttendOptions, KvRows, attend};
use kvtide_tensor::buffers::{SequenceLayout, Source};
use kvtide_tensor::runtime::{Budget, Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions, View};

use crate::numbers::{Column, Numbers, distance, extremes, larger, products_pass, to_bytes, to_f64};
use crate::oracle::{Naive, ancestors, slopes};

/// The parameters of a call.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    /// Queries and keys of each sequence.
    pub sequences: Vec<(usize, usize)>,
    pub ragged: bool,
    /// Keys and values of ragged sequences in pages of so many tokens.
    pub paged: Option<u32>,
    /// Keys and values as `[batch, tokens, heads, dim]`.
    pub bshd: bool,
    pub kv_heads: usize,
    pub group: usize,
    pub dim: usize,
    pub value_dim: usize,
    pub dtype: DType,
    pub causal: bool,
    pub window: Option<u32>,
    pub sinks: u32,
    pub sink_logits: bool,
    pub slopes: bool,
    pub softcap: Option<f32>,
    pub scale: Option<f32>,
    /// The axes of the mask that are whole, of four.
    pub mask: Option<[bool; 4]>,
    pub starts: Option<Vec<i32>>,
    pub positions: Option<Vec<i32>>,
    pub tree: Option<Vec<i32>>,
    /// A tree for each sequence, of any number of nodes.
    pub trees: Option<Vec<Vec<i32>>>,
    /// Some of its numbers are the largest there are, infinities or NaN.
    pub extreme: bool,
}

/// The largest differences of outputs and of log-sum-exps.
#[derive(Debug)]
pub struct Off {
    pub out: f64,
    pub lse: f64,
}

/// One row of the output by the reference.
struct Row {
    /// Its index in the output, and that of its log-sum-exp.
    places: [usize; 2],
    out: Vec<f64>,
    lse: f64,
    /// The average magnitude of the terms of each element.
    sizes: Vec<f64>,
    /// A product of its query and a key is beyond 32-bit floats.
    over: bool,
}

/// The numbers of a case, and its output by the reference.
pub struct Expected {
    data: Data,
    rows: Vec<Row>,
}

struct Data {
    q: Vec<u8>,
    k: Vec<u8>,
    v: Vec<u8>,
    mask: Vec<f32>,
    sink_logits: Vec<f32>,
    slopes: Vec<f32>,
}

impl Case {
    fn query_heads(&self) -> usize {
        self.kv_heads * self.group
    }

    fn tokens(&self) -> (usize, usize) {
        self.sequences.iter().fold((0, 0), |(queries, keys), of| (queries + of.0, keys + of.1))
    }

    fn mask_shape(&self) -> [usize; 4] {
        let (queries, keys) = self.sequences[0];
        let full = [self.sequences.len(), self.query_heads(), queries, keys];
        let whole = self.mask.unwrap_or([false; 4]);
        std::array::from_fn(|axis| if whole[axis] { full[axis] } else { 1 })
    }

    fn data(&self) -> Data {
        let mut numbers = Numbers::new(self.seed);
        let (queries, keys) = self.tokens();
        let [of_scores, of_values] = extremes(self.dtype);
        let mut take = |count: usize, column: Option<Column>, extremes: &[f32]| {
            let mut taken = numbers.take(count);
            if self.extreme {
                numbers.sprinkle(&mut taken, column, extremes);
            }
            to_bytes(self.dtype, &taken)
        };
        let column = Some(Column { index: self.seed as usize % self.dim, of: self.dim });
        let q = take(queries * self.query_heads() * self.dim, column, of_scores);
        let k = take(keys * self.kv_heads * self.dim, column, of_scores);
        let v = take(keys * self.kv_heads * self.value_dim, None, of_values);
        let lowest = if self.extreme { f32::MIN } else { -3.0 };
        let hide = |number: f32| match number {
            0.4.. => f32::NEG_INFINITY,
            ..-0.9 => lowest,
            number => 3.0 * number,
        };
        let mask = numbers.take(self.mask_shape().iter().product()).into_iter().map(hide).collect();
        let mut sink_logits = numbers.take(self.query_heads());
        if self.extreme {
            numbers.sprinkle(&mut sink_logits, None, &[3e38, -3e38, f32::NEG_INFINITY]);
        }
        let longest = self.sequences.iter().map(|of| of.1).max().unwrap_or(0);
        Data { q, k, v, mask, sink_logits, slopes: slopes(self.query_heads(), longest) }
    }

    /// Runs it with this form of the kernels, and compares.
    pub fn run(&self, expected: &Expected, kernels: Kernels, threads: usize) -> Off {
        let data = &expected.data;
        let mask_bytes: Vec<u8> = data.mask.iter().flat_map(|float| float.to_ne_bytes()).collect();
        let mask = || HostTensor::new("mask", &mask_bytes, DType::F32, &self.mask_shape()).unwrap();
        let (query_offsets, key_offsets) = self.offsets();
        let (joined, tree_offsets) = self.joined_trees();
        let options = AttendOptions {
            scale: self.scale,
            causal: self.causal,
            window: self.window,
            sinks: self.sinks,
            sink_logits: self.sink_logits.then_some(&data.sink_logits[..]),
            alibi_slopes: self.slopes.then_some(&data.slopes[..]),
            softcap: self.softcap,
            mask: self.mask.map(|_| mask()),
            tree: self.trees.as_ref().map(|_| &joined[..]).or(self.tree.as_deref()),
            tree_offsets: self.trees.as_ref().map(|_| &tree_offsets[..]),
            starts: self.starts.as_deref(),
            positions: self.positions.as_deref(),
            query_offsets: self.ragged.then_some(&query_offsets[..]),
            lse: true,
            threads: Some(threads),
            stop: None,
        };
        let q = self.host("q", &data.q, self.query_heads(), self.dim, true);
        // In memory of a device, the result stays there.
        let there = View::from_host(&q, &Budget::process()).unwrap();
        let q = if self.seed.is_multiple_of(2) { Source::Host(q) } else { Source::View(&there) };
        let k = self.host("k", &data.k, self.kv_heads, self.dim, false);
        let v = self.host("v", &data.v, self.kv_heads, self.value_dim, false);
        let mut paged = self.paged.map(|block_size| self.cache(block_size, data));
        let pages = paged.as_mut().map(|(cache, ids)| cache.pages(0, ids).unwrap());
        let rows = match (&pages, self.ragged) {
            (Some(pages), _) => pages.into(),
            (None, true) => KvRows::Ragged { k: k.into(), v: v.into(), offsets: &key_offsets },
            (None, false) => KvRows::Batched { k: k.into(), v: v.into() },
        };
        let attended = with_kernels(kernels, || attend(q, rows, &options)).unwrap().unwrap();
        let out = to_f64(self.dtype, &attended.out.to_bytes().unwrap());
        self.compare(expected, &out, &attended.lse, kernels)
    }

    /// A cache that holds the keys and values, and its sequences.
    fn cache(&self, block_size: u32, data: &Data) -> (PagedKvCache, Vec<u64>) {
        let blocks = |of: &(usize, usize)| (of.1 as u32).div_ceil(block_size);
        let mut cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: self.sequences.iter().map(blocks).sum::<u32>() + 1,
            block_size,
            num_kv_heads: self.kv_heads as u32,
            head_dim: self.dim as u32,
            value_head_dim: Some(self.value_dim as u32),
            dtype: self.dtype,
            ..Default::default()
        })
        .unwrap();
        let (_, offsets) = self.offsets();
        let mut ids = Vec::new();
        for (index, &(_, tokens)) in self.sequences.iter().enumerate() {
            let rows = |bytes, dim| {
                let all = HostTensor::new("rows", bytes, self.dtype, &[self.tokens().1, self.kv_heads, dim]).unwrap();
                let all = all.with_layout("rows", SequenceLayout::Bshd).unwrap();
                all.with_range(offsets[index] as usize, offsets[index + 1] as usize)
            };
            let id = cache.create_sequence().unwrap();
            if tokens > 0 {
                cache.write_tokens(id, 0, 0, rows(&data.k, self.dim), rows(&data.v, self.value_dim)).unwrap();
            }
            ids.push(id);
        }
        (cache, ids)
    }

    fn host<'a>(&self, name: &'static str, bytes: &'a [u8], heads: usize, dim: usize, queries: bool) -> HostTensor<'a> {
        let (all_queries, all_keys) = self.tokens();
        if self.ragged {
            let tokens = if queries { all_queries } else { all_keys };
            return HostTensor::new(name, bytes, self.dtype, &[tokens, heads, dim]).unwrap();
        }
        let tokens = if queries { self.sequences[0].0 } else { self.sequences[0].1 };
        if self.bshd {
            let host = HostTensor::new(name, bytes, self.dtype, &[self.sequences.len(), tokens, heads, dim]).unwrap();
            return host.with_layout(name, SequenceLayout::Bshd).unwrap();
        }
        HostTensor::new(name, bytes, self.dtype, &[self.sequences.len(), heads, tokens, dim]).unwrap()
    }

    fn offsets(&self) -> (Vec<i32>, Vec<i32>) {
        let (mut queries, mut keys) = (vec![0], vec![0]);
        for of in &self.sequences {
            queries.push(queries[queries.len() - 1] + of.0 as i32);
            keys.push(keys[keys.len() - 1] + of.1 as i32);
        }
        (queries, keys)
    }

    /// The element where a row begins, in data as `host` lays it out.
    fn row(&self, sequence: usize, head: usize, token: usize, heads: usize, queries: bool) -> usize {
        let pick = |of: &(usize, usize)| if queries { of.0 } else { of.1 };
        let before: usize = self.sequences[..sequence].iter().map(pick).sum();
        match self.ragged || self.bshd {
            true => (before + token) * heads + head,
            false => (before * heads) + head * pick(&self.sequences[sequence]) + token,
        }
    }

    fn compare(&self, expected: &Expected, out: &[f64], lse: &[f32], kernels: Kernels) -> Off {
        let mut off = Off { out: 0.0, lse: 0.0 };
        // Kernels of a device work in 32-bit floats alone: of numbers that pass them nothing more comes.
        let alone = self.extreme && kernels.to_string() == "emulated";
        for row in &expected.rows {
            let passes = |found: f64| alone && (row.over || !found.is_finite());
            let [place, token] = row.places;
            for ((a, b), size) in out[place * self.value_dim..].iter().zip(&row.out).zip(&row.sizes) {
                if !passes(*a) {
                    off.out = larger(off.out, distance(*a, *b) / size.max(1.0));
                }
            }
            let found = f64::from(lse[token]);
            if !passes(found) {
                off.lse = larger(off.lse, distance(found, row.lse) / row.lse.abs().max(1.0));
            }
        }
        off
    }

    /// Computes the output of each row by the reference.
    pub fn expected(&self) -> Expected {
        let data = self.data();
        let [q, k, v] = [&data.q, &data.k, &data.v].map(|bytes| to_f64(self.dtype, bytes));
        let mut rows = Vec::new();
        let mut token = 0;
        for (sequence, &(queries, keys)) in self.sequences.iter().enumerate() {
            let positions: Vec<i64> = (0..keys as i64).collect();
            let slice = |data: &[f64], row: usize, dim: usize| data[row * dim..(row + 1) * dim].to_vec();
            let shape = self.mask_shape();
            let mask = |head: usize, query: usize, key: usize| {
                let index = [sequence, head, query, key];
                let at = (0..4).fold(0, |at, axis| at * shape[axis] + if shape[axis] == 1 { 0 } else { index[axis] });
                if self.mask.is_some() { f64::from(data.mask[at]) } else { 0.0 }
            };
            let naive = Naive {
                positions: &positions,
                kv_heads: self.kv_heads,
                query_heads: self.query_heads(),
                key: &|head, token| slice(&k, self.row(sequence, head, token, self.kv_heads, false), self.dim),
                value: &|head, token| match keys {
                    0 => vec![0.0; self.value_dim],
                    _ => slice(&v, self.row(sequence, head, token, self.kv_heads, false), self.value_dim),
                },
                scale: f64::from(self.scale.unwrap_or(1.0 / (self.dim as f32).sqrt())),
                causal: self.causal,
                window: self.window.map(i64::from),
                sinks: self.sinks.into(),
                start: self.starts.as_ref().map_or(i64::MIN, |starts| starts[sequence].into()),
                softcap: self.softcap.map(f64::from),
                sink_logits: self.sink_logits.then_some(&data.sink_logits[..]),
                slopes: self.slopes.then_some(&data.slopes[..]),
                mask: &mask,
                parents: self.parents(sequence),
                first_node: self.parents(sequence).map_or(0, |parents| parents.len() as i64 - queries as i64),
            };
            for query in 0..queries {
                for head in 0..self.query_heads() {
                    let row = slice(&q, self.row(sequence, head, query, self.query_heads(), true), self.dim);
                    let position = self.position((sequence, token), query, queries, keys);
                    let (out, lse, sizes) = naive.attend(&row, query, position, head);
                    let rounded: Vec<f32> = out.iter().map(|&of| of as f32).collect();
                    let out = to_f64(self.dtype, &to_bytes(self.dtype, &rounded));
                    let flat = token * self.query_heads() + head;
                    // Results are never in the order of `bshd`, whatever the keys are in.
                    let place = match self.ragged {
                        true => flat,
                        false => (sequence * self.query_heads() + head) * queries + query,
                    };
                    let over =
                        self.extreme && products_pass(&row, (0..keys).map(|key| (naive.key)(head / self.group, key)));
                    rows.push(Row { places: [place, flat], out, lse, sizes, over });
                }
                token += 1;
            }
        }
        Expected { data, rows }
    }

    fn position(&self, (sequence, token): (usize, usize), query: usize, queries: usize, keys: usize) -> i64 {
        match (&self.positions, self.parents(sequence)) {
            (Some(positions), _) => positions[if positions.len() == queries { query } else { token }].into(),
            (None, Some(parents)) if parents.len() + query >= queries => {
                let node = parents.len() + query - queries;
                (keys - parents.len()) as i64 + ancestors(parents, node).len() as i64 - 1
            }
            (None, _) => keys as i64 - queries as i64 + query as i64,
        }
    }

    /// The tree of a sequence.
    fn parents(&self, sequence: usize) -> Option<&[i32]> {
        self.trees.as_ref().map(|trees| &trees[sequence][..]).or(self.tree.as_deref())
    }

    /// The trees of all sequences one behind the other, and where each begins.
    fn joined_trees(&self) -> (Vec<i32>, Vec<i32>) {
        let (mut joined, mut offsets) = (Vec::new(), vec![0]);
        for tree in self.trees.iter().flatten() {
            joined.extend(tree);
            offsets.push(joined.len() as i32);
        }
        (joined, offsets)
    }
}
