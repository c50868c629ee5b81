//! The block table of one sequence, layer by layer.

use kvtide_core::paged::BlockTable;
use napi::{Env, Result};
use napi_derive::napi;

use crate::blocks::block_pool::block;
use crate::border::argument::count;
use crate::border::handle::{Handle, guard};

#[napi]
pub struct NativeBlockTable {
    table: Handle<BlockTable>,
}

#[napi]
impl NativeBlockTable {
    #[napi(constructor)]
    pub fn new(env: &Env, num_layers: f64, block_size: f64) -> Result<Self> {
        guard(env, || {
            let table = BlockTable::new(count("numLayers", num_layers)?, count("blockSize", block_size)?)?;
            Ok(NativeBlockTable { table: Handle::new("BlockTable", table) })
        })
    }

    #[napi]
    pub fn append_block(&mut self, env: &Env, layer: f64, handle: f64) -> Result<()> {
        self.table.change(env, |table| Ok(table.append_block(count("layer", layer)?, block(handle)?)?))
    }

    #[napi]
    pub fn get_block(&self, env: &Env, layer: f64, logical: f64) -> Result<Option<f64>> {
        self.table.read(env, |table| {
            let found = table.get_block(count("layer", layer)?, count("logical", logical)?)?;
            Ok(found.map(|block| block.raw() as f64))
        })
    }

    #[napi]
    pub fn num_blocks(&self, env: &Env, layer: f64) -> Result<f64> {
        self.table.read(env, |table| Ok(table.num_blocks(count("layer", layer)?)?.into()))
    }

    #[napi]
    pub fn token_capacity(&self, env: &Env, layer: f64) -> Result<f64> {
        self.table.read(env, |table| Ok(table.token_capacity(count("layer", layer)?)? as f64))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.table.dispose(env, |_| ());
    }
}
