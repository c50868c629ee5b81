//! Caches of several kinds, and what goes into them: keys and values that follow from a token, its position and its layer.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedModelOptions, PoolRoom, PromptOptions, Source, Tokens};

/// The key under which all of them name prompts.
pub const KEY: [u8; 32] = [9; 32];

/// What a cache is made with.
#[derive(Clone, Debug)]
pub struct Form {
    pub layers: Vec<LayerDescription>,
    pub block_size: u32,
    pub dtype: DType,
    pub formats: [PageFormat; 2],
    pub blocks: u32,
    pub prefix_key: Option<[u8; 32]>,
}

pub fn full() -> LayerDescription {
    LayerDescription { value_head_dim: 8, ..LayerDescription::full(2, 8) }
}

/// Some layers that keep all, slide, and share; in several formats.
pub fn forms() -> Vec<(&'static str, Form)> {
    let form = |layers: Vec<LayerDescription>, dtype, formats| Form {
        layers,
        block_size: 4,
        dtype,
        formats,
        blocks: 64,
        prefix_key: Some(KEY),
    };
    let sliding = full().with_kind(LayerKind::Sliding { window: 6, sinks: 2 });
    let unequal = LayerDescription { value_head_dim: 4, ..full() };
    let hybrid = vec![sliding, full(), full().with_kind(LayerKind::SharedWith(1)), sliding];
    let [f32, f16, q8, q4] = [PageFormat::F32, PageFormat::F16, PageFormat::Q8, PageFormat::Q4];
    vec![
        ("f32", form(vec![full(); 2], DType::F32, [f32, f32])),
        ("halves of floats", form(vec![full(); 2], DType::F32, [f16, f16])),
        ("f16", form(vec![full()], DType::F16, [f16, f16])),
        ("unequal", form(vec![unequal; 2], DType::F32, [f32, f32])),
        ("q8", form(vec![full(); 2], DType::F32, [q8, q8])),
        ("q4 and floats", form(vec![full(); 2], DType::F32, [q4, f32])),
        ("sliding", form(vec![sliding], DType::F32, [f32, f32])),
        ("hybrid", form(hybrid.clone(), DType::F32, [f32, f32])),
        ("hybrid, q8", form(hybrid, DType::F32, [q8, q8])),
    ]
}

impl Form {
    pub fn cache(&self) -> PagedKvCache {
        let model = ModelDescription::new(self.layers.clone()).unwrap();
        let room = PoolRoom::Blocks(vec![self.blocks; model.groups().len()]);
        let [key_format, value_format] = self.formats.map(Some);
        PagedKvCache::of_model(PagedModelOptions {
            block_size: self.block_size,
            dtype: self.dtype,
            key_format,
            value_format,
            prefix_key: self.prefix_key,
            namespace: "a model".to_owned(),
            ..PagedModelOptions::new(model, room)
        })
        .unwrap()
    }
}

/// Appends these tokens, whose rows follow from them.
pub fn append(cache: &mut PagedKvCache, sequence: u64, tokens: &[u32], are_known: bool) -> kvtide_tensor::Result<()> {
    let start = cache.sequence_length(sequence);
    let (dtype, model) = (cache.dtype(), cache.model().clone());
    let own = (0..).zip(model.layers()).filter(|(_, of)| !matches!(of.kind, LayerKind::SharedWith(_)));
    let rows: Vec<[(Vec<u8>, [usize; 3]); 2]> = own
        .map(|(layer, of)| {
            [of.head_dim, of.value_head_dim].map(|dim| {
                let mut bytes = Vec::new();
                for head in 0..of.num_kv_heads {
                    for (position, token) in (start..).zip(tokens) {
                        for element in 0..dim {
                            bytes.extend(number(dtype, [layer, head, position, *token, element, dim]));
                        }
                    }
                }
                (bytes, [of.num_kv_heads as usize, tokens.len(), dim as usize])
            })
        })
        .collect();
    let source = |(bytes, shape): &(Vec<u8>, [usize; 3])| -> Source<'_> {
        // SAFETY is not needed: these outlive the call.
        HostTensor::new("k", Box::leak(bytes.clone().into_boxed_slice()), dtype, shape).unwrap().into()
    };
    let layers: Vec<[Source<'_>; 2]> = rows.iter().map(|[k, v]| [source(k), source(v)]).collect();
    let ids = are_known.then_some(tokens);
    cache.append_to(sequence, None, Tokens { ids, ..Tokens::of_layers(&layers) })
}

fn number(dtype: DType, of: [u32; 6]) -> Vec<u8> {
    let mixed = of.iter().fold(0x9e37_79b9u32, |mixed, part| (mixed ^ part).wrapping_mul(0x85eb_ca6b).rotate_left(13));
    match dtype {
        // Halves of small numbers: any 14 bits.
        DType::F16 => ((mixed >> 18) as u16).to_ne_bytes().to_vec(),
        _ => ((mixed >> 8) as f32 / 8_388_608. - 1.).to_ne_bytes().to_vec(),
    }
}

/// All that a sequence shows: lengths, and the bytes of each layer.
pub fn shown(cache: &mut PagedKvCache, sequence: u64) -> (u32, u32, Vec<[Vec<u8>; 2]>) {
    let layers = cache.model().layers().len() as u32;
    let read = |cache: &mut PagedKvCache, layer| {
        let kv = cache.gather(sequence, layer).unwrap();
        [kv.k.to_bytes().unwrap(), kv.v.to_bytes().unwrap()]
    };
    let bytes = (0..layers).map(|layer| read(cache, layer)).collect();
    (cache.sequence_length(sequence), cache.retained_length(sequence), bytes)
}

/// How much of a prompt is found.
pub fn found(cache: &mut PagedKvCache, tokens: &[u32], salt: &[u8]) -> u32 {
    let options = PromptOptions { salt, ..PromptOptions::default() };
    cache.find_prefix(tokens, options, false).unwrap().length()
}

/// A generator of numbers, the same for one seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}
