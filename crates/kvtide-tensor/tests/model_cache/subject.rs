//! A cache of either kind, and what tests feed it.

use candle_core::Device;
use kvtide_core::Code;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::{
    ContiguousOptions, DType, Error, HostTensor, ModelCache, ModelCacheKind, ModelCacheOptions, ModelStep,
    PagedOptions, PoolRoom, StepTokens,
};

use crate::model::{Id, rows, source};

/// How a cache keeps its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tensors,
    /// In tensors, layers that slide as well: their window is a rule of attention alone.
    KeepAll,
    /// So many tokens a block, so many blocks in each group.
    Blocks(u32, u32),
}

pub const KINDS: [Kind; 3] = [Kind::Tensors, Kind::Blocks(4, 32), Kind::Blocks(1, 64)];

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

pub fn options(model: ModelDescription, kind: Kind) -> ModelCacheOptions {
    let groups = model.groups().len();
    let devices = model.groups().iter().map(|group| group.device as usize + 1).max().unwrap_or(1);
    let kind = match kind {
        Kind::Tensors | Kind::KeepAll => ModelCacheKind::Contiguous(ContiguousOptions {
            initial_capacity: 2,
            keep_all: kind == Kind::KeepAll,
            ..Default::default()
        }),
        Kind::Blocks(block_size, blocks) => ModelCacheKind::Paged(PagedOptions {
            block_size,
            room: PoolRoom::Blocks(vec![blocks; groups]),
            ..Default::default()
        }),
    };
    ModelCacheOptions { devices: vec![Device::Cpu; devices], ..ModelCacheOptions::new(model, kind) }
}

pub fn cache(model: ModelDescription, kind: Kind) -> ModelCache {
    ModelCache::new(options(model, kind)).expect("a cache")
}

/// The layers with keys and values of their own.
pub fn own_layers(cache: &ModelCache) -> Vec<u32> {
    (0..cache.model().layers().len() as u32).filter(|&layer| source(cache.model(), layer) == layer).collect()
}

/// Runs `work` on K and V of a layer.
pub fn with_rows<T>(
    cache: &mut ModelCache,
    layer: u32,
    ids: &[Id],
    work: impl FnOnce(&mut ModelCache, HostTensor<'_>, HostTensor<'_>) -> T,
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

pub fn write(cache: &mut ModelCache, step: &mut ModelStep, layer: u32, ids: &[Id]) -> Result<(), Error> {
    with_rows(cache, layer, ids, |cache, k, v| cache.write_layer(step, layer, k, v))
}

/// A step of one sequence, written whole.
pub fn written(cache: &mut ModelCache, sequence: u64, ids: &[Id], parents: Option<&[i32]>) -> Result<ModelStep, Error> {
    let offsets = [0, ids.len() as u32];
    let mut step = cache.begin_step(StepTokens { sequences: &[sequence], offsets: Some(&offsets), parents })?;
    for layer in own_layers(cache) {
        write(cache, &mut step, layer, ids)?;
    }
    Ok(step)
}

pub fn append(cache: &mut ModelCache, sequence: u64, ids: &[Id]) -> Result<(), Error> {
    let mut step = written(cache, sequence, ids, None)?;
    cache.commit_step(&mut step, None)
}

pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// All that can be seen of a cache.
pub fn everything(cache: &mut ModelCache) -> String {
    cache.check_invariants().expect("what must hold");
    let mut all = String::new();
    for id in cache.sequence_ids() {
        all += &format!("{id}: {} {}\n", cache.sequence_length(id), cache.committed_length(id));
        for layer in 0..cache.model().layers().len() as u32 {
            let kv = cache.kv(id, layer).expect("what a layer holds");
            let shown = kv.map(|kv| (kv.k.shape().to_vec(), kv.k.to_f32().unwrap(), kv.v.to_f32().unwrap()));
            all += &format!("{shown:?}\n");
        }
    }
    let pools: Vec<_> = cache.pool_stats().expect("stats").into_iter().map(|of| (of.free, of.active)).collect();
    all + &format!("{pools:?}")
}
