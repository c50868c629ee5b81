//! The [`Cache`] of a model on contiguous caches, one per layer.
//!
//! All rows advance together; a shorter row is padded on the left, and `starts` masks its padding. Sliding layers keep their
//! window only, or all tokens, with the window applied by attention alone.

use candle_core::{Device, Tensor};
use kvtide_core::model::{LayerKind, ModelDescription};
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::{DType, Kv, KvCache, KvCacheOptions, RotatingCacheOptions, RotatingKvCache};

use crate::cache::Cache;
use crate::error::{Error, Result};

/// The cache of a layer.
#[derive(Debug)]
enum Layer {
    Everything(KvCache),
    Window(RotatingKvCache),
    /// The cache of another layer, by its index.
    Shared(usize),
}

/// A cache for each layer of a model.
#[derive(Debug)]
pub struct Layers {
    model: ModelDescription,
    layers: Vec<Layer>,
    /// The first slot of each row that is not padding.
    starts: Vec<i32>,
    length: u32,
    /// The keys and values that each layer of an open step attends to, and the step's tokens per row.
    step: Option<(Vec<Option<Kv>>, u32)>,
}

impl Layers {
    /// Makes empty caches with one row for each element of `paddings`, the row's number of padding tokens. With `windows`,
    /// sliding layers drop tokens that left their window.
    pub fn new(model: &ModelDescription, paddings: &[u32], windows: bool) -> Result<Self> {
        let rows = paddings.len() as u32;
        let layer = |of: &kvtide_core::model::LayerDescription| {
            Ok(match of.kind {
                LayerKind::SharedWith(source) => Layer::Shared(source as usize),
                LayerKind::State | LayerKind::Empty => {
                    return Err(Error::config("model", "a layer without keys and values", "attention in each layer"));
                }
                LayerKind::Sliding { window, sinks } if windows => {
                    let options = RotatingCacheOptions { max_seq_len: window, sinks, ..Default::default() };
                    Layer::Window(RotatingKvCache::new(options)?)
                }
                _ => Layer::Everything(KvCache::new(KvCacheOptions {
                    batch_size: rows,
                    num_kv_heads: of.num_kv_heads,
                    head_dim: of.head_dim,
                    dtype: DType::F32,
                    device: Device::Cpu,
                    ..Default::default()
                })?),
            })
        };
        let layers = model.layers().iter().map(layer).collect::<Result<_>>()?;
        let starts = paddings.iter().map(|&padding| padding as i32).collect();
        Ok(Layers { model: model.clone(), layers, starts, length: 0, step: None })
    }

    /// Returns the content of a layer, or `None` before the first step.
    pub fn kv(&self, layer: usize) -> Result<Option<Kv>> {
        Ok(match &self.layers[layer] {
            Layer::Everything(cache) if cache.is_empty() => None,
            Layer::Everything(cache) => Some(cache.get_kv()?),
            Layer::Window(cache) => cache.current_data()?,
            Layer::Shared(source) => return self.kv(*source),
        })
    }

    fn own(&self, layer: usize) -> usize {
        match self.layers[layer] {
            Layer::Shared(source) => source,
            _ => layer,
        }
    }
}

impl Cache for Layers {
    fn rows(&self) -> usize {
        self.starts.len()
    }

    fn begin(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        if self.step.is_some() {
            return Err(Error::step("the previous step was not committed"));
        }
        let each = (tokens.len() / self.rows()) as u32;
        self.step = Some((vec![None; self.layers.len()], each));
        let length = self.length;
        let of_row = |&start: &i32| (0..each).map(move |at| (length + at).saturating_sub(start as u32));
        Ok(self.starts.iter().flat_map(of_row).collect())
    }

    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let Some((shown, _)) = &mut self.step else { return Err(Error::step("no step is open")) };
        shown[layer] = Some(match &mut self.layers[layer] {
            Layer::Everything(cache) => cache.update(k, v)?,
            Layer::Window(cache) => cache.append(k, v)?,
            Layer::Shared(_) => return Err(Error::step("the layer shares the cache of another layer")),
        });
        Ok(())
    }

    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor> {
        let Some((shown, _)) = &self.step else { return Err(Error::step("no step is open")) };
        let Some(kv) = &shown[self.own(layer)] else { return Err(Error::step("the layer is not written")) };
        let padded = self.starts.iter().any(|&start| start > 0);
        let (window, sinks) = match self.model.kind(layer as u32) {
            LayerKind::Sliding { window, sinks } => (Some(window), sinks),
            _ => (None, 0),
        };
        let attention = self.model.attention();
        let options = AttendOptions {
            scale: attention.scale,
            softcap: attention.softcap,
            window,
            sinks,
            starts: padded.then_some(&self.starts[..]),
            ..Default::default()
        };
        Ok(attend(q, kv, &options)?.out.tensor()?)
    }

    fn commit(&mut self) -> Result<()> {
        let Some((shown, tokens)) = self.step.take() else { return Err(Error::step("no step is open")) };
        if (0..shown.len()).any(|layer| shown[self.own(layer)].is_none()) && tokens > 0 {
            return Err(Error::step("a layer was not written"));
        }
        self.length += tokens;
        Ok(())
    }
}
