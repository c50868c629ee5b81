//! Measures a decode step of several sequences that begin with the same prompt, whose pages are read once for all of
//! them.
//!
//! It is compared with the same step one sequence at a time, with a step of as many sequences that share nothing, with
//! one read of the prompt, and with the multiply-adds. Each format has a workload of its own.

use std::cell::RefCell;
use std::rc::Rc;

use candle_core::Tensor;
use kvtide_bench::{Lane, Result, Role};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions};

use super::super::Outcome;
use super::layers::{layers_beyond_caches, noise};
use super::limits::{computing, summing};
use crate::large::filled;
use crate::tokens::{HEAD_DIM, HEADS};

const BLOCK: usize = 16;
/// The number of tokens that belong to one sequence alone.
const OWN: usize = BLOCK;
const SEQUENCES: usize = 8;

/// The form of pages, and the number of query heads that share a head of K and V.
#[derive(Clone, Copy)]
pub struct Kind {
    pub dtype: DType,
    pub format: Option<PageFormat>,
    pub group: usize,
}

/// Sequences over one prompt, or over one each.
struct Batch {
    cache: PagedKvCache,
    sequences: Vec<u64>,
    layers: u32,
    q: Tensor,
}

impl Batch {
    fn new(kind: Kind, layers: usize, keys: usize, shares: bool) -> Result<Self> {
        let prompts = if shares { 1 } else { SEQUENCES };
        let mut cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: (prompts * keys.div_ceil(BLOCK) + SEQUENCES * (OWN / BLOCK + 1)) as u32,
            block_size: BLOCK as u32,
            num_layers: layers as u32,
            num_kv_heads: HEADS as u32,
            head_dim: HEAD_DIM as u32,
            dtype: kind.dtype,
            key_format: kind.format,
            value_format: kind.format,
            ..Default::default()
        })?;
        let rows = |count, seed| noise(&[HEADS, count, HEAD_DIM], kind.dtype, seed);
        let (prompt, own) = ([rows(keys, 3)?, rows(keys, 5)?], [rows(OWN, 7)?, rows(OWN, 9)?]);
        let write = |cache: &mut PagedKvCache, sequence, from: usize, [k, v]: &[Tensor; 2]| -> Result<()> {
            (0..layers as u32).try_for_each(|layer| Ok(cache.write_tokens(sequence, layer, from as u32, k, v)?))
        };
        let mut sequences = Vec::new();
        for index in 0..SEQUENCES {
            let sequence = if shares && index > 0 { cache.fork(sequences[0])? } else { cache.create_sequence()? };
            if !shares || index == 0 {
                write(&mut cache, sequence, 0, &prompt)?;
            }
            sequences.push(sequence);
        }
        for &sequence in &sequences {
            write(&mut cache, sequence, keys, &own)?;
        }
        let q = noise(&[SEQUENCES, HEADS * kind.group, HEAD_DIM], kind.dtype, 11)?;
        Ok(Batch { cache, sequences, layers: layers as u32, q })
    }

    /// Runs one step, with `together` sequences per call.
    fn step(&mut self, together: usize, threads: usize) -> Result<()> {
        let options = AttendOptions { threads: Some(threads), ..Default::default() };
        for layer in 0..self.layers {
            for (index, sequences) in self.sequences.chunks(together).enumerate() {
                let pages = self.cache.pages(layer, sequences)?;
                let q = self.q.narrow(0, index * together, sequences.len())?;
                std::hint::black_box(attend(&q, &pages, &options)?);
            }
        }
        Ok(())
    }
}

pub fn run(kind: Kind, keys: usize, layers: Option<usize>, rounds: usize) -> Result<Outcome> {
    let prompt_bytes = {
        let small = Batch::new(kind, 1, BLOCK, true)?;
        (small.cache.bytes_per_token() * keys as f64) as usize
    };
    let layers = layers.unwrap_or_else(|| layers_beyond_caches(prompt_bytes));
    let shared = Rc::new(RefCell::new(Batch::new(kind, layers, keys, true)?));
    // Their prompts alone exceed the processor's caches.
    let apart = Rc::new(RefCell::new(Batch::new(kind, layers.div_ceil(SEQUENCES), keys, false)?));
    let lane = |name: &str, batch: &Rc<RefCell<Batch>>, together: usize, threads: usize| {
        let (batch, layers) = (batch.clone(), batch.borrow().layers);
        Lane::timed(Role::Ours, name, layers, move |stopwatch| {
            stopwatch.time_on(threads, || batch.borrow_mut().step(together, threads))
        })
    };
    let memory: Rc<Vec<u8>> = Rc::new(filled(prompt_bytes * layers, 0));
    let products = 2 * (SEQUENCES * HEADS * kind.group * HEAD_DIM) as u64 * (keys + OWN) as u64;
    let mut lanes = Vec::new();
    for threads in [1, 2] {
        let of = |what: &str| if threads == 1 { what.to_owned() } else { format!("{what}, {threads} threads") };
        lanes.push(lane(&of("kvtide"), &shared, SEQUENCES, threads));
        lanes.push(lane(&of("one sequence at a time"), &shared, 1, threads));
        lanes.push(lane(&of("sequences that share nothing"), &apart, SEQUENCES, threads));
        lanes.push(summing(&of("sum of the same bytes"), memory.clone(), layers as u32, threads));
    }
    lanes.push(computing(products, 4));
    let format = kind.format.map_or_else(|| kind.dtype.to_string(), |format| format.to_string());
    let heads = HEADS * kind.group;
    let title = format!(
        "attention, {SEQUENCES} sequences over one prompt of {keys} keys of {HEADS}, 1 query of {heads} heads each, {format}"
    );
    Outcome::of(title, "layer", lanes, rounds)
}
