//! Keys that are computed without a cache equal those of a cache with the same options; and their dependence on options.

use candle_core::Device;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_core::paged::{BlockKey, Extra, PageFormat};
use kvtide_core::{COUNT_MAX, Code};
use kvtide_tensor::{
    DType, Error, PagedKvCache, PagedKvCacheOptions, PagedModelOptions, PoolRoom, PrefixNamer, PromptOptions,
};
use proptest::prelude::*;

use crate::support;

/// All that names depend on, as it is drawn.
#[derive(Clone, Debug, PartialEq)]
struct Options {
    /// Layers of a model and the device of each; none: pages of this many layers of one kind.
    model: Option<Vec<(LayerKind, u32, u32)>>,
    num_layers: u32,
    num_kv_heads: u32,
    dims: [u32; 2],
    block_size: u32,
    dtype: DType,
    formats: [Option<PageFormat>; 2],
    rotated: [bool; 2],
    namespace: String,
    prefix_key: Option<[u8; 32]>,
    salt: Vec<u8>,
    extra: Vec<Extra>,
    tokens: Vec<u32>,
}

impl Options {
    fn pages(&self) -> PagedKvCacheOptions {
        PagedKvCacheOptions {
            block_size: self.block_size,
            num_layers: self.num_layers,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.dims[0],
            value_head_dim: Some(self.dims[1]),
            dtype: self.dtype,
            key_format: self.formats[0],
            value_format: self.formats[1],
            hadamard: self.rotated[0],
            value_hadamard: self.rotated[1],
            namespace: self.namespace.clone(),
            prefix_key: self.prefix_key,
            ..PagedKvCacheOptions::default()
        }
    }

    /// The layers of the model; those of the pages where there is none.
    fn description(&self) -> Result<ModelDescription, Error> {
        let [head_dim, value_head_dim] = self.dims;
        let layer = |kind, heads| LayerDescription { kind, num_kv_heads: heads, head_dim, value_head_dim };
        let Some(layers) = &self.model else {
            let layers = vec![layer(LayerKind::Full, self.num_kv_heads); self.num_layers as usize];
            return Ok(ModelDescription::new(layers)?);
        };
        let devices: Vec<u32> = layers.iter().map(|layer| layer.2).collect();
        let layers = layers.iter().map(|&(kind, heads, _)| layer(kind, heads)).collect();
        Ok(ModelDescription::new(layers)?.split(&devices)?)
    }

    fn of_model(&self, blocks: u32) -> Result<PagedModelOptions, Error> {
        let model = self.description()?;
        let groups = model.groups().len();
        let devices = model.groups().iter().map(|group| group.device as usize + 1).max().unwrap();
        Ok(PagedModelOptions {
            block_size: self.block_size,
            key_format: self.formats[0],
            value_format: self.formats[1],
            hadamard: self.rotated[0],
            value_hadamard: self.rotated[1],
            namespace: self.namespace.clone(),
            prefix_key: self.prefix_key,
            dtype: self.dtype,
            devices: vec![Device::Cpu; devices],
            ..PagedModelOptions::new(model, PoolRoom::Blocks(vec![blocks; groups]))
        })
    }

    fn prompt(&self) -> PromptOptions<'_> {
        PromptOptions { salt: &self.salt, extra: &self.extra, ..PromptOptions::default() }
    }

    /// The keys that a cache gives the prompt.
    fn cached(&self) -> Result<Vec<BlockKey>, Error> {
        match self.model {
            Some(_) => PagedKvCache::of_model(self.of_model(2)?)?.keys(&self.tokens, self.prompt()),
            None => PagedKvCache::new(PagedKvCacheOptions { capacity: 2, ..self.pages() })?
                .keys(&self.tokens, self.prompt()),
        }
    }

    fn namer(&self) -> Result<PrefixNamer, Error> {
        match self.model {
            // More blocks than any memory has.
            Some(_) => PrefixNamer::of_model(&PagedModelOptions { devices: vec![], ..self.of_model(COUNT_MAX)? }),
            None => PrefixNamer::of_pages(&PagedKvCacheOptions { capacity: COUNT_MAX, ..self.pages() }),
        }
    }

    fn named(&self) -> Result<Vec<BlockKey>, Error> {
        self.namer()?.keys(&self.tokens, self.prompt())
    }

    /// The documented inputs of keys, for the full blocks: other inputs give other keys.
    fn ingredients(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let model = self.description().unwrap();
        let sizes = |group: &kvtide_core::model::LayerGroup| {
            [group.layers.len() as u32, group.num_kv_heads, group.head_dim, group.value_head_dim]
        };
        let groups: Vec<_> = model.groups().iter().map(sizes).collect();
        let own = self.dtype.page_format();
        let formats = self.formats.map(|format| format.unwrap_or(own));
        let whole = self.tokens.len() as u32 / self.block_size * self.block_size;
        let tokens = self.tokens[..whole as usize].to_vec();
        let mut extra: Vec<_> = self.extra.iter().filter(|extra| extra.start < whole).cloned().collect();
        extra.sort_by_key(|extra| (extra.start, extra.end, extra.key.clone()));
        let form = (self.block_size, self.dtype, formats, self.rotated, groups);
        (form, self.namespace.clone(), self.prefix_key, self.salt.clone(), extra, tokens)
    }
}

fn kinds() -> impl Strategy<Value = Vec<(LayerKind, u32, u32)>> {
    let window = prop::sample::select(vec![4, 8]);
    let kind = prop_oneof![
        Just(LayerKind::Full),
        window.prop_map(|window| LayerKind::Sliding { window, sinks: 0 }),
        Just(LayerKind::SharedWith(0)),
    ];
    proptest::collection::vec((kind, 1u32..3, 0u32..2), 1..5)
}

