//! Compares calls on bytes with calls that use a device's kernels: they must give the same pages, bit for bit, and the same
//! rows.

use candle_core::Device;
use kvtide_core::paged::{Append, KeyOrValue, PageFormat, Writer};

use crate::base::dtype::DType;
use crate::device::form::{Kernels, with_kernels};
use crate::paged::{PageGroup, PagedKvCacheOptions};
use crate::tensor::host::{HostTensor, SequenceLayout};
use crate::tensor::source::Source;

const LAYERS: usize = 2;
const HEADS: usize = 3;
const BLOCK: u32 = 4;

/// The dtypes, formats and sizes of a cache.
#[derive(Clone, Copy, Debug)]
struct Form {
    dtype: DType,
    formats: [Option<PageFormat>; 2],
    dims: [u32; 2],
    rotated: [bool; 2],
}

impl Form {
    /// Every dtype with every format, with different formats for K and V.
    fn all() -> impl Iterator<Item = Form> {
        let low = [PageFormat::F8E4M3, PageFormat::Q8, PageFormat::Q4].map(Some);
        let formats = [[None, None], [low[0], low[2]], [low[1], low[1]], [low[2], None], [None, low[0]]];
        let dims = [[32, 32], [6, 5], [64, 36]];
        [DType::F32, DType::F16, DType::BF16].into_iter().flat_map(move |dtype| {
            formats.into_iter().flat_map(move |formats| {
                dims.into_iter().flat_map(move |dims| {
                    let rotations = [[false; 2], [true, false], [false, true], [true; 2]].into_iter();
                    let possible =
                        move |&rotated: &[bool; 2]| (0..2).all(|part| !rotated[part] || formats[part].is_some());
                    rotations.filter(possible).map(move |rotated| Form { dtype, formats, dims, rotated })
                })
            })
        })
    }

    fn cache(&self) -> PageGroup {
        PageGroup::new(PagedKvCacheOptions {
            capacity: 16,
            block_size: BLOCK,
            num_layers: LAYERS as u32,
            num_kv_heads: HEADS as u32,
            head_dim: self.dims[0],
            value_head_dim: Some(self.dims[1]),
            dtype: self.dtype,
            key_format: self.formats[0],
            value_format: self.formats[1],
            hadamard: self.rotated[0],
            value_hadamard: self.rotated[1],
            ..Default::default()
        })
        .unwrap()
    }

    /// Elements of this many layers and tokens, different for each seed, also of other magnitudes, up to the largest f16.
    fn values(&self, part: usize, layers: usize, tokens: usize, seed: usize) -> Vec<u8> {
        let magnitude = [1., 1., 5400., 1e-6, 1e-30, 1e30][seed % 6];
        let value = |at: usize| (((at * 37 + seed * 101 + part * 13) % 211) as f32 * 0.11 - 11.) * magnitude;
        let floats: Vec<f32> = (0..layers * HEADS * tokens * self.dims[part] as usize).map(value).collect();
        let mut bytes = vec![0; floats.len() * self.dtype.bytes()];
        crate::kernels::quantise::from_f32(self.dtype, &floats, &mut bytes);
        bytes
    }

    fn host<'a>(&self, part: usize, layers: usize, bytes: &'a [u8], layout: SequenceLayout) -> HostTensor<'a> {
        let dim = self.dims[part] as usize;
        let tokens = bytes.len() / (layers * HEADS * dim * self.dtype.bytes());
        let shape = match layout {
            SequenceLayout::Bhsd => [layers, HEADS, tokens, dim],
            SequenceLayout::Bshd => [layers, tokens, HEADS, dim],
        };
        HostTensor::new("k", bytes, self.dtype, &shape).unwrap().with_layout("k", layout).unwrap()
    }

    /// Bulk and single writes, shared blocks, and rewrites of quantised pages; returns everything that can be read
    /// afterwards.
    fn run(&self) -> Vec<Vec<u8>> {
        let mut cache = self.cache();
        let [one, other] = [0; 2].map(|_| cache.create_sequence(Default::default()).unwrap());
        let append = |cache: &mut PageGroup, sequences: &[u64], offsets: &[u32], seed, layout| {
            let tokens = *offsets.last().unwrap() as usize;
            let [k, v] = [0, 1].map(|part| self.values(part, LAYERS, tokens, seed));
            let [k, v] = [(0, &k), (1, &v)].map(|(part, bytes)| self.host(part, LAYERS, bytes, layout));
            let append = Append { sequences, offsets: Some(offsets), parents: None, writer: Writer::Direct };
            cache.append_rows(&append, [k.into(), v.into()], None).unwrap();
        };
        append(&mut cache, &[one, other], &[0, 10, 13], 1, SequenceLayout::Bhsd);
        append(&mut cache, &[one, other], &[0, 1, 2], 2, SequenceLayout::Bshd);
        let fork = cache.fork(one).unwrap();
        append(&mut cache, &[fork], &[0, 7], 3, SequenceLayout::Bhsd);
        // One candle tensor next to memory of the caller, into a quantised page, and after the end with a gap.
        for (position, tokens, seed) in [(2, 1, 4), (21, 2, 5)] {
            let [k, v] = [0, 1].map(|part| self.values(part, 1, tokens, seed));
            let shape = [1, HEADS, tokens, self.dims[0] as usize];
            let k = self.dtype.upload(&k, &shape, &Device::Cpu).unwrap();
            let v = self.host(1, 1, &v, SequenceLayout::Bhsd);
            cache.write_tokens(one, 1, position, [Source::Tensor(&k), v.into()]).unwrap();
        }
        cache.drop_sequence(other).unwrap();
        let last = cache.create_sequence(Default::default()).unwrap();
        append(&mut cache, &[last], &[0, 6], 6, SequenceLayout::Bhsd);
        let mut seen = Vec::new();
        for sequence in [one, fork, last] {
            for layer in 0..LAYERS as u32 {
                let kv = cache.gather(sequence, layer).unwrap();
                seen.extend([kv.k.to_bytes().unwrap(), kv.v.to_bytes().unwrap()]);
                let [mut key, mut value] = KeyOrValue::BOTH.map(|part| vec![0; cache.shape().out_bytes(part, 1)]);
                cache.read_kv_into(sequence, layer, 2, &mut key, &mut value).unwrap();
                seen.extend([key, value]);
                let _ = cache.pages(layer, &[sequence]).unwrap();
            }
        }
        let mut all = vec![0; cache.slab().bytes() as usize];
        cache.slab().fetch(0, &mut all).unwrap();
        seen.push(all);
        seen
    }
}

#[test]
fn kernels_leave_the_same_pages_and_show_the_same_rows() {
    for form in Form::all() {
        let [bytes, launched] = [Kernels::Emulated, Kernels::supported().last().unwrap()]
            .map(|kernels| with_kernels(kernels, || form.run()).unwrap());
        assert!(bytes == launched, "{form:?}: {:?}", bytes.iter().zip(&launched).position(|(a, b)| a != b));
    }
}
