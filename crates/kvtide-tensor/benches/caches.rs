//! What single calls cost: `cargo bench -p kvtide-tensor`.
//!
//! For finding out what a change does to one call. What is compared with other caches stands in `bench/peers`, where both
//! sides take turns.

use candle_core::{DType as CandleType, Device, Tensor};
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{
    AttendOptions, DType, HostTensor, KvCache, KvCacheOptions, PagedKvCache, PagedKvCacheOptions, RollbackCache,
    RotatingCacheOptions, RotatingKvCache, View, attend,
};

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const TOKEN_BYTES: usize = HEADS * HEAD_DIM * size_of::<f32>();

fn main() {
    divan::main();
}

fn tokens(count: usize) -> Tensor {
    Tensor::zeros((1, HEADS, count, HEAD_DIM), CandleType::F32, &Device::Cpu).unwrap()
}

fn growable(capacity: usize) -> KvCache {
    KvCache::new(KvCacheOptions {
        num_kv_heads: HEADS as u32,
        head_dim: HEAD_DIM as u32,
        initial_capacity: capacity as u32,
        ..Default::default()
    })
    .unwrap()
}

fn full_window(window: usize, sinks: u32) -> RotatingKvCache {
    let options = RotatingCacheOptions { max_seq_len: window as u32, sinks, ..Default::default() };
    let mut cache = RotatingKvCache::new(options).unwrap();
    let full = tokens(window + sinks as usize);
    cache.append(&full, &full).unwrap();
    cache
}

/// One token into a cache that has room, over and over.
#[divan::bench]
fn kv_cache_update(bencher: Bencher<'_, '_>) {
    let (mut cache, step) = (growable(4096), tokens(1));
    bencher.bench_local(|| {
        if cache.seq_len() == 4096 {
            cache.reset().unwrap();
        }
        black_box(cache.update(&step, &step).unwrap());
    });
}

/// One token into a full window; once in a turn the window moves to the front.
#[divan::bench(args = [512, 4096], sample_count = 1000)]
fn rotating_kv_cache_append(bencher: Bencher<'_, '_>, window: usize) {
    let (mut cache, step) = (full_window(window, 0), tokens(1));
    bencher.bench_local(|| black_box(cache.append(&step, &step).unwrap()));
}

/// Five tokens drafted, two kept.
#[divan::bench]
fn rollback_cache_draft(bencher: Bencher<'_, '_>) {
    let mut cache = RollbackCache::new(Default::default()).unwrap();
    let (full, draft) = (tokens(1024), tokens(5));
    cache.append(&full, &full, None).unwrap();
    cache.commit(1024).unwrap();
    let start = cache.snapshot();
    bencher.bench_local(|| {
        if cache.total_len() > 2000 {
            cache.rollback(&start).unwrap();
        }
        black_box(cache.append(&draft, &draft, None).unwrap());
        cache.accept_path(&[0, 1]).unwrap();
    });
}

fn paged() -> PagedKvCache {
    PagedKvCache::new(PagedKvCacheOptions {
        capacity: 64,
        num_kv_heads: HEADS as u32,
        head_dim: HEAD_DIM as u32,
        ..Default::default()
    })
    .unwrap()
}

const LOW_BIT: [PageFormat; 3] = [PageFormat::F8E4M3, PageFormat::Q8, PageFormat::Q4];

/// A cache of low-bit pages for so many tokens.
fn low_bit(format: PageFormat, tokens: usize) -> PagedKvCache {
    PagedKvCache::new(PagedKvCacheOptions {
        capacity: (tokens / 16) as u32,
        num_kv_heads: HEADS as u32,
        head_dim: HEAD_DIM as u32,
        key_format: Some(format),
        value_format: Some(format),
        ..Default::default()
    })
    .unwrap()
}

fn normal(count: usize) -> Tensor {
    Tensor::randn(0f32, 1., (HEADS, count, HEAD_DIM), &Device::Cpu).unwrap()
}

/// 256 tokens into low-bit pages, which are quantised as they become full.
#[divan::bench(args = LOW_BIT, sample_count = 200)]
fn low_bit_write(bencher: Bencher<'_, '_>, format: PageFormat) {
    let (mut cache, rows) = (low_bit(format, 256), normal(256));
    bencher.bench_local(|| {
        let sequence = cache.create_sequence().unwrap();
        cache.write_tokens(sequence, 0, 0, &rows, &rows).unwrap();
        cache.drop_sequence(sequence).unwrap();
    });
}

