//! Failing launches of a cache with all layers of a model.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom, Result, StepTokens, Tokens};

use crate::surviving::{Shown, Subject, rows};

const HEADS: usize = 1;
const DIM: usize = 8;
const LAYERS: usize = 3;

fn made() -> PagedKvCache {
    let full = LayerDescription::full(HEADS as u32, DIM as u32);
    let sliding = full.with_kind(LayerKind::Sliding { window: 4, sinks: 1 });
    let model = ModelDescription::new(vec![full, sliding, full]).unwrap();
    let options = PagedModelOptions::new(model, PoolRoom::Blocks(vec![16; 2]));
    let mut cache = PagedKvCache::of_model(PagedModelOptions { block_size: 4, ..options }).unwrap();
    cache.create_sequence().unwrap();
    append(&mut cache, 6, 1).unwrap();
    cache
}

fn append(cache: &mut PagedKvCache, tokens: usize, seed: usize) -> Result<()> {
    let of = StepTokens { sequences: &[0], offsets: Some(&[0, tokens as u32]), parents: None };
    let rows: Vec<_> = (0..2 * LAYERS).map(|at| rows(1, HEADS, tokens, DIM, 10 * seed + at)).collect();
    let layers: Vec<[Source<'_>; 2]> = rows.chunks(2).map(|kv| [(&kv[0]).into(), (&kv[1]).into()]).collect();
    cache.append_layers(of, &layers, None)
}

fn step(cache: &mut PagedKvCache) -> Result<()> {
    let mut step = cache.begin_step(StepTokens { sequences: &[0], offsets: Some(&[0, 2]), parents: None })?;
    for layer in 0..LAYERS as u32 {
        let [k, v] = [0, 1].map(|part| rows(1, HEADS, 2, DIM, 70 + 2 * layer as usize + part));
        cache.write_layer(&mut step, layer, &k, &v)?;
        let q = rows(1, 2, HEADS, DIM, 5).squeeze(0)?;
        cache.attend_layer(&step, layer, &q, &Default::default())?;
    }
    cache.commit_step(&mut step, None)
}

fn draft(
    cache: &mut PagedKvCache,
    end: impl FnOnce(&mut PagedKvCache, kvtide_core::TransactionId) -> Result<()>,
) -> Result<()> {
    let id = cache.begin(0, None, Default::default())?;
    let rows: Vec<_> = (0..2 * LAYERS).map(|at| rows(1, HEADS, 3, DIM, 40 + at)).collect();
    let layers: Vec<[Source<'_>; 2]> = rows.chunks(2).map(|kv| [(&kv[0]).into(), (&kv[1]).into()]).collect();
    let parents = Some(&[-1, -1, 1][..]);
    let tokens = Tokens { parents, ..Tokens::of_layers(&layers) };
    let ended = cache.append_to(0, Some(id), tokens).and_then(|()| end(cache, id));
    cache.rollback(0, id);
    ended
}

const MODEL: Subject<PagedKvCache> = Subject {
    make: made,
    read: |cache| {
        let mut shown = Shown::new();
        for layer in 0..LAYERS as u32 {
            let kv = cache.kv(0, layer)?;
            shown.extend([kv.k.to_bytes()?, kv.v.to_bytes()?]);
        }
        Ok(shown)
    },
    check: PagedKvCache::check_invariants,
    later: &[
        |cache| append(cache, 1, 9),
        |cache| step(cache),
        |cache| cache.truncate(0, 5),
        |cache| cache.snapshot(0).map(drop),
        |cache| cache.begin(0, None, Default::default()).map(drop),
    ],
};

#[test]
fn models_survive() {
    for tokens in [1, 3, 9] {
        MODEL.survives(&format!("append {tokens}"), |cache| append(cache, tokens, 2));
    }
    MODEL.survives("a step", step);
    MODEL.survives("a draft", |cache| draft(cache, |cache, id| cache.commit(0, id, Some(1))));
    MODEL.survives("a path", |cache| draft(cache, |cache, id| cache.commit_path(0, id, &[1, 2])));
}
