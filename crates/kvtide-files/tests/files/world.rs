//! Caches of several kinds, and their content: keys and values that are computed from a token, its position and its
//! layer.

use kvtide_core::TransactionId;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription, StateTensor};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedModelOptions, PoolRoom, PromptOptions, Tokens};

/// The key under which all of them make block keys.
pub const KEY: [u8; 32] = [9; 32];

/// The options of a cache.
#[derive(Clone, Debug)]
pub struct Form {
    pub layers: Vec<LayerDescription>,
    /// The states of its layers.
    pub states: Vec<StateTensor>,
    pub block_size: u32,
    pub dtype: DType,
    pub formats: [PageFormat; 2],
    /// K, and V, are rotated before they are quantised.
    pub rotated: [bool; 2],
    pub blocks: u32,
    pub prefix_key: Option<[u8; 32]>,
}

pub fn full() -> LayerDescription {
    LayerDescription { value_head_dim: 8, ..LayerDescription::full(2, 8) }
}

/// Returns forms with full, sliding and shared layers, in several formats.
pub fn forms() -> Vec<(&'static str, Form)> {
    let form = |layers: Vec<LayerDescription>, dtype, formats| Form {
        layers,
        states: Vec::new(),
        block_size: 4,
        dtype,
        formats,
        rotated: [false; 2],
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
        ("hybrid, q8", form(hybrid.clone(), DType::F32, [q8, q8])),
        ("bf16", form(vec![full(); 2], DType::BF16, [PageFormat::BF16; 2])),
        ("f8", form(vec![full(); 2], DType::F32, [PageFormat::F8E4M3; 2])),
        ("q4", form(vec![full(); 2], DType::F32, [q4, q4])),
        ("q4, V rotated", Form { rotated: [false, true], ..form(vec![full(); 2], DType::F32, [q4, q4]) }),
        ("f16 and q8", form(vec![full(); 2], DType::F32, [f16, q8])),
        ("hybrid, f8 and q4", form(hybrid, DType::F32, [PageFormat::F8E4M3, q4])),
    ]
}

impl Form {
    pub fn cache(&self) -> PagedKvCache {
        let model = ModelDescription::new(self.layers.clone()).unwrap();
        let model = if self.states.is_empty() { model } else { model.with_states(self.states.clone()).unwrap() };
        let room = PoolRoom::Blocks(vec![self.blocks; model.groups().len()]);
        let [key_format, value_format] = self.formats.map(Some);
        PagedKvCache::of_model(PagedModelOptions {
            block_size: self.block_size,
            dtype: self.dtype,
            key_format,
            value_format,
            hadamard: self.rotated[0],
            value_hadamard: self.rotated[1],
            prefix_key: self.prefix_key,
            namespace: "a model".to_owned(),
            ..PagedModelOptions::new(model, room)
        })
        .unwrap()
    }
}

/// Appends these tokens, with rows computed from them.
pub fn append(cache: &mut PagedKvCache, sequence: u64, tokens: &[u32], are_known: bool) -> kvtide_tensor::Result<()> {
    append_draft(cache, (sequence, None), tokens, are_known, None)
}

/// As [`append`], in a transaction, possibly as nodes of a tree.
pub fn append_draft(
    cache: &mut PagedKvCache,
    (sequence, draft): (u64, Option<TransactionId>),
    tokens: &[u32],
    are_known: bool,
    parents: Option<&[i32]>,
) -> kvtide_tensor::Result<()> {
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
    fn source<'a>((bytes, shape): &'a (Vec<u8>, [usize; 3]), dtype: DType) -> Source<'a> {
        HostTensor::new("k", bytes, dtype, shape).unwrap().into()
    }
    let layers: Vec<[Source<'_>; 2]> = rows.iter().map(|[k, v]| [source(k, dtype), source(v, dtype)]).collect();
    let ids = are_known.then_some(tokens);
    cache.append_to(sequence, draft, Tokens { ids, parents, ..Tokens::of_layers(&layers) })
}

/// Returns an element of a row, for its layer, head, position, token, index in the row and length of the row.
pub fn number(dtype: DType, of: [u32; 6]) -> Vec<u8> {
    // Each part is mixed into all bits, so that no two tokens have the same row, even of halves.
    let mixed = of.iter().fold(0u64, |mixed, part| {
        let mixed = (mixed ^ u64::from(*part)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    });
    match dtype {
        // Halves of small numbers: any 14 bits.
        DType::F16 => ((mixed >> 50) as u16).to_ne_bytes().to_vec(),
        DType::BF16 => ((mixed >> 50) as u16).to_ne_bytes().to_vec(),
        _ => ((mixed >> 40) as f32 / 8_388_608. - 1.).to_ne_bytes().to_vec(),
    }
}

/// Returns the lengths of a sequence, and the bytes of each layer.
pub fn shown(cache: &mut PagedKvCache, sequence: u64) -> (u32, u32, Vec<[Vec<u8>; 2]>) {
    let layers = cache.model().layers().len() as u32;
    let read = |cache: &mut PagedKvCache, layer| {
        let kv = cache.gather(sequence, layer).unwrap();
        [kv.k.to_bytes().unwrap(), kv.v.to_bytes().unwrap()]
    };
    let bytes = (0..layers).map(|layer| read(cache, layer)).collect();
    (cache.sequence_length(sequence), cache.retained_length(sequence), bytes)
}

/// Returns the length of a prompt's cached prefix.
pub fn found(cache: &mut PagedKvCache, tokens: &[u32], salt: &[u8]) -> u32 {
    let options = PromptOptions { salt, ..PromptOptions::default() };
    cache.find_prefix(tokens, options, false).unwrap().length()
}

/// Returns the seed for random calls: `KVTIDE_SEED`, or the time.
pub fn seed() -> u64 {
    let time = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    std::env::var("KVTIDE_SEED").map_or_else(|_| time(), |text| text.parse().expect("a whole number"))
}

/// A generator of random numbers that repeats for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}
