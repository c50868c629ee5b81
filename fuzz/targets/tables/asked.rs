//! One attention call over sequences or tables of a cache, compared with attention by its definition over gathered rows.

use std::ops::Range;

use kvtide_core::paged::PageFormat;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, View};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use crate::numbers::{Numbers, distance, larger, to_bytes};
use crate::oracle::{Naive, ancestors, slopes};
use crate::world::{Sequence, World};

/// The layer that is read.
const LAYER: u32 = 1;

/// The most difference of an element, relative to the largest value. Low-bit pages are gathered as numbers of the
/// cache's dtype, which rounds them once more. Full pages of drafted tokens exist as floats too; a token behind them sees
/// them as they are once sealed, and a gather does not, so only gross differences count for such sequences.
fn off_max(world: &World, has_floats: bool) -> f64 {
    let is_low_bit =
        |format: &Option<PageFormat>| matches!(format, Some(PageFormat::F8E4M3 | PageFormat::Q8 | PageFormat::Q4));
    match (world.shape.dtype, world.shape.formats.iter().any(is_low_bit)) {
        (_, true) if has_floats => 2.,
        (DType::F16, true) => 1e-3,
        (DType::BF16, true) => 1e-2,
        _ => 2e-5,
    }
}

/// The keys and values of one sequence or table.
struct Rows {
    /// For K and V, `[heads, tokens, dim]`.
    parts: [Vec<f32>; 2],
    /// The position of each token.
    positions: Vec<i64>,
    /// The parents of the last tokens.
    tree: Option<Vec<i32>>,
    /// Some of its pages may exist as floats too.
    has_floats: bool,
}

/// The rules of a call.
#[derive(Debug)]
struct Rules {
    scale: Option<f32>,
    causal: bool,
    window: Option<u32>,
    sinks: u32,
    softcap: Option<f32>,
    sink_logits: Option<Vec<f32>>,
    slopes: Option<Vec<f32>>,
    /// The queries of each sequence.
    queries: Vec<usize>,
    positions: Option<Vec<i32>>,
    /// Numbers for each query and key of a single sequence.
    mask: Option<Vec<f32>>,
}

/// Attends, and compares.
pub fn attend_to(world: &mut World, input: &mut Unstructured<'_>) -> Result<()> {
    let is_by_table = world.shape.window().is_none() && input.ratio(1, 3)?;
    let (tables, rows) = if is_by_table { by_table(world, input)? } else { by_sequence(world, input)? };
    let group = input.int_in_range(1..=4)?;
    let heads = world.shape.layer.num_kv_heads as usize * group;
    let rules = rules(&rows, heads, world.shape.window(), input)?;
    let kernels = *input.choose(&Kernels::supported().collect::<Vec<_>>())?;
    let dim = world.shape.layer.head_dim as usize;
    let total: usize = rules.queries.iter().sum();
    let q = Numbers::new(!world.shape.seed).take(total * heads * dim);
    let bytes = to_bytes(DType::F32, &q);
    let host = HostTensor::new("q", &bytes, DType::F32, &[total, heads, dim]).expect("as many bytes");
    let offsets: Vec<i32> = std::iter::once(0).chain(ends(&rules.queries)).collect();
    let mask_bytes = to_bytes(DType::F32, rules.mask.as_deref().unwrap_or_default());
    let keys = rows.first().map_or(0, |rows| rows.positions.len());
    let mask = || HostTensor::new("mask", &mask_bytes, DType::F32, &[1, 1, total, keys]).expect("as many bytes");
    let options = AttendOptions {
        scale: rules.scale,
        causal: rules.causal,
        window: rules.window,
        sinks: rules.sinks,
        softcap: rules.softcap,
        sink_logits: rules.sink_logits.as_deref(),
        alibi_slopes: rules.slopes.as_deref(),
        positions: rules.positions.as_deref(),
        mask: rules.mask.as_ref().map(|_| mask()),
        query_offsets: Some(&offsets),
        ..AttendOptions::default()
    };
    let pages = match &tables {
        Tables::Sequences(ids) => world.cache.pages(LAYER, ids),
        Tables::Blocks(blocks, lengths) => world.cache.pages_of_tables(LAYER, blocks, lengths),
    };
    let pages = pages.expect("pages");
    let attended = with_kernels(kernels, || attend(host, &pages, &options)).expect("kernels that there are");
    let attended = match attended {
        Ok(attended) => attended,
        Err(error) => {
            let is_kept =
                !["have left the cache", "that the cache keeps"].iter().any(|why| error.to_string().contains(why));
            assert!(!is_kept && rows.iter().any(|of| gap(of).is_some()), "{error}: {rules:?}");
            return Ok(());
        }
    };
    drop(pages);
    let out = attended.out.to_f32().expect("floats");
    compare(world, &rows, &rules, (&q, heads), (&out, &attended.lse));
    Ok(())
}

enum Tables {
    Sequences(Vec<u64>),
    Blocks(Vec<i32>, Vec<i32>),
}

