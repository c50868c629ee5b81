//! Random calls on `PagedKvCache` against a map of (sequence, layer, position).

use std::collections::{BTreeMap, HashMap};

use kvtide_core::Code;
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::outcome::{Done, code};
use crate::sequences::sequence;
use crate::sources::{Fed, Form};
use crate::support;
use crate::tokens::{Id, Rows};

/// A call: sequence, layer, position or tokens, in range or not.
#[derive(Clone, Debug)]
enum Op {
    Create,
    Drop(u64),
    Ensure(u64, u32),
    Write(u64, u32, u32, [Form; 2]),
    /// A token of too many elements, in K or in V.
    WriteWide(u64, bool),
    /// A token of another dtype.
    WriteOther(u64),
    Read(u64, u32, u32),
}

#[derive(Clone, Debug)]
struct Setup {
    capacity: u32,
    block_size: u32,
    layers: u32,
    heads: u32,
    dim: u32,
    dtype: DType,
}

impl Setup {
    /// One token, as the rows `[heads, 1, dim]`.
    fn rows(&self) -> Rows {
        Rows::new(&[self.heads as usize, 1, self.dim as usize], 1, self.dtype)
    }
}

/// A cache, and the naive one: sequences with a number of blocks, and a token per place.
struct Pair {
    setup: Setup,
    cache: PagedKvCache,
    blocks: BTreeMap<u64, u32>,
    tokens: HashMap<(u64, u32, u32), Id>,
    created: u64,
    next: Id,
}

impl Pair {
    fn new(setup: Setup) -> Result<Self, TestCaseError> {
        let cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: setup.capacity,
            block_size: setup.block_size,
            num_layers: setup.layers,
            num_kv_heads: setup.heads,
            head_dim: setup.dim,
            dtype: setup.dtype,
            ..Default::default()
        })?;
        Ok(Pair { setup, cache, blocks: BTreeMap::new(), tokens: HashMap::new(), created: 0, next: 1 })
    }

    fn free(&self) -> u32 {
        self.setup.capacity - self.blocks.values().sum::<u32>()
    }

    fn length(&self, sequence: u64) -> u32 {
        let of_sequence = self.tokens.keys().filter(|place| place.0 == sequence);
        of_sequence.map(|place| place.2 + 1).max().unwrap_or(0)
    }

    /// Blocks missing for so many tokens, or why they cannot be had.
    fn missing(&self, sequence: u64, tokens: u32) -> Result<u32, Code> {
        let held = self.blocks.get(&sequence).ok_or(Code::SequenceNotFound)?;
        let missing = tokens.div_ceil(self.setup.block_size).saturating_sub(*held);
        if missing > self.free() { Err(Code::OutOfBlocks) } else { Ok(missing) }
    }

    fn call(&mut self, op: &Op) -> Done {
        match *op {
            Op::Create => {
                prop_assert_eq!(self.cache.create_sequence()?, self.created);
                self.blocks.insert(self.created, 0);
                self.created += 1;
            }
            Op::Drop(sequence) => {
                let known = self.blocks.remove(&sequence).map(|_| ()).ok_or(Code::SequenceNotFound);
                prop_assert_eq!(code(self.cache.drop_sequence(sequence)), known);
                self.tokens.retain(|place, _| place.0 != sequence);
            }
            Op::Ensure(sequence, tokens) => {
                let missing = self.missing(sequence, tokens);
                prop_assert_eq!(code(self.cache.ensure_capacity(sequence, tokens)), missing.map(|_| ()));
                self.take(sequence, missing.unwrap_or(0));
            }
            Op::Write(sequence, layer, position, forms) => self.write(sequence, layer, position, forms)?,
            Op::WriteWide(sequence, key) => {
                let wide =
                    Rows { dims: vec![self.setup.heads as usize, 1, self.setup.dim as usize + 1], ..self.setup.rows() };
                let (right, wrong) = (self.setup.rows().tensor(0, &[1]), wide.tensor(0, &[1]));
                let (k, v) = if key { (&wrong, &right) } else { (&right, &wrong) };
                prop_assert_eq!(code(self.cache.write_kv(sequence, 0, 0, k, v)), Err(Code::DimMismatch));
            }
            Op::WriteOther(sequence) => {
                let right = self.setup.rows().tensor(0, &[1]);
                let wrong = Rows { dtype: DType::U8, ..self.setup.rows() }.tensor(0, &[1]);
                prop_assert_eq!(code(self.cache.write_kv(sequence, 0, 0, &right, &wrong)), Err(Code::DtypeMismatch));
            }
            Op::Read(sequence, layer, position) => self.read(sequence, layer, position)?,
        }
        Ok(())
    }

    fn take(&mut self, sequence: u64, blocks: u32) {
        if let Some(held) = self.blocks.get_mut(&sequence) {
            *held += blocks;
        }
    }

    fn write(&mut self, sequence: u64, layer: u32, position: u32, forms: [Form; 2]) -> Done {
        let rows = self.setup.rows();
        let fed = [0, 1].map(|part| Fed::new(forms[part], &rows, part, &[self.next]));
        let done = code(self.cache.write_kv(sequence, layer, position, fed[0].source(), fed[1].source()));
        let missing =
            if layer < self.setup.layers { self.missing(sequence, position + 1) } else { Err(Code::InvalidArgument) };
        prop_assert_eq!(done, missing.map(|_| ()));
        if let Ok(missing) = missing {
            self.take(sequence, missing);
            self.tokens.insert((sequence, layer, position), self.next);
            self.next += 1;
        }
        Ok(())
    }

    fn read(&mut self, sequence: u64, layer: u32, position: u32) -> Done {
        let rows = self.setup.rows();
        let read = self.cache.read_kv(sequence, layer, position);
        let refusal = match (layer < self.setup.layers, self.blocks.contains_key(&sequence)) {
            (false, _) => Code::InvalidArgument,
            (true, false) => Code::SequenceNotFound,
            (true, true) => Code::PositionOutOfRange,
        };
        match self.tokens.get(&(sequence, layer, position)) {
            Some(&id) => {
                let token = read?;
                prop_assert_eq!((token.key, token.value), (rows.bytes(0, &[id]), rows.bytes(1, &[id])));
            }
            None => prop_assert_eq!(code(read), Err(refusal)),
        }
        Ok(())
    }

    fn check(&mut self) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!((self.cache.free_count(), self.cache.total_count()), (self.free(), self.setup.capacity));
        let used = f64::from(self.setup.capacity - self.free()) / f64::from(self.setup.capacity.max(1));
        prop_assert_eq!(self.cache.pool_utilization(), used);
        prop_assert_eq!(self.cache.sequence_ids(), self.blocks.keys().copied().collect::<Vec<_>>());
        for sequence in 0..=self.created {
            let slots = self.blocks.get(&sequence).map_or(0, |blocks| blocks * self.setup.block_size);
            prop_assert_eq!(self.cache.sequence_length(sequence), self.length(sequence));
            prop_assert_eq!(self.cache.sequence_capacity(sequence), u64::from(slots));
        }
        Ok(())
    }

    /// Reads every slot of every sequence, and one beyond.
    fn check_content(&mut self) -> Done {
        for (sequence, blocks) in self.blocks.clone() {
            for layer in 0..self.setup.layers {
                for position in 0..=blocks * self.setup.block_size {
                    self.read(sequence, layer, position)?;
                }
            }
        }
        Ok(())
    }
}

