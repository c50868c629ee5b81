//! One new row of each sequence, where lengths and tables on the device say: a step that the device repeats by itself.

use candle_core::Tensor;
use kvtide_cuda::{Insert, Rows, Stream, Tables};

use super::slabs::{heads, sections};
use crate::base::error::Result;
use crate::device::edit::inspect_spans;
use crate::paged::rows::TokenRows;
use crate::paged::slabs::Slab;

/// Numbers of a step on its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepNumbers<'a> {
    pub lengths: &'a Tensor,
    pub tables: &'a Tensor,
    pub sequences: usize,
    /// Entries of a row of tables.
    pub row_blocks: usize,
    /// The most tokens that a sequence can have.
    pub keys_max: usize,
}

/// Enqueues K and V of a layer; each is a tensor that lies in place.
pub(crate) fn insert(
    stream: &Stream,
    slab: &Slab,
    layer: u32,
    numbers: &StepNumbers<'_>,
    rows: [(&TokenRows<'_>, &Tensor); 2],
) -> Result<()> {
    let layout = &slab.layout;
    inspect_spans(&[numbers.lengths, numbers.tables], |of| {
        slab.launch(&[rows[0].1, rows[1].1], |pages, sources| {
            let rows = [0, 1].map(|part| {
                let at = &rows[part].0.rows;
                Rows { memory: sources[part], offset: at.offset, layer: at.layer, head: at.head, token: at.token }
            });
            let call = Insert {
                pages,
                page_bytes: layout.page_bytes(),
                block_bytes: layout.block_bytes(),
                block_size: layout.shape().block_size as usize,
                sections: sections(layout),
                rows,
                heads: heads(layout),
                first_layer: layer as usize,
                layers: 1,
            };
            let (sequences, row_blocks) = (numbers.sequences, numbers.row_blocks);
            let tables = Tables { lengths: of[0], blocks: of[1], sequences, row_blocks };
            Ok(kvtide_cuda::insert(stream, &call, &tables)?)
        })
    })
}
