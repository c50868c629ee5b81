//! Random calls in every format against the model.

use kvtide_core::Code;
use kvtide_tensor::runtime::with_kernels;
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions, View};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::calls::{Call, call, setup};
use super::model::{Model, Setup, Token};
use super::values::{Fed, Form, bytes, element};
use crate::outcome::{Done, code};
use crate::support;

struct Pair {
    cache: PagedKvCache,
    model: Model,
    next: u64,
}

impl Pair {
    fn new(setup: Setup) -> Result<Self, TestCaseError> {
        let cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: setup.capacity,
            block_size: setup.block_size,
            num_layers: setup.layers,
            num_kv_heads: setup.heads,
            head_dim: setup.dims[0],
            value_head_dim: Some(setup.dims[1]),
            dtype: setup.dtype,
            key_format: setup.formats[0],
            value_format: setup.formats[1],
            hadamard: setup.rotated[0],
            value_hadamard: setup.rotated[1],
            ..Default::default()
        })?;
        Ok(Pair { cache, model: Model { setup, sequences: Default::default(), created: 0 }, next: 1 })
    }

    fn call(&mut self, call: &Call) -> Done {
        match *call {
            Call::Create => {
                prop_assert_eq!(self.cache.create_sequence()?, self.model.created);
                self.model.sequences.insert(self.model.created, Default::default());
                self.model.created += 1;
            }
            Call::Drop(id) => {
                let known = self.model.sequences.remove(&id).map(|_| ()).ok_or(Code::SequenceNotFound);
                prop_assert_eq!(code(self.cache.drop_sequence(id)), known);
            }
            Call::Write(id, layer, position, forms) => self.write(id, layer, position, 1, forms, None)?,
            Call::WriteTokens(id, layer, position, tokens, forms, batch) => {
                self.write(id, layer, position, tokens, forms, Some(batch))?;
            }
            Call::Append(ref shares, forms) => self.append(shares, forms)?,
        }
        Ok(())
    }

    /// The next tokens' values.
    fn tokens(&mut self, count: u32) -> Vec<Token> {
        let first = self.next;
        self.next += u64::from(count);
        let Setup { dtype, .. } = self.model.setup;
        let values = |id, part: usize| {
            (0..self.model.setup.elements(part)).map(|place| element(dtype, id, part, place)).collect()
        };
        (first..self.next).map(|id| [values(id, 0), values(id, 1)]).collect()
    }

    /// K or V in memory: `layers[layer][token]`, without layers unless there is an outer dimension.
    fn fed(&self, layers: &[Vec<Token>], part: usize, form: Form, outer: bool) -> Fed {
        let Setup { dtype, heads, dims, .. } = self.model.setup;
        let dim = dims[part] as usize;
        let sizes = [heads as usize, layers[0].len(), dim];
        Fed::new(form, dtype, outer.then_some(layers.len()), sizes, |layer, head, token, place| {
            layers[layer][token][part][head * dim + place]
        })
    }

    /// One token by itself, or some, with or without a batch.
    fn write(&mut self, id: u64, layer: u32, position: u32, count: u32, forms: [Form; 2], bulk: Option<bool>) -> Done {
        let tokens = [self.tokens(count)];
        let [k, v] = [0, 1].map(|part| self.fed(&tokens, part, forms[part], bulk.unwrap_or(true)));
        let done = match bulk {
            None => code(self.cache.write_kv(id, layer, position, k.source(), v.source())),
            Some(_) => code(self.cache.write_tokens(id, layer, position, k.source(), v.source())),
        };
        let end = if count == 0 { 0 } else { position + count };
        let missing = self.model.missing(&[(id, end)]);
        let expected = if layer < self.model.setup.layers { missing } else { Err(Code::InvalidArgument) };
        prop_assert_eq!(done, expected.map(|_| ()));
        if done.is_ok() {
            self.model.write(id, layer, position, &tokens[0]);
        }
        Ok(())
    }

    fn append(&mut self, shares: &[(u64, u32)], forms: [Form; 2]) -> Done {
        let ids: Vec<u64> = shares.iter().map(|share| share.0).collect();
        let mut offsets = vec![0u32];
        for share in shares {
            offsets.push(offsets.last().unwrap() + share.1);
        }
        let count = *offsets.last().unwrap();
        let layers: Vec<_> = (0..self.model.setup.layers).map(|_| self.tokens(count)).collect();
        let [k, v] = [0, 1].map(|part| self.fed(&layers, part, forms[part], true));
        let done = code(self.cache.append(&ids, k.source(), v.source(), Some(&offsets)));
        let length = |id: &u64| self.model.sequences.get(id).map_or(0, |sequence| sequence.length);
        let starts: Vec<u32> = ids.iter().map(length).collect();
        let ends: Vec<_> =
            shares.iter().zip(&starts).map(|(&(id, n), &start)| (id, if n == 0 { 0 } else { start + n })).collect();
        let twice = ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id));
        let expected = if twice { Err(Code::InvalidArgument) } else { self.model.missing(&ends).map(|_| ()) };
        prop_assert_eq!(done, expected);
        if done.is_ok() {
            for (layer, tokens) in (0..).zip(&layers) {
                for ((id, start), offset) in ids.iter().zip(&starts).zip(offsets.windows(2)) {
                    self.model.write(*id, layer, *start, &tokens[offset[0] as usize..offset[1] as usize]);
                }
            }
        }
        Ok(())
    }

    /// Compares all that there is with the model, and the pages that are full with what went in.
    fn check(&mut self) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!(self.cache.free_count(), self.model.free());
        let setup = self.model.setup.clone();
        for (&id, sequence) in &mut self.model.sequences {
            prop_assert_eq!(self.cache.sequence_length(id), sequence.length);
            for layer in 0..setup.layers {
                let gathered = self.cache.gather(id, layer)?;
                let found = found(&setup, [&gathered.k, &gathered.v], sequence.length)?;
                for (at, page) in sequence.pages.range_mut((layer, 0)..(layer + 1, 0)).filter(|(_, page)| page.fresh) {
                    let start = (at.1 * setup.block_size) as usize;
                    let rows = found[start..start + setup.block_size as usize].to_vec();
                    Model::seal(&setup, page, rows).map_err(TestCaseError::fail)?;
                }
                for (position, found) in (0..).zip(&found) {
                    let page = sequence.pages.get(&(layer, position / setup.block_size));
                    let token = page.and_then(|page| page.tokens[(position % setup.block_size) as usize].as_ref());
                    let zeros = [0, 1].map(|part| vec![0.; setup.elements(part)]);
                    prop_assert_eq!(found, token.unwrap_or(&zeros), "{} of layer {} of {}", position, layer, id);
                    check_one(&mut self.cache, &setup, id, layer, position, token)?;
                }
                check_into(&mut self.cache, id, layer, [&gathered.k, &gathered.v])?;
            }
        }
        Ok(())
    }
}

