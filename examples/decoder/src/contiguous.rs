//! A cache of contiguous tensors: one `KvCache` or `RotatingKvCache` a layer.
//!
//! ```text
//! layer that keeps everything   KvCache           grows; a window is a rule of attention
//! layer that slides             RotatingKvCache   drops what left the window (Keep::Windows)
//! layer that shares             nothing           reads what the other layer shows
//! ```
//!
//! A step that failed half-way is dropped by [`Contiguous::truncate`] or [`Contiguous::restore`]: layers that were written go
//! back to where the others are. Truncating, taking a snapshot and restoring it are O(layers).
//!
//! All rows of the batch move in lockstep. A shorter row is padded on the left, and its padding hidden by `starts`.

use candle_core::Tensor;
use kvtide_core::model::{LayerKind, ModelDescription};
use kvtide_tensor::{
    AttendOptions, Kv, KvCache, KvCacheOptions, KvSnapshot, RotatingCacheOptions, RotatingKvCache, RotatingSnapshot,
    attend,
};

use crate::cache::Cache;
use crate::error::{Error, Result};

/// What layers that slide keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Every token, so that the cache can be truncated anywhere.
    Everything,
    /// What a query can still see.
    Windows,
}

/// A cache of contiguous tensors for all layers of a model.
#[derive(Debug)]
pub struct Contiguous {
    model: ModelDescription,
    layers: Vec<Layer>,
    /// What each layer showed in the step that is open.
    shown: Vec<Option<Kv>>,
    /// The first slot of each row that is no padding.
    starts: Vec<i32>,
    len: usize,
    step: Option<usize>,
}

#[derive(Debug)]
enum Layer {
    Growing(KvCache),
    Window(RotatingKvCache),
    Shared,
}

/// What a [`Contiguous`] held at one moment.
#[derive(Clone, Debug)]
pub struct ContiguousSnapshot {
    layers: Vec<LayerSnapshot>,
    len: usize,
}

#[derive(Clone, Debug)]
enum LayerSnapshot {
    Growing(KvSnapshot),
    Window(RotatingSnapshot<2>),
    Shared,
}

impl Contiguous {
    /// An empty cache of one row for each of `paddings`: tokens in front of it that are none.
    pub fn new(model: &ModelDescription, paddings: &[u32], keep: Keep) -> Result<Self> {
        let batch_size = paddings.len() as u32;
        let layer = |(index, layer): (usize, &kvtide_core::model::LayerDescription)| {
            Ok(match (layer.kind, keep) {
                (LayerKind::SharedWith(_), _) => Layer::Shared,
                (LayerKind::Sliding { window, sinks }, Keep::Windows) => {
                    let options = RotatingCacheOptions { max_seq_len: window, sinks, ..Default::default() };
                    Layer::Window(RotatingKvCache::new(options)?)
                }
                _ if layer.head_dim != layer.value_head_dim => {
                    let expected = format!("{}, as for keys, in a contiguous cache", layer.head_dim);
                    return Err(Error::config(
                        &format!("layers[{index}].valueHeadDim"),
                        layer.value_head_dim,
                        expected,
                    ));
                }
                _ => Layer::Growing(KvCache::new(KvCacheOptions {
                    batch_size,
                    num_kv_heads: layer.num_kv_heads,
                    head_dim: layer.head_dim,
                    ..Default::default()
                })?),
            })
        };
        let layers = model.layers().iter().enumerate().map(layer).collect::<Result<Vec<_>>>()?;
        let starts = paddings.iter().map(|&padding| padding as i32).collect();
        Ok(Contiguous { model: model.clone(), shown: vec![None; layers.len()], layers, starts, len: 0, step: None })
    }

    /// Tokens in each row, padding among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What a layer holds.
    pub fn kv(&self, layer: usize) -> Result<Option<Kv>> {
        Ok(match &self.layers[self.owner(layer)] {
            Layer::Growing(cache) if cache.is_empty() => None,
            Layer::Growing(cache) => Some(cache.get_kv()?),
            Layer::Window(cache) => cache.current_data()?,
            Layer::Shared => None,
        })
    }

