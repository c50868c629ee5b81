//! Pages of a layer of a model, in blocks, outside a step: of sequences, or named by the tables that a step has filled.
//!
//! ```text
//! rows = cache.pages(layer, &[sequence])?                    its group's pages, the model's rules
//! rows = cache.pages_of_tables(layer, &tables, &lengths)?    the tables of the layer's group
//! rows.attend(q, &options)?
//! ```
//!
//! A layer that reads another's keys and values has the pages of that one. O(pages).

use super::ModelCache;
use super::layer_rows::{LayerRows, Rows, Rules};
use crate::error::Result;
use crate::paged::PageRows;
use crate::paged_kv_cache::PagedKvCache;

impl ModelCache {
    /// What queries of a layer see of these sequences. Refused in tensors.
    pub fn pages(&mut self, layer: u32, sequences: &[u64]) -> Result<LayerRows<'_>> {
        self.rows_of(layer, |group, layer| group.pages(layer, sequences))
    }

    /// What queries of a layer see by a block table of its group, as [`PagedKvCache::pages_of_tables`]. Refused in tensors.
    pub fn pages_of_tables(&mut self, layer: u32, tables: &[i32], lengths: &[i32]) -> Result<LayerRows<'_>> {
        self.rows_of(layer, |group, layer| group.pages_of_tables(layer, tables, lengths))
    }

    fn rows_of<'a>(
        &'a mut self,
        layer: u32,
        read: impl FnOnce(&'a mut PagedKvCache, u32) -> Result<PageRows<'a>>,
    ) -> Result<LayerRows<'a>> {
        self.check_number(layer)?;
        let (place, rules) = (self.model.place(layer), Rules::of(&self.model, layer));
        let pages = read(self.store.group(place.group)?, place.index)?;
        Ok(LayerRows { rows: Rows::Pages(pages, None), rules })
    }
}
