//! The model: a sequence is a list of tokens, and the rows of a token are those that a language model would compute,
//! from the salt and all tokens up to it. So a page of another prompt or another tenant shows. Its states are computed from
//! the rows of all its tokens.

use kvtide_core::TransactionId;
use kvtide_core::model::{LayerDescription, LayerKind, StateDType, StateTensor};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{DType, HostTensor, PagedKvCache, StepTokens, Tokens, View};
use proptest::prelude::*;

use crate::run::Done;
use crate::world::{Form, forms, full, number};

/// The number of forms.
pub const FORMS: usize = 17;

/// Forms of caches with keys and values alone, then some with states.
pub fn form(index: usize) -> Form {
    let mut all: Vec<Form> = forms().into_iter().map(|(_, form)| form).collect();
    let state = |layer, name: &str, shape, dtype| StateTensor { layer, name: name.into(), shape, dtype };
    let hybrid = vec![state(1, "conv", vec![3, 5], StateDType::F16), state(1, "ssm", vec![7, 3], StateDType::F32)];
    let alone = vec![state(0, "ssm", vec![33], StateDType::F32)];
    all.push(Form { layers: vec![full(), LayerDescription::state(), full()], states: hybrid, ..all[0].clone() });
    all.push(Form { layers: vec![LayerDescription::state()], states: alone, ..all[0].clone() });
    assert_eq!(all.len(), FORMS);
    all.swap_remove(index)
}

/// A sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    pub id: u64,
    pub salt: u8,
    pub ids: Vec<u32>,
    /// The number of the rows of each token.
    pub rows: Vec<u32>,
    /// The number of first tokens whose ids the cache knows.
    pub known: usize,
}

impl Sequence {
    /// Returns the numbers of the rows of more tokens.
    pub fn next_rows(&self, tokens: &[u32], are_known: bool) -> Vec<u32> {
        let is_pure = self.known == self.rows.len() && are_known;
        let mut last = self.rows.last().copied().unwrap_or(u32::from(self.salt) + 1);
        let row = |token: &u32| {
            last = mixed(last, *token + if is_pure { 0 } else { 1000 });
            last
        };
        tokens.iter().map(row).collect()
    }

    pub fn push(&mut self, tokens: &[u32], rows: &[u32], are_known: bool) {
        if are_known && self.known == self.rows.len() {
            self.known += tokens.len();
        }
        self.ids.extend(tokens);
        self.rows.extend(rows);
    }

    pub fn truncate(&mut self, length: usize) {
        self.ids.truncate(length);
        self.rows.truncate(length);
        self.known = self.known.min(length);
    }
}

fn mixed(one: u32, other: u32) -> u32 {
    (one.rotate_left(5) ^ other).wrapping_mul(0x9e37_79b1).rotate_left(15).wrapping_mul(0x85eb_ca77)
}

fn element(form: &Form, [layer, part, head, row, element, dim]: [u32; 6]) -> Vec<u8> {
    number(form.dtype, [layer, head * 2 + part, row, element, dim, 1])
}

/// The states after these rows; zeros if there are none.
fn states(cache: &PagedKvCache, rows: &[u32]) -> Vec<u8> {
    let all = rows.iter().fold(0, |all, row| mixed(all, *row));
    let byte = |at| if rows.is_empty() { 0 } else { mixed(all, at) as u8 };
    (0..cache.state_bytes() as u32).map(byte).collect()
}

/// Parts of some tokens, which are appended one after the other: with states, a part ends where a block ends, so that its
/// states can be found there.
pub fn parts<'a>(form: &Form, before: usize, tokens: &'a [u32]) -> Vec<&'a [u32]> {
    let size = form.block_size as usize;
    let first = if form.states.is_empty() { tokens.len() } else { (size - before % size).min(tokens.len()) };
    let (head, rest) = tokens.split_at(first);
    std::iter::once(head).chain(rest.chunks(size)).collect()
}