fn cache_follows_the_map((setup, ops): (Setup, Vec<Op>)) -> Done {
    let mut pair = Pair::new(setup)?;
    for op in &ops {
        pair.call(op)?;
        pair.check()?;
        pair.check_content()?;
    }
    Ok(())
}

fn setup() -> impl Strategy<Value = Setup> {
    let dtypes = prop::sample::select(&[DType::F32, DType::F16, DType::BF16][..]);
    (0..7u32, 1..5u32, 1..4u32, 1..3u32, 1..4u32, dtypes).prop_map(
        |(capacity, block_size, layers, heads, dim, dtype)| Setup { capacity, block_size, layers, heads, dim, dtype },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let form = || prop::sample::select(&[Form::Contiguous, Form::Transposed, Form::Host, Form::View][..]);
    let place = || (0..5u64, 0..4u32, 0..10u32);
    prop_oneof![
        4 => Just(Op::Create),
        2 => (0..5u64).prop_map(Op::Drop),
        2 => (0..5u64, 0..16u32).prop_map(|(sequence, tokens)| Op::Ensure(sequence, tokens)),
        10 => (place(), [form(), form()])
            .prop_map(|((sequence, layer, position), forms)| Op::Write(sequence, layer, position, forms)),
        1 => (0..5u64, any::<bool>()).prop_map(|(sequence, key)| Op::WriteWide(sequence, key)),
        1 => (0..5u64).prop_map(Op::WriteOther),
        2 => place().prop_map(|(sequence, layer, position)| Op::Read(sequence, layer, position)),
    ]
}

#[test]
fn random_calls_against_a_map() {
    let calls = (setup(), sequence(op()));
    support::run("PagedKvCache", 20_000, calls, cache_follows_the_map);
}
