//! In what form a paged cache keeps K and V.

use candle_core::Device;
use kvtide_core::paged::{KeyOrValue, PageFormat, PageLayout, PageShape};
use kvtide_cuda::ROW_MAX;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::device_name;
use crate::kernels::quantise::Codec;
use crate::paged::PagedKvCacheOptions;

/// The layouts of both slabs, and how rows get from one to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedShape {
    /// The element type of what goes in, and of staging pages.
    pub dtype: DType,
    /// Of the slab.
    pub pages: PageLayout,
    /// Of the staging slab: one layer of one block each.
    pub staged: PageLayout,
    /// How the low-bit ones of K and V are quantised.
    pub codecs: [Option<Codec>; 2],
    /// K is rotated before it is quantised.
    pub hadamard: bool,
}

impl PagedShape {
    /// What these options ask for, or why it cannot be.
    pub fn new(options: &PagedKvCacheOptions) -> Result<Self> {
        let dtype = options.dtype;
        let own = dtype.page_format();
        let [key_format, value_format] = [("keyFormat", options.key_format), ("valueFormat", options.value_format)]
            .map(|(argument, format)| check_format(argument, format.unwrap_or(own), dtype));
        let shape = PageShape {
            block_size: options.block_size,
            num_layers: options.num_layers,
            num_kv_heads: options.num_kv_heads,
            head_dim: options.head_dim,
            value_head_dim: options.value_head_dim.unwrap_or(options.head_dim),
            key_format: key_format?,
            value_format: value_format?,
        };
        if options.hadamard && !shape.key_format.is_low_bit() {
            return Err(Error::argument("hadamard", "true", "false, unless keyFormat is one of f8e4m3, q8, q4"));
        }
        let pages = PageLayout::new(shape)?;
        let staged = PageLayout::new(PageShape { num_layers: 1, key_format: own, value_format: own, ..shape })?;
        let codecs = KeyOrValue::BOTH.map(|part| Codec::of(part, &pages.section(part), options.hadamard));
        Ok(PagedShape { dtype, pages, staged, codecs, hadamard: options.hadamard })
    }

    /// Refuses what the kernels of a device do not take.
    pub fn check_launched(&self) -> Result<()> {
        for (argument, part) in [("headDim", KeyOrValue::Key), ("valueHeadDim", KeyOrValue::Value)] {
            let head_dim = self.pages.section(part).head_dim;
            if self.codecs[part as usize].is_some() && head_dim > ROW_MAX {
                let expected = format!("at most {ROW_MAX}, for low-bit pages on this device");
                return Err(Error::argument(argument, head_dim, expected));
            }
        }
        Ok(())
    }

    /// Refuses what candle's operations alone cannot keep on a device: pages that are no tensor of one float type.
    pub fn check_portable(&self, device: &Device) -> Result<()> {
        if self.pages.uniform().is_some() {
            return Ok(());
        }
        let reason = "its pages are those of K and V in one float type and of one head dim alone".to_owned();
        Err(Error::DeviceUnavailable { device: device_name(device), reason })
    }

    /// The type of the rows of K or V that come out: 32-bit floats where they were quantised.
    pub fn read_dtype(&self, part: KeyOrValue) -> DType {
        if self.codecs[part as usize].is_some() { DType::F32 } else { self.dtype }
    }

    /// Elements of one token of one layer in K or V.
    pub fn token_elements(&self, part: KeyOrValue) -> usize {
        self.pages.shape().num_kv_heads as usize * self.pages.section(part).head_dim
    }
}

fn check_format(argument: &'static str, format: PageFormat, dtype: DType) -> Result<PageFormat> {
    let own = dtype.page_format();
    if format == own || format.is_low_bit() && dtype != DType::U8 {
        return Ok(format);
    }
    let expected =
        if dtype == DType::U8 { "u8, as dtype".to_owned() } else { format!("{own}, as dtype, or f8e4m3, q8, q4") };
    Err(Error::argument(argument, format.name(), expected))
}
