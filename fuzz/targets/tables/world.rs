//! A paged cache, and of each sequence what attention needs to know: its length and its drafts.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_core::paged::PageFormat;
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{
    BeginOptions, DType, Error, HostTensor, PagedKvCache, PagedModelOptions, PagedSnapshot, PoolRoom, Tokens,
};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use crate::numbers::{Numbers, to_bytes};

/// The most tokens of a sequence: beyond 256, sequences that begin alike share the work on their beginning.
const TOKENS_MAX: u32 = 400;

/// The options of a cache.
#[derive(Clone, Debug)]
pub struct Shape {
    pub block_size: u32,
    pub layer: LayerDescription,
    pub dtype: DType,
    pub formats: [Option<PageFormat>; 2],
    /// K, and V, are rotated before they are quantised.
    pub rotated: [bool; 2],
    pub blocks: u32,
    pub seed: u64,
}

impl Shape {
    pub fn draw(input: &mut Unstructured<'_>) -> Result<Self> {
        let head_dim = *input.choose(&[1, 4, 5, 16, 32, 40])?;
        let value_head_dim = *input.choose(&[1, 4, 8, 16, 33])?;
        let num_kv_heads = input.int_in_range(1..=3)?;
        let window = LayerKind::Sliding { window: input.int_in_range(1..=40)?, sinks: input.int_in_range(0..=5)? };
        let kind = if input.ratio(1, 3)? { window } else { LayerKind::Full };
        let dtype = *input.choose(&[DType::F32, DType::F32, DType::F16, DType::BF16])?;
        let format = |input: &mut Unstructured<'_>| {
            use PageFormat::{BF16, F8E4M3, F16, Q4, Q8};
            let other = if dtype == DType::F32 { [Some(F16), Some(BF16)] } else { [None; 2] };
            input.choose(&[None, None, Some(F8E4M3), Some(Q8), Some(Q4), other[0], other[1]]).copied()
        };
        let formats = [format(input)?, format(input)?];
        let mut is_rotated = |part: usize| -> Result<bool> {
            Ok(formats[part].is_some_and(PageFormat::is_low_bit) && input.arbitrary()?)
        };
        let rotated = [is_rotated(0)?, is_rotated(1)?];
        Ok(Shape {
            block_size: *input.choose(&[1, 2, 3, 4, 16])?,
            layer: LayerDescription { kind, num_kv_heads, head_dim, value_head_dim },
            dtype,
            formats,
            rotated,
            blocks: input.int_in_range(1..=60)?,
            seed: input.arbitrary()?,
        })
    }

    /// The window and the sinks of the layer.
    pub fn window(&self) -> Option<(u32, u32)> {
        match self.layer.kind {
            LayerKind::Sliding { window, sinks } => Some((window, sinks)),
            _ => None,
        }
    }

    fn cache(&self) -> PagedKvCache {
        // The layer that is read stands behind one that only takes place.
        let model = ModelDescription::new(vec![self.layer; 2]).expect("two layers");
        let [key_format, value_format] = self.formats;
        PagedKvCache::of_model(PagedModelOptions {
            block_size: self.block_size,
            dtype: self.dtype,
            key_format,
            value_format,
            hadamard: self.rotated[0],
            value_hadamard: self.rotated[1],
            ..PagedModelOptions::new(model, PoolRoom::Blocks(vec![self.blocks]))
        })
        .expect("a cache")
    }
}

/// A sequence: its length, and the parents of the nodes of its open transaction.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub id: u64,
    pub length: u32,
    pub draft: Option<(TransactionId, Vec<i32>)>,
    /// It was forked from a sequence with drafted tokens.
    is_of_draft: bool,
}

impl Sequence {
    /// True if some of its full pages may exist as floats too.
    pub fn has_floats(&self) -> bool {
        self.is_of_draft || self.draft.as_ref().is_some_and(|(_, nodes)| !nodes.is_empty())
    }
}

pub struct World {
    pub shape: Shape,
    pub cache: PagedKvCache,
    pub sequences: Vec<Sequence>,
    /// Each with the length of its sequence, and true if that was forked from a draft.
    snapshots: Vec<(PagedSnapshot, u32, bool)>,
    numbers: Numbers,
}

/// True unless blocks or tokens were lacking, or have left a window. Panics at any other refusal.
fn is_done<T>(done: std::result::Result<T, Error>) -> Option<T> {
    done.map_err(|error| {
        let is_expected = matches!(error.code(), Code::OutOfBlocks | Code::CannotRollBack);
        assert!(is_expected, "{error}");
    })
    .ok()
}

impl World {
    pub fn new(shape: Shape) -> Self {
        let (cache, numbers) = (shape.cache(), Numbers::new(shape.seed));
        World { shape, cache, sequences: Vec::new(), snapshots: Vec::new(), numbers }
    }