/// Token by token, `gathered` is `[heads, length, dim]`.
fn found(setup: &Setup, gathered: [&View; 2], length: u32) -> Result<Vec<Token>, TestCaseError> {
    let values = [gathered[0].to_f32()?, gathered[1].to_f32()?];
    for (part, view) in gathered.into_iter().enumerate() {
        let shape = [setup.heads as usize, length as usize, setup.dims[part] as usize];
        let dtype = if setup.is_low_bit(part) { DType::F32 } else { setup.dtype };
        prop_assert_eq!((view.shape(), view.dtype()), (&shape[..], dtype));
    }
    let row = |part: usize, token: usize| -> Vec<f32> {
        let (dim, heads) = (setup.dims[part] as usize, setup.heads as usize);
        let start = |head: usize| (head * length as usize + token) * dim;
        (0..heads).flat_map(|head| values[part][start(head)..start(head) + dim].to_vec()).collect()
    };
    Ok((0..length as usize).map(|token| [row(0, token), row(1, token)]).collect())
}

/// The same token, read by itself.
fn check_one(
    cache: &mut PagedKvCache,
    setup: &Setup,
    id: u64,
    layer: u32,
    position: u32,
    token: Option<&Token>,
) -> Done {
    let read = cache.read_kv(id, layer, position);
    let Some(token) = token else {
        prop_assert_eq!(code(read), Err(Code::PositionOutOfRange));
        return Ok(());
    };
    let dtype = |part| if setup.is_low_bit(part) { DType::F32 } else { setup.dtype };
    let read = read?;
    prop_assert_eq!((read.key_dtype, read.value_dtype), (dtype(0), dtype(1)));
    prop_assert_eq!((read.key, read.value), (bytes(dtype(0), &token[0]), bytes(dtype(1), &token[1])));
    Ok(())
}

/// The same tokens, into memory at an odd address.
fn check_into(cache: &mut PagedKvCache, id: u64, layer: u32, gathered: [&View; 2]) -> Done {
    let mut rooms = gathered.map(|view| vec![0xaa; view.bytes() + 1]);
    let [k, v] = &mut rooms;
    cache.gather_into(id, layer, &mut k[1..], &mut v[1..])?;
    for (room, view) in rooms.iter().zip(gathered) {
        prop_assert_eq!(&room[1..], &view.to_bytes()?[..]);
    }
    Ok(())
}

fn cache_follows_the_model((setup, calls): (Setup, Vec<Call>)) -> Done {
    with_kernels(setup.kernels, || follow(setup, &calls))?
}

fn follow(setup: Setup, calls: &[Call]) -> Done {
    let mut pair = Pair::new(setup)?;
    for call in calls {
        pair.call(call)?;
        pair.check()?;
    }
    let ids: Vec<u64> = pair.model.sequences.keys().copied().collect();
    for id in ids {
        pair.cache.drop_sequence(id)?;
    }
    prop_assert_eq!((pair.cache.free_count(), pair.cache.staged_count()), (pair.cache.total_count(), 0));
    pair.cache.check_invariants().map_err(TestCaseError::fail)
}

#[test]
fn random_calls_against_a_model() {
    let calls = (setup(), prop::collection::vec(call(), 0..20));
    support::run("paged_bulk", 8_000, calls, cache_follows_the_model);
}