fn options() -> impl Strategy<Value = Options> {
    let format = || proptest::option::weighted(0.3, prop::sample::select(PageFormat::ALL.to_vec()));
    let dtype = prop::sample::select(vec![DType::F32, DType::F16]);
    let pages = (proptest::option::of(kinds()), 1u32..3, 1u32..3, prop::array::uniform2(1u32..4), 1u32..4, dtype);
    let extra = (0u32..6, 1u32..4, 0u8..2).prop_map(|(start, length, key)| Extra {
        start,
        end: start + length,
        key: vec![key],
    });
    let prompt = (
        prop::sample::select(vec![vec![], b"a".to_vec(), b"b".to_vec(), b"ab".to_vec()]),
        proptest::collection::vec(extra, 0..2),
        proptest::collection::vec(0u32..3, 3..8),
    );
    let named = (
        [format(), format()],
        any::<[bool; 2]>(),
        prop::sample::select(vec!["", "a", "b", "ab"]),
        prop::sample::select(vec![None, Some([1; 32]), Some([2; 32])]),
    );
    (pages, named, prompt).prop_map(|(pages, (formats, rotated, namespace, prefix_key), (salt, extra, tokens))| {
        Options {
            model: pages.0,
            num_layers: pages.1,
            num_kv_heads: pages.2,
            dims: pages.3,
            block_size: pages.4,
            dtype: pages.5,
            formats,
            rotated: [0, 1].map(|part| rotated[part] && formats[part].is_some_and(PageFormat::is_low_bit)),
            namespace: namespace.to_owned(),
            prefix_key,
            salt,
            extra,
            tokens,
        }
    })
}

/// Some options, and the same but for one of them.
fn pairs() -> impl Strategy<Value = [Options; 2]> {
    (options(), options(), 0u32..15).prop_map(|(one, drawn, changed)| {
        let mut other = one.clone();
        match changed {
            0 => other.model = drawn.model,
            1 => other.num_layers = drawn.num_layers,
            2 => other.num_kv_heads = drawn.num_kv_heads,
            3 => other.dims = drawn.dims,
            4 => other.block_size = drawn.block_size,
            5 => other.dtype = drawn.dtype,
            6 => other.formats = drawn.formats,
            7 => other.rotated[0] = drawn.rotated[0],
            8 => other.namespace = drawn.namespace,
            9 => other.prefix_key = drawn.prefix_key,
            10 => other.salt = drawn.salt,
            11 => other.extra = drawn.extra,
            12 => other.tokens = drawn.tokens,
            13 => other.rotated[1] = drawn.rotated[1],
            _ => {}
        }
        [one, other]
    })
}

#[test]
fn a_namer_names_as_the_cache_of_its_options_and_refuses_what_it_refuses() {
    support::run("names", 3_000, options(), |options| {
        let [named, cached] = [options.named(), options.cached()];
        match (named, cached) {
            (Ok(named), Ok(cached)) => {
                prop_assert_eq!(named.len(), options.tokens.len() / options.block_size as usize);
                prop_assert_eq!(named, cached);
            }
            (Err(named), Err(cached)) => prop_assert_eq!(named.to_string(), cached.to_string()),
            (named, cached) => prop_assert!(false, "{:?} and {:?}", named, cached),
        }
        Ok(())
    });
}

#[test]
fn names_are_alike_where_all_that_is_in_them_is_and_nowhere_else() {
    support::run("what is in names", 10_000, pairs(), |pair| {
        let [Ok(one), Ok(other)] = [pair[0].named(), pair[1].named()] else { return Ok(()) };
        if !one.is_empty() && !other.is_empty() {
            let alike = pair[0].ingredients() == pair[1].ingredients();
            prop_assert_eq!(one.last() == other.last(), alike, "{:?}", pair);
        }
        Ok(())
    });
}

#[test]
fn names_are_a_format() {
    let options = PagedKvCacheOptions {
        block_size: 2,
        num_layers: 3,
        num_kv_heads: 2,
        head_dim: 4,
        namespace: "a model".to_owned(),
        prefix_key: Some(std::array::from_fn(|index| index as u8)),
        ..PagedKvCacheOptions::default()
    };
    let keys = PrefixNamer::of_pages(&options)
        .unwrap()
        .keys(&[1, 2, 3], PromptOptions { salt: b"salt", ..PromptOptions::default() });
    let hex: String = keys.unwrap()[0].0.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "777418b74e294e9a0caca65a1cd138a2f1e114c798c3a3f85a2075a0ace75abe");
}

#[test]
fn what_has_no_names_is_refused() {
    let bad = |options: PagedKvCacheOptions| PrefixNamer::of_pages(&options).unwrap_err();
    let default = PagedKvCacheOptions::default;
    for (error, argument) in [
        (bad(PagedKvCacheOptions { block_size: 0, ..default() }), "blockSize"),
        (bad(PagedKvCacheOptions { head_dim: 0, ..default() }), "headDim"),
        (bad(PagedKvCacheOptions { num_layers: 0, ..default() }), "numLayers"),
        (bad(PagedKvCacheOptions { hadamard: true, ..default() }), "hadamard"),
        (bad(PagedKvCacheOptions { value_hadamard: true, ..default() }), "valueHadamard"),
        (bad(PagedKvCacheOptions { key_format: Some(PageFormat::U8), ..default() }), "keyFormat"),
    ] {
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().starts_with(argument), "{error}");
    }
    let namer = PrefixNamer::of_pages(&default()).unwrap();
    let extra = [Extra { start: 1, end: 1, key: vec![] }];
    assert_eq!(
        namer.keys(&[1], PromptOptions { extra: &extra, ..PromptOptions::default() }).unwrap_err().code(),
        Code::InvalidArgument
    );
}