    /// Drops all but the first `len` tokens, and the step that is open. Refused, with every layer as it was, once a window that
    /// was kept alone has moved on.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.len {
            return Err(Error::step(format!("there are {} tokens, not {len}", self.len)));
        }
        for layer in &self.layers {
            if let Layer::Window(cache) = layer {
                cache.try_set_len(len as u64)?;
            }
        }
        for layer in &mut self.layers {
            match layer {
                Layer::Growing(cache) => cache.truncate(len as u64)?,
                Layer::Window(cache) => cache.set_len(len as u64)?,
                Layer::Shared => {}
            }
        }
        self.settle(len);
        Ok(())
    }

    /// What it holds now, whatever happens to it later. O(layers).
    pub fn snapshot(&self) -> Result<ContiguousSnapshot> {
        self.check_no_step()?;
        let snapshot = |layer: &Layer| {
            Ok(match layer {
                Layer::Growing(cache) => LayerSnapshot::Growing(cache.snapshot()?),
                Layer::Window(cache) => LayerSnapshot::Window(cache.snapshot()?),
                Layer::Shared => LayerSnapshot::Shared,
            })
        };
        Ok(ContiguousSnapshot { layers: self.layers.iter().map(snapshot).collect::<Result<_>>()?, len: self.len })
    }

    /// Makes it hold again what `snapshot`, one of its own, saw; a step that is open is dropped.
    pub fn restore(&mut self, snapshot: &ContiguousSnapshot) -> Result<()> {
        for pair in self.layers.iter_mut().zip(&snapshot.layers) {
            match pair {
                (Layer::Growing(cache), LayerSnapshot::Growing(saw)) => cache.restore(saw)?,
                (Layer::Window(cache), LayerSnapshot::Window(saw)) => cache.restore(saw)?,
                (Layer::Shared, LayerSnapshot::Shared) => {}
                _ => return Err(Error::step("the snapshot is of another model")),
            }
        }
        self.settle(snapshot.len);
        Ok(())
    }

    /// No step is open, and every layer has `len` tokens.
    fn settle(&mut self, len: usize) {
        (self.len, self.step) = (len, None);
        self.shown.fill(None);
    }

    /// The layer whose keys and values a layer reads.
    fn owner(&self, layer: usize) -> usize {
        match self.model.layers()[layer].kind {
            LayerKind::SharedWith(owner) => owner as usize,
            _ => layer,
        }
    }

    fn check_no_step(&self) -> Result<()> {
        match self.step {
            Some(_) => Err(Error::step("the last one was neither committed nor dropped")),
            None => Ok(()),
        }
    }
}

impl Cache for Contiguous {
    fn rows(&self) -> usize {
        self.starts.len()
    }

    fn begin(&mut self, tokens: usize) -> Result<Vec<u32>> {
        self.check_no_step()?;
        self.step = Some(tokens);
        let slots = self.len as u32..(self.len + tokens) as u32;
        Ok(self
            .starts
            .iter()
            .flat_map(|&start| slots.clone().map(move |slot| slot.saturating_sub(start as u32)))
            .collect())
    }

    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let Some(tokens) = self.step else { return Err(Error::step("none was begun")) };
        if self.shown[layer].is_some() || k.dim(2)? != tokens {
            return Err(Error::step(format!("layer {layer} takes the {tokens} tokens of the step once")));
        }
        self.shown[layer] = match &mut self.layers[layer] {
            Layer::Growing(cache) => Some(cache.update(k, v)?),
            Layer::Window(cache) => Some(cache.append(k, v)?),
            Layer::Shared => return Err(Error::step(format!("layer {layer} keeps nothing of its own"))),
        };
        Ok(())
    }

    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor> {
        let Some(kv) = &self.shown[self.owner(layer)] else {
            return Err(Error::step(format!("layer {layer} was not written before its queries came")));
        };
        let (window, sinks) = match self.model.kind(layer as u32) {
            LayerKind::Sliding { window, sinks } => (Some(window), sinks),
            _ => (None, 0),
        };
        let padded = self.starts.iter().any(|&start| start > 0);
        let options = AttendOptions {
            scale: self.model.attention().scale,
            softcap: self.model.attention().softcap,
            window,
            sinks,
            starts: padded.then_some(self.starts.as_slice()),
            ..Default::default()
        };
        Ok(attend(q, kv, &options)?.out.tensor()?)
    }

    fn commit(&mut self) -> Result<()> {
        let Some(tokens) = self.step else { return Err(Error::step("none was begun")) };
        let missing: Vec<_> = (0..self.layers.len()).filter(|&layer| self.shown[self.owner(layer)].is_none()).collect();
        if !missing.is_empty() {
            return Err(Error::step(format!("layers {missing:?} were not written")));
        }
        self.settle(self.len + tokens);
        Ok(())
    }
}