fn ends(counts: &[usize]) -> impl Iterator<Item = i32> {
    counts.iter().scan(0, |sum, count| {
        *sum += *count as i32;
        Some(*sum)
    })
}

/// Some sequences, in any order and more than once.
fn by_sequence(world: &mut World, input: &mut Unstructured<'_>) -> Result<(Tables, Vec<Rows>)> {
    let (mut ids, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..input.int_in_range(1..=4)? {
        let of = world.sequences[input.choose_index(world.sequences.len())?].clone();
        let positions: Vec<i64> = positions(world, of.id, of.length);
        // A chain is no tree: its nodes are like tokens.
        let is_tree = |nodes: &Vec<i32>| (-1..).zip(nodes).any(|(before, &parent)| parent != before);
        let has_floats = of.has_floats();
        let tree = of.draft.map(|(_, nodes)| nodes).filter(is_tree);
        rows.push(Rows { parts: gathered(world, of.id), positions, tree, has_floats });
        ids.push(of.id);
    }
    Ok((Tables::Sequences(ids), rows))
}

fn gathered(world: &mut World, id: u64) -> [Vec<f32>; 2] {
    let kv = world.cache.gather(id, LAYER).expect("rows");
    let floats = |view: &View| view.to_f32().expect("floats");
    [floats(&kv.k), floats(&kv.v)]
}

/// The positions of what a sequence still has: whole blocks behind the sinks leave a window.
fn positions(world: &mut World, id: u64, length: u32) -> Vec<i64> {
    let kept = world.cache.retained_length(id);
    let sinks = world.shape.window().map_or(0, |(_, sinks)| sinks.next_multiple_of(world.shape.block_size));
    let gone = if kept == length { 0..0 } else { sinks..sinks + length - kept };
    (0..length).filter(|position| !gone.contains(position)).map(i64::from).collect()
}

fn gap(of: &Rows) -> Option<Range<i64>> {
    of.positions.windows(2).find(|two| two[0] + 1 < two[1]).map(|two| two[0] + 1..two[1]).or_else(|| {
        let first = of.positions.first()?;
        (*first > 0).then_some(0..*first)
    })
}

/// Tables of blocks of any sequences; full ones may be in any place, and more than once.
fn by_table(world: &mut World, input: &mut Unstructured<'_>) -> Result<(Tables, Vec<Rows>)> {
    let size = world.shape.block_size as usize;
    let dims = [world.shape.layer.head_dim, world.shape.layer.value_head_dim].map(|dim| dim as usize);
    let heads = world.shape.layer.num_kv_heads as usize;
    let all: Vec<(Vec<i32>, [Vec<f32>; 2], usize)> = world
        .sequences
        .clone()
        .iter()
        .map(|of| {
            let blocks = world.cache.blocks_of(of.id, 0).expect("blocks");
            (blocks, gathered(world, of.id), of.length as usize)
        })
        .collect();
    let (width, count) = (input.int_in_range(1..=6)?, input.int_in_range(1..=4)?);
    let (mut tables, mut lengths, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let (mut table, mut tokens) = (Vec::new(), Vec::<(usize, usize)>::new());
        for _ in 0..input.int_in_range(0..=width)? {
            let of = input.choose_index(all.len())?;
            let (blocks, _, length) = &all[of];
            if *length == 0 {
                continue;
            }
            let place = input.choose_index(length.div_ceil(size))?;
            let there = (length - place * size).min(size);
            let taken = if input.ratio(1, 8)? { input.int_in_range(1..=there)? } else { there };
            table.push(blocks[place]);
            tokens.extend((place * size..place * size + taken).map(|token| (of, token)));
            if taken < size {
                break;
            }
        }
        table.resize(width, if input.arbitrary()? { -1 } else { 0 });
        let part = |part: usize| {
            let row = |head: usize, (of, token): (usize, usize)| {
                let (_, parts, length) = &all[of];
                &parts[part][(head * length + token) * dims[part]..][..dims[part]]
            };
            (0..heads).flat_map(|head| tokens.iter().flat_map(move |&at| row(head, at).to_vec())).collect()
        };
        let has_floats = world.sequences.iter().any(Sequence::has_floats);
        let positions = (0..tokens.len() as i64).collect();
        rows.push(Rows { parts: [part(0), part(1)], positions, tree: None, has_floats });
        lengths.push(tokens.len() as i32);
        tables.extend(table);
    }
    Ok((Tables::Blocks(tables, lengths), rows))
}

fn rules(rows: &[Rows], heads: usize, own: Option<(u32, u32)>, input: &mut Unstructured<'_>) -> Result<Rules> {
    let longest = rows.iter().map(|of| of.positions.len()).max().unwrap_or(0);
    let has_tree = rows.iter().any(|of| of.tree.is_some());
    let queries = rows.iter().map(|of| {
        let most = of.tree.as_ref().map_or(5, |tree| tree.len().min(5));
        input.int_in_range(0..=most)
    });
    let queries = queries.collect::<Result<Vec<_>>>()?;
    let total: usize = queries.iter().sum();
    let window = if input.ratio(1, 4)? { Some(input.int_in_range(1..=longest as u32 + 2)?) } else { None };
    let sinks = if window.is_some() { input.int_in_range(0..=4)? } else { 0 };
    let positions = match !has_tree && own.is_none() && input.ratio(1, 6)? {
        true => Some((0..total).map(|_| input.int_in_range(0..=longest as i32 + 3)).collect::<Result<Vec<_>>>()?),
        false => None,
    };
    let is_masked = !has_tree && rows.len() == 1 && rows[0].positions.len() == longest && input.ratio(1, 4)?;
    let mask = match is_masked && own.is_none() && longest > 0 {
        true => {
            let hide = |number: f32| if number > 0.6 { f32::NEG_INFINITY } else { number };
            Some(Numbers::new(input.arbitrary()?).take(total * longest).into_iter().map(hide).collect())
        }
        false => None,
    };
    Ok(Rules {
        scale: if input.ratio(1, 4)? { Some(f32::from(input.arbitrary::<u8>()?) / 64.) } else { None },
        causal: input.ratio(7, 8)?,
        window,
        sinks,
        softcap: if input.ratio(1, 4)? { Some(f32::from(input.arbitrary::<u8>()?) / 16. + 0.5) } else { None },
        sink_logits: input.arbitrary::<bool>()?.then(|| Numbers::new(7).take(heads)),
        slopes: input.arbitrary::<bool>()?.then(|| slopes(heads, longest)),
        queries,
        positions,
        mask,
    })
}

fn compare(world: &World, rows: &[Rows], rules: &Rules, (q, heads): (&[f32], usize), (out, lse): (&[f32], &[f32])) {
    let layer = world.shape.layer;
    let dims = [layer.head_dim, layer.value_head_dim].map(|dim| dim as usize);
    let own = world.shape.window().filter(|_| rules.window.is_none());
    let (window, sinks) = own.map_or((rules.window, rules.sinks), |(window, sinks)| (Some(window), sinks));
    let mut token = 0;
    for (of, &queries) in rows.iter().zip(&rules.queries) {
        let most = off_max(world, of.has_floats);
        let count = of.positions.len();
        let row = |part: usize, head: usize, at: usize| -> Vec<f64> {
            let row = of.parts[part].get((head * count + at) * dims[part]..).unwrap_or_default();
            row.iter()
                .take(dims[part])
                .map(|&float| float.into())
                .chain(std::iter::repeat(0.))
                .take(dims[part])
                .collect()
        };
        let mask = |_: usize, query: usize, key: usize| match &rules.mask {
            Some(mask) => f64::from(mask[query * count + key]),
            None => 0.,
        };
        let naive = Naive {
            positions: &of.positions,
            kv_heads: layer.num_kv_heads as usize,
            query_heads: heads,
            key: &|head, at| row(0, head, at),
            value: &|head, at| row(1, head, at),
            scale: f64::from(rules.scale.unwrap_or(1. / (dims[0] as f32).sqrt())),
            causal: rules.causal,
            window: window.map(i64::from),
            sinks: sinks.into(),
            start: i64::MIN,
            softcap: rules.softcap.map(f64::from),
            sink_logits: rules.sink_logits.as_deref(),
            slopes: rules.slopes.as_deref(),
            mask: &mask,
            parents: of.tree.as_deref(),
            first_node: of.tree.as_ref().map_or(0, |tree| tree.len() as i64 - queries as i64),
        };
        let largest = of.parts[1].iter().fold(1f64, |most, value| most.max(f64::from(value.abs())));
        let scale = rules.scale.map_or(1., |scale| 1. + f64::from(scale));
        for query in 0..queries {
            let position = position(of, rules, (query, token), queries);
            for head in 0..heads {
                let at = token * heads + head;
                let asked: Vec<f64> = q[at * dims[0]..][..dims[0]].iter().map(|&float| float.into()).collect();
                let (expected, sum, _) = naive.attend(&asked, query, position, head);
                let pairs = out[at * dims[1]..].iter().zip(&expected);
                let off = pairs.fold(0., |most, (found, other)| larger(most, distance((*found).into(), *other)));
                let sum_off = distance(lse[at].into(), sum) / sum.abs().max(1.);
                assert!(
                    off <= most * largest * scale && sum_off <= most * scale,
                    "off by {off} and {sum_off}: query {query} at {position}, head {head}, {:?} keys, tree {:?}, {rules:?}, {:?}",
                    count,
                    of.tree,
                    world.shape
                );
            }
            token += 1;
        }
    }
}

/// The position of a query.
fn position(of: &Rows, rules: &Rules, (query, token): (usize, usize), queries: usize) -> i64 {
    let end = of.positions.last().map_or(0, |last| last + 1);
    match (&rules.positions, &of.tree) {
        (Some(positions), _) => positions[token].into(),
        (None, Some(tree)) => end - tree.len() as i64 + ancestors(tree, tree.len() - queries + query).len() as i64 - 1,
        (None, None) => end - queries as i64 + query as i64,
    }
}