    /// Makes one call.
    pub fn call(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        if self.sequences.is_empty() || (self.sequences.len() < 6 && input.ratio(1, 8)?) {
            let id = self.cache.create_sequence().expect("a sequence");
            self.sequences.push(Sequence { id, length: 0, draft: None, is_of_draft: false });
        }
        let at = input.choose_index(self.sequences.len())?;
        match input.int_in_range(0..=9)? {
            0..=2 => self.append(at, input)?,
            3 => self.fork(at),
            4 => self.truncate(at, input)?,
            5 if self.sequences[at].draft.is_none() => {
                let begun = self.cache.begin(self.sequences[at].id, None, BeginOptions::default());
                self.sequences[at].draft = is_done(begun).map(|draft| (draft, Vec::new()));
            }
            5 | 6 => self.end_draft(at, input)?,
            7 => {
                let of = self.sequences.swap_remove(at);
                self.cache.drop_sequence(of.id).expect("a sequence");
            }
            8 => {
                let of = &self.sequences[at];
                if let (None, Some(held)) = (&of.draft, is_done(self.cache.snapshot(of.id))) {
                    self.snapshots.push((held, of.length, of.is_of_draft));
                }
            }
            _ => self.restore(at, input)?,
        }
        self.cache.check_invariants().expect("a sound cache");
        Ok(())
    }

    fn append(&mut self, at: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let World { shape, cache, sequences, numbers, .. } = self;
        let most = if sequences[at].draft.is_some() || input.ratio(7, 8)? { 9 } else { 300 };
        let count = input.int_in_range(0..=most)?.min(TOKENS_MAX.saturating_sub(sequences[at].length));
        let of = &mut sequences[at];
        let parents = match &of.draft {
            Some((_, nodes)) if input.arbitrary()? => {
                let first = nodes.len() as i32;
                Some((0..count as i32).map(|node| input.int_in_range(-1..=first + node - 1)).collect::<Result<_>>()?)
            }
            _ => None::<Vec<i32>>,
        };
        let heads = shape.layer.num_kv_heads as usize;
        let dims = [shape.layer.head_dim, shape.layer.value_head_dim].map(|dim| dim as usize);
        let rows = dims.map(|dim| to_bytes(shape.dtype, &numbers.take(heads * count as usize * dim)));
        fn host<'a>(bytes: &'a [u8], shape: &Shape, sizes: [usize; 3]) -> Source<'a> {
            HostTensor::new("rows", bytes, shape.dtype, &sizes).expect("as many bytes").into()
        }
        let layer = || [0, 1].map(|part| host(&rows[part], shape, [heads, count as usize, dims[part]]));
        let layers = [layer(), layer()];
        let tokens = Tokens { parents: parents.as_deref(), ..Tokens::of_layers(&layers) };
        if is_done(cache.append_to(of.id, of.draft.as_ref().map(|draft| draft.0), tokens)).is_some() {
            of.length += count;
            if let Some((_, nodes)) = &mut of.draft {
                let chain = nodes.len() as i32 - 1..;
                nodes.extend(parents.unwrap_or_else(|| chain.take(count as usize).collect()));
            }
        }
        Ok(())
    }

    fn fork(&mut self, at: usize) {
        let Sequence { id, length, .. } = self.sequences[at];
        let is_of_draft = self.sequences[at].has_floats();
        if self.sequences.len() < 6
            && let Some(id) = is_done(self.cache.fork(id))
        {
            self.sequences.push(Sequence { id, length, draft: None, is_of_draft });
        }
    }

    fn truncate(&mut self, at: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let of = &mut self.sequences[at];
        let length = input.int_in_range(0..=of.length)?;
        if of.draft.is_none() && is_done(self.cache.truncate(of.id, length)).is_some() {
            of.length = length;
        }
        Ok(())
    }

    fn restore(&mut self, at: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let of = &mut self.sequences[at];
        if of.draft.is_some() || self.snapshots.is_empty() {
            return Ok(());
        }
        let place = input.choose_index(self.snapshots.len())?;
        let (held, length, is_of_draft) = &self.snapshots[place];
        if is_done(self.cache.restore(of.id, held)).is_some() {
            (of.length, of.is_of_draft) = (*length, *is_of_draft);
        }
        if input.arbitrary()? {
            self.snapshots.swap_remove(place);
        }
        Ok(())
    }

    /// Commits some nodes, a path of them, or none.
    fn end_draft(&mut self, at: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let of = &mut self.sequences[at];
        let Some((draft, nodes)) = of.draft.take() else { return Ok(()) };
        let before = of.length - nodes.len() as u32;
        of.length = match input.int_in_range(0..=2)? {
            0 => {
                self.cache.rollback(of.id, draft);
                before
            }
            1 => {
                let kept = input.int_in_range(0..=nodes.len() as u32)?;
                self.cache.commit(of.id, draft, Some(kept.into())).expect("some of its tokens");
                before + kept
            }
            _ => {
                let mut path = Vec::new();
                let mut node = input.int_in_range(0..=nodes.len())? as i32 - 1;
                while node >= 0 {
                    path.insert(0, node as u32);
                    node = nodes[node as usize];
                }
                if is_done(self.cache.commit_path(of.id, draft, &path)).is_none() {
                    of.draft = Some((draft, nodes));
                    return Ok(());
                }
                before + path.len() as u32
            }
        };
        Ok(())
    }
}