/// Appends tokens with these rows, possibly in a transaction.
pub fn append(
    cache: &mut PagedKvCache,
    form: &Form,
    (sequence, draft): (&Sequence, Option<TransactionId>),
    ids: Option<&[u32]>,
    rows: &[u32],
) -> kvtide_tensor::Result<()> {
    let is_own = |kind| !matches!(kind, LayerKind::SharedWith(_) | LayerKind::State);
    let own: Vec<(u32, &LayerDescription)> = (0..).zip(&form.layers).filter(|(_, of)| is_own(of.kind)).collect();
    let mut all: Vec<[(Vec<u8>, [usize; 3]); 2]> = Vec::new();
    for &(layer, of) in &own {
        let part = |part: u32, dim: u32| {
            let places = (0..of.num_kv_heads).flat_map(|head| rows.iter().map(move |row| (head, *row)));
            let bytes = places.flat_map(|(head, row)| (0..dim).map(move |at| [layer, part, head, row, at, dim]));
            let bytes = bytes.flat_map(|of| element(form, of)).collect();
            (bytes, [of.num_kv_heads as usize, rows.len(), dim as usize])
        };
        all.push([part(0, of.head_dim), part(1, of.value_head_dim)]);
    }
    let layers: Vec<[Source<'_>; 2]> = all
        .iter()
        .map(|parts| {
            parts.each_ref().map(|(bytes, shape)| HostTensor::new("k", bytes, form.dtype, shape).unwrap().into())
        })
        .collect();
    if form.states.is_empty() {
        return cache.append_to(sequence.id, draft, Tokens { ids, ..Tokens::of_layers(&layers) });
    }
    let (of, offsets) = ([sequence.id], [0, rows.len() as u32]);
    let mut step = cache.begin_step(StepTokens { sequences: &of, offsets: Some(&offsets), parents: None })?;
    for ((layer, _), [k, v]) in own.into_iter().zip(layers) {
        cache.write_layer(&mut step, layer, k, v)?;
    }
    if !rows.is_empty() {
        assert_eq!(cache.read_states(&step, 0)?, states(cache, &sequence.rows), "the states before a step");
        let after = states(cache, &[&sequence.rows, rows].concat());
        cache.write_states(&mut step, 0, &after)?;
    }
    cache.commit_step(&mut step, ids)
}

/// Compares a sequence with the model.
pub fn check(cache: &mut PagedKvCache, form: &Form, sequence: &Sequence) -> Done {
    prop_assert_eq!(cache.sequence_length(sequence.id) as usize, sequence.rows.len());
    if !form.states.is_empty() {
        let found = cache.states_of(sequence.id).unwrap();
        prop_assert!(found == states(cache, &sequence.rows), "other states than {:?}", sequence.rows);
    }
    for (layer, of) in (0..).zip(&form.layers).filter(|(_, of)| of.kind != LayerKind::State) {
        let (source, kind) = match of.kind {
            LayerKind::SharedWith(source) => (source, form.layers[source as usize].kind),
            kind => (layer, kind),
        };
        let kv = cache.gather(sequence.id, layer).unwrap();
        for (part, (view, dim)) in (0..).zip([(&kv.k, of.head_dim), (&kv.v, of.value_head_dim)]) {
            check_part(form, sequence, [source, part, dim], kind, view)?;
        }
    }
    Ok(())
}

fn check_part(form: &Form, sequence: &Sequence, [layer, part, dim]: [u32; 3], kind: LayerKind, view: &View) -> Done {
    let [.., heads, there, _] = *view.shape() else { panic!("{:?}", view.shape()) };
    // Tokens that left a window come after its sinks, which fill their blocks.
    let sinks = match kind {
        LayerKind::Sliding { sinks, .. } => sinks.next_multiple_of(form.block_size) as usize,
        _ => 0,
    };
    prop_assert!(there <= sequence.rows.len(), "layer {}: {} tokens", layer, there);
    let gap = sequence.rows.len() - there;
    let all = sequence.rows.iter().enumerate().filter(|(at, _)| gap == 0 || *at < sinks || *at >= sinks + gap);
    let rows: Vec<u32> = all.map(|(_, row)| *row).collect();
    let places = (0..heads as u32).flat_map(|head| rows.iter().map(move |row| (head, *row)));
    let expected = places.flat_map(|(head, row)| (0..dim).map(move |at| [layer, part, head, row, at, dim]));
    let expected: Vec<u8> = expected.flat_map(|of| element(form, of)).collect();
    let (found, format) = (view.to_bytes().unwrap(), form.formats[part as usize]);
    let most = match format.name() {
        _ if format == form.dtype.page_format() => {
            prop_assert!(found == expected, "layer {}, part {}: other rows than {:?}", layer, part, rows);
            return Ok(());
        }
        "f16" => 0.001,
        "q8" => 0.03,
        "f8e4m3" => 0.08,
        _ => 0.25,
    };
    let (dim, dtype) = (dim as usize, view.dtype());
    let expected = expected.chunks(form.dtype.bytes() * dim);
    for (row, (one, other)) in found.chunks(dtype.bytes() * dim).zip(expected).enumerate() {
        let pairs = floats(dtype, one).zip(floats(form.dtype, other));
        let off = pairs.map(|(one, other)| (one - other).abs()).sum::<f32>() / dim as f32;
        prop_assert!(off <= most, "layer {}, part {}, row {}: off by {} on average", layer, part, row, off);
    }
    Ok(())
}

fn floats(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(dtype.bytes()).map(move |one| match one {
        [a, b, c, d] => f32::from_ne_bytes([*a, *b, *c, *d]),
        [a, b] if dtype == DType::BF16 => f32::from_bits(u32::from(u16::from_ne_bytes([*a, *b])) << 16),
        [a, b] => half(u16::from_ne_bytes([*a, *b])),
        other => panic!("{} bytes of a number", other.len()),
    })
}

fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let fraction = if exponent == 0 { fraction } else { fraction + 1024. };
    let size = fraction * 2f32.powi(exponent.max(1) - 25);
    if bits >> 15 == 1 { -size } else { size }
}
