//! Failing launches of paged sequences, unquantised and low-bit.

use kvtide_core::paged::PageFormat;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::{KvTransaction, PagedKvCache, PagedKvCacheOptions, Result, StepTokens, Transactional};

use crate::surviving::{Shown, Subject, rows};

const LAYERS: usize = 2;
const HEADS: usize = 2;
const DIM: usize = 8;

fn layers(tokens: usize, seed: usize) -> [candle_core::Tensor; 2] {
    [0, 1].map(|part| rows(LAYERS, HEADS, tokens, DIM, 2 * seed + part))
}

fn append(cache: &mut PagedKvCache, tokens: usize, seed: usize) -> Result<()> {
    let [k, v] = layers(tokens, seed);
    cache.append(&[0], &k, &v, Some(&[0, tokens as u32]))
}

/// Two sequences: one with six tokens in blocks of four, and one that shares them.
fn made(options: PagedKvCacheOptions) -> PagedKvCache {
    let options = PagedKvCacheOptions {
        capacity: 16,
        block_size: 4,
        num_layers: LAYERS as u32,
        num_kv_heads: HEADS as u32,
        head_dim: DIM as u32,
        ..options
    };
    let mut cache = PagedKvCache::new(options).unwrap();
    cache.create_sequence().unwrap();
    append(&mut cache, 6, 1).unwrap();
    cache.fork(0).unwrap();
    cache
}

const PLAIN: Subject<PagedKvCache> = Subject {
    make: || made(PagedKvCacheOptions::default()),
    read: |cache| {
        let mut shown = Shown::new();
        for (sequence, layer) in [0, 1].into_iter().flat_map(|sequence| [(sequence, 0), (sequence, 1)]) {
            let kv = cache.gather(sequence, layer)?;
            shown.extend([kv.k.to_bytes()?, kv.v.to_bytes()?]);
        }
        Ok(shown)
    },
    check: PagedKvCache::check_invariants,
    later: &[
        |cache| append(cache, 1, 9),
        |cache| cache.create_sequence().map(drop),
        |cache| cache.drop_sequence(0),
        |cache| cache.truncate(0, 1),
        |cache| cache.fork(0).map(drop),
        |cache| cache.snapshot(0).map(drop),
        |cache| cache.ensure_capacity(0, 9),
        |cache| cache.read_kv(0, 0, 0).map(drop),
        |cache| cache.pages(0, &[0]).map(drop),
        |cache| cache.begin_step(StepTokens { sequences: &[0], ..Default::default() }).map(drop),
        |cache| cache.sequence(0)?.begin(Default::default()).map(drop),
    ],
};

const LOW_BIT: Subject<PagedKvCache> = Subject {
    make: || {
        let formats = [Some(PageFormat::Q8), Some(PageFormat::Q4)];
        made(PagedKvCacheOptions {
            key_format: formats[0],
            value_format: formats[1],
            hadamard: true,
            value_hadamard: true,
            ..Default::default()
        })
    },
    ..PLAIN
};

fn step(cache: &mut PagedKvCache) -> Result<()> {
    let mut step = cache.begin_step(StepTokens { sequences: &[0, 1], offsets: Some(&[0, 3, 4]), parents: None })?;
    for layer in 0..LAYERS as u32 {
        let [k, v] = [0, 1].map(|part| rows(1, HEADS, 4, DIM, 30 + 2 * layer as usize + part));
        cache.write_layer(&mut step, layer, &k, &v)?;
        let q = rows(1, 4, HEADS, DIM, 3).squeeze(0).unwrap();
        let pages = cache.step_pages(&step, layer)?;
        attend(&q, &pages, &AttendOptions { query_offsets: Some(&[0, 3, 4]), ..Default::default() })?;
    }
    cache.commit_step(&mut step, None)
}

#[test]
fn blocks_survive() {
    for (form, subject) in [("rows", PLAIN), ("codes", LOW_BIT)] {
        let survives = |name: &str, call: &dyn Fn(&mut PagedKvCache) -> Result<()>| {
            subject.survives(&format!("{name}, {form}"), call)
        };
        // Into a block that is copied first, over its end, and over more.
        for tokens in [1, 2, 3, 9] {
            let _ = survives("append", &|cache| append(cache, tokens, 2));
        }
        survives("a token over another", &|cache| {
            let [k, v] = [7, 8].map(|seed| rows(1, HEADS, 1, DIM, seed));
            cache.write_kv(0, 1, 2, &k.flatten_all()?, &v.flatten_all()?)
        });
        survives("tokens of a layer over others", &|cache| {
            let [k, v] = [7, 8].map(|seed| rows(1, HEADS, 4, DIM, seed));
            cache.write_tokens(0, 1, 2, &k, &v)
        });
        let stepped = survives("a step", &step);
        // Without quantisation, only the copy of the shared block could do harm: rows that a step writes are not visible
        // until it marks them.
        assert!(form == "codes" || stepped.poisoned == 1, "{stepped:?}");
        survives("a draft", &|cache| {
            let mut sequence = cache.sequence(0)?;
            let mut draft = sequence.begin(Default::default())?;
            let [k, v] = layers(3, 4);
            draft.append(&k, &v, None)?;
            draft.commit(Some(2))
        });
        survives("a path", &|cache| {
            let mut sequence = cache.sequence(0)?;
            let mut draft = sequence.begin(Default::default())?;
            let [k, v] = layers(4, 4);
            draft.append(&k, &v, Some(&[-1, -1, 1, 1]))?;
            draft.commit_path(&[1, 3])
        });
        survives("a truncation and what follows it", &|cache| {
            let before = cache.snapshot(0)?;
            cache.truncate(0, 3)?;
            let appended = append(cache, 4, 6);
            // As it was, for the call to begin again.
            if appended.is_err() {
                let _ = cache.restore(0, &before);
            }
            appended
        });
    }
}

/// A read that fails has no effect.
#[test]
fn reads_of_blocks_survive() {
    for (form, subject) in [("rows", PLAIN), ("codes", LOW_BIT)] {
        let reads: [fn(&mut PagedKvCache) -> Result<()>; 4] = [
            |cache| cache.gather(0, 1).map(drop),
            |cache| cache.read_kv(0, 1, 3).map(drop),
            |cache| {
                let bytes = HEADS * 6 * DIM * 4;
                cache.gather_into(0, 1, &mut vec![0; bytes], &mut vec![0; bytes])
            },
            |cache| {
                let q = rows(1, 1, HEADS, DIM, 3).squeeze(0)?;
                attend(&q, &cache.pages(1, &[0])?, &AttendOptions::default()).map(drop)
            },
        ];
        for (place, read) in reads.into_iter().enumerate() {
            let name = format!("read {place}, {form}");
            // Not each of them takes part in something of the device.
            let mut cache = (subject.make)();
            let (_, fails) = crate::surviving::failing(0, || read(&mut cache));
            if fails {
                assert_eq!(subject.survives(&name, read).poisoned, 0, "{name}");
            }
        }
    }
}