/// One query with four heads to each of the keys', over 1024 tokens in low-bit pages.
#[divan::bench(args = LOW_BIT, sample_count = 400)]
fn low_bit_attend(bencher: Bencher<'_, '_>, format: PageFormat) {
    let (mut cache, rows) = (low_bit(format, 1024), normal(1024));
    let sequence = cache.create_sequence().unwrap();
    cache.write_tokens(sequence, 0, 0, &rows, &rows).unwrap();
    let query = Tensor::randn(0f32, 1., (1, 4 * HEADS, HEAD_DIM), &Device::Cpu).unwrap();
    let options = AttendOptions { threads: Some(1), ..Default::default() };
    bencher.bench_local(|| {
        let pages = cache.pages(0, &[sequence]).unwrap();
        black_box(attend(&query, &pages, &options).unwrap())
    });
}

/// 256 tokens out of low-bit pages, as floats.
#[divan::bench(args = LOW_BIT, sample_count = 200)]
fn low_bit_read(bencher: Bencher<'_, '_>, format: PageFormat) {
    let (mut cache, rows) = (low_bit(format, 256), normal(256));
    let sequence = cache.create_sequence().unwrap();
    cache.write_tokens(sequence, 0, 0, &rows, &rows).unwrap();
    bencher.bench_local(|| black_box(cache.gather(sequence, 0).unwrap()));
}

fn host(bytes: &[u8]) -> HostTensor<'_> {
    HostTensor::new("key", bytes, DType::F32, &[HEADS, HEAD_DIM]).unwrap()
}

/// One token of one layer into its slot.
#[divan::bench]
fn paged_write(bencher: Bencher<'_, '_>) {
    let (mut cache, token) = (paged(), vec![0u8; TOKEN_BYTES]);
    let sequence = cache.create_sequence().unwrap();
    let mut position = 0;
    bencher.bench_local(|| {
        position = (position + 1) % 1024;
        cache.write_kv(sequence, 0, position, host(&token), host(&token)).unwrap();
    });
}

/// One token of one layer, out of its slot.
#[divan::bench]
fn paged_read(bencher: Bencher<'_, '_>) {
    let (mut cache, token) = (paged(), vec![0u8; TOKEN_BYTES]);
    let sequence = cache.create_sequence().unwrap();
    for position in 0..1024 {
        cache.write_kv(sequence, 0, position, host(&token), host(&token)).unwrap();
    }
    let (mut key, mut value) = (token.clone(), token);
    let mut position = 0;
    bencher.bench_local(|| {
        position = (position + 1) % 1024;
        cache.read_kv_into(sequence, 0, position, &mut key, &mut value).unwrap();
    });
}

fn read(bencher: Bencher<'_, '_>, view: &View) {
    let mut out = vec![0u8; view.bytes()];
    bencher.counter(BytesCount::new(out.len())).bench_local(|| view.read_into(black_box(&mut out)).unwrap());
}

/// A view of one run: one piece per head.
/// What a block costs that was somebody else's, once its page is read where one slot of sixteen was written: a sequence made,
/// one token written, fifteen slots of K and V zeroed, the sequence dropped. Less than `paged_zeroing_none` is the rest.
#[divan::bench]
fn paged_zeroing(bencher: Bencher<'_, '_>) {
    zeroing(bencher, true);
}

/// The same without reading, so that nothing is zeroed.
#[divan::bench]
fn paged_zeroing_none(bencher: Bencher<'_, '_>) {
    zeroing(bencher, false);
}

fn zeroing(bencher: Bencher<'_, '_>, read: bool) {
    let (mut cache, token) = (paged(), vec![0u8; TOKEN_BYTES]);
    bencher.bench_local(|| {
        let sequence = cache.create_sequence().unwrap();
        cache.write_kv(sequence, 0, 15, host(&token), host(&token)).unwrap();
        if read {
            black_box(cache.pages(0, &[sequence]).unwrap());
        }
        cache.drop_sequence(sequence).unwrap();
    });
}

#[divan::bench(args = [512, 4096])]
fn view_read_into(bencher: Bencher<'_, '_>, window: usize) {
    read(bencher, &full_window(window, 0).current_data().unwrap().unwrap().k);
}

/// A view of two runs, sinks and window, gathered.
#[divan::bench(args = [512, 4096])]
fn view_gather(bencher: Bencher<'_, '_>, window: usize) {
    let (mut cache, step) = (full_window(window, 4), tokens(1));
    let shown = cache.append(&step, &step).unwrap();
    assert_eq!(shown.k.runs().iter().count(), 2);
    read(bencher, &shown.k);
}

/// The candle tensor of a view, in the same memory.
#[divan::bench]
fn view_tensor(bencher: Bencher<'_, '_>) {
    let view = full_window(512, 0).current_data().unwrap().unwrap().k;
    bencher.bench_local(|| black_box(view.tensor().unwrap()));
}
