//! Caches of models, and inputs for them.

use candle_core::Device;
use kvtide_core::Code;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::{DType, Error, HostTensor, PagedKvCache, PagedModelOptions, PagedStep, PoolRoom, StepTokens};

use crate::model::{Id, rows, source};

/// So many tokens a block, so many blocks in each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks(pub u32, pub u32);

pub const KINDS: [Blocks; 2] = [Blocks(4, 32), Blocks(1, 64)];

pub fn code<T>(done: Result<T, Error>) -> Result<(), Code> {
    done.map(|_| ()).map_err(|error| error.code())
}

/// Full, sliding with sinks, and layers that read others; two sizes.
pub fn mixed() -> ModelDescription {
    let (small, large) = (LayerDescription::full(2, 4), LayerDescription::full(1, 6));
    let sliding = LayerKind::Sliding { window: 4, sinks: 2 };
    ModelDescription::new(vec![
        small,
        large.with_kind(sliding),
        small.with_kind(LayerKind::SharedWith(0)),
        large,
        large.with_kind(LayerKind::SharedWith(1)),
        small,
    ])
    .expect("layers that fit")
}

pub fn options(model: ModelDescription, Blocks(block_size, blocks): Blocks) -> PagedModelOptions {
    let groups = model.groups().len();
    let devices = model.groups().iter().map(|group| group.device as usize + 1).max().unwrap_or(1);
    let made = PagedModelOptions::new(model, PoolRoom::Blocks(vec![blocks; groups]));
    PagedModelOptions { block_size, devices: vec![Device::Cpu; devices], ..made }
}

pub fn cache(model: ModelDescription, kind: Blocks) -> PagedKvCache {
    PagedKvCache::of_model(options(model, kind)).expect("a cache")
}

/// The layers with keys and values of their own.
pub fn own_layers(cache: &PagedKvCache) -> Vec<u32> {
    (0..cache.model().layers().len() as u32).filter(|&layer| source(cache.model(), layer) == layer).collect()
}

/// Runs `work` on K and V of a layer.
pub fn with_rows<T>(
    cache: &mut PagedKvCache,
    layer: u32,
    ids: &[Id],
    work: impl FnOnce(&mut PagedKvCache, HostTensor<'_>, HostTensor<'_>) -> T,
) -> T {
    let of = cache.model().layers()[layer as usize];
    let bytes = [0, 1].map(|part| floats(&rows(&of, layer, part, ids)));
    let host = |part: usize| {
        let dim = if part == 0 { of.head_dim } else { of.value_head_dim };
        let shape = [of.num_kv_heads as usize, ids.len(), dim as usize];
        HostTensor::new("k", &bytes[part], DType::F32, &shape).expect("as many bytes")
    };
    work(cache, host(0), host(1))
}

pub fn write(cache: &mut PagedKvCache, step: &mut PagedStep, layer: u32, ids: &[Id]) -> Result<(), Error> {
    with_rows(cache, layer, ids, |cache, k, v| cache.write_layer(step, layer, k, v))
}

/// A step of one sequence, written whole.
pub fn written(
    cache: &mut PagedKvCache,
    sequence: u64,
    ids: &[Id],
    parents: Option<&[i32]>,
) -> Result<PagedStep, Error> {
    let offsets = [0, ids.len() as u32];
    let mut step = cache.begin_step(StepTokens { sequences: &[sequence], offsets: Some(&offsets), parents })?;
    for layer in own_layers(cache) {
        write(cache, &mut step, layer, ids)?;
    }
    Ok(step)
}

pub fn append(cache: &mut PagedKvCache, sequence: u64, ids: &[Id]) -> Result<(), Error> {
    let mut step = written(cache, sequence, ids, None)?;
    cache.commit_step(&mut step, None)
}

pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// All that can be seen of a cache.
pub fn everything(cache: &mut PagedKvCache) -> String {
    cache.check_invariants().expect("what must hold");
    let mut all = String::new();
    for id in cache.sequence_ids() {
        all += &format!("{id}: {} {}\n", cache.sequence_length(id), cache.committed_length(id));
        for layer in 0..cache.model().layers().len() as u32 {
            let kv = cache.kv(id, layer).expect("what a layer holds");
            let shown = (kv.k.shape().to_vec(), kv.k.to_f32().unwrap(), kv.v.to_f32().unwrap());
            all += &format!("{shown:?}\n");
        }
    }
    let pools: Vec<_> = cache.pools().expect("stats").into_iter().map(|of| (of.free, of.active)).collect();
    all + &format!("{pools:?}")
}
