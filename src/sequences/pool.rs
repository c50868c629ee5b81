//! The blocks of a cache: free counts, priorities, and consistency checks.

use kvtide_core::Error;
use kvtide_core::paged::PoolStats;
use napi::bindgen_prelude::{Int32Array, Uint8Array, Uint32Array};
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use crate::border::argument::{count, optional, whole};
use crate::border::process::NativeStats;
use crate::border::refusal::{Outcome, number};

/// Memory use of a cache, and the state of its pools.
#[napi(object, object_from_js = false)]
pub struct NativePagedStats {
    pub costs: NativeStats,
    pub pools: Vec<NativePool>,
}

/// A pool's content in blocks, and its counters.
#[napi(object, object_from_js = false)]
pub struct NativePool {
    pub total_blocks: f64,
    pub free_blocks: f64,
    pub cached_blocks: f64,
    pub active_blocks: f64,
    pub copies_on_write: f64,
    pub evictions: f64,
    pub prompt_tokens: f64,
    pub hit_tokens: f64,
    pub lost_tokens: f64,
}

fn capacities(wanted: &[f64]) -> Outcome<Vec<(u64, u32)>> {
    wanted.chunks_exact(2).map(|pair| Ok((whole("seq", pair[0])?, count("tokens", pair[1])?))).collect()
}

#[napi]
impl NativePagedKvCache {
    /// Allocates blocks for sequences. Takes pairs of a sequence and its total number of tokens.
    #[napi]
    pub fn ensure_capacities(&mut self, env: &Env, wanted: &[f64]) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.ensure_capacities(&capacities(wanted)?)?))
    }

    /// The state of each block of a group: free, cached or active.
    #[napi]
    pub fn block_states(&mut self, env: &Env, group: f64) -> Result<Uint8Array> {
        self.cache.change(env, |cache| Ok(cache.block_states(count("group", group)? as usize)?.into()))
    }

    /// The number of tokens before each state of a group that prompts can find; 0 if they cannot, or if it is unknown.
    #[napi]
    pub fn state_ends(&mut self, env: &Env, group: f64) -> Result<Uint32Array> {
        self.cache.change(env, |cache| Ok(cache.state_ends(count("group", group)? as usize)?.into()))
    }

    /// The lengths of a sequence at which there is a checkpoint, ascending.
    #[napi]
    pub fn checkpoints_of(&mut self, env: &Env, sequence: f64) -> Result<Uint32Array> {
        self.cache.change(env, |cache| Ok(cache.checkpoints_of(whole("seq", sequence)?)?.into()))
    }

    /// The blocks of a sequence in a group; -1 for a block that has left the window.
    #[napi]
    pub fn blocks_of(&mut self, env: &Env, sequence: f64, group: f64) -> Result<Int32Array> {
        self.cache
            .change(env, |cache| Ok(cache.blocks_of(whole("seq", sequence)?, count("group", group)? as usize)?.into()))
    }

    #[napi]
    pub fn can_allocate(&mut self, env: &Env, tokens: f64, watermark: f64) -> Result<bool> {
        self.cache
            .change(env, |cache| Ok(cache.can_allocate(count("tokens", tokens)?, count("watermark", watermark)?)?))
    }

    /// Sets the priority of the blocks of tokens: permanently, unless `until` is given.
    #[napi]
    pub fn retain(
        &mut self,
        env: &Env,
        sequence: f64,
        from: f64,
        to: f64,
        priority: f64,
        until: Option<f64>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let tokens = count("from", from)?..count("to", to)?;
            Ok(cache.retain(whole("seq", sequence)?, tokens, rank(priority)?, optional("until", until, whole)?)?)
        })
    }

    #[napi]
    pub fn advance_clock(&mut self, env: &Env, now: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.advance_clock(whole("now", now)?)?))
    }

    #[napi]
    pub fn forget_prefixes(&mut self, env: &Env) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.forget_prefixes()?))
    }

    /// The number of times that all prefixes were forgotten.
    #[napi]
    pub fn forgotten(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.forgotten() as f64))
    }

    #[napi]
    pub fn pool_utilization(&mut self, env: &Env) -> Result<f64> {
        self.cache.change(env, |cache| {
            cache.pools()?;
            Ok(cache.pool_utilization())
        })
    }

    /// The number of blocks that can be allocated, after releasing dropped objects.
    #[napi]
    pub fn free_count(&mut self, env: &Env) -> Result<f64> {
        self.cache.change(env, |cache| {
            cache.pools()?;
            Ok(cache.free_count().into())
        })
    }

    #[napi]
    pub fn total_count(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.total_count().into()))
    }

    #[napi]
    pub fn check_invariants(&self, env: &Env) -> Result<Option<String>> {
        self.cache.read(env, |cache| Ok(cache.check_invariants().err()))
    }

    #[napi]
    pub fn stats(&mut self, env: &Env) -> Result<NativePagedStats> {
        self.cache.change(env, |cache| {
            let pools = cache.pools()?.into_iter().map(NativePool::from).collect();
            Ok(NativePagedStats { costs: cache.stats().into(), pools })
        })
    }
}

/// Checks a priority, 0 to 100.
fn rank(priority: f64) -> Outcome<u8> {
    let refused = |_| Error::argument("priority", priority, "a whole number from 0 to 100");
    Ok(u8::try_from(count("priority", priority)?).map_err(refused)?)
}

impl From<PoolStats> for NativePool {
    fn from(pool: PoolStats) -> Self {
        NativePool {
            total_blocks: pool.total.into(),
            free_blocks: pool.free.into(),
            cached_blocks: pool.cached.into(),
            active_blocks: pool.active.into(),
            copies_on_write: number(pool.counters.copies),
            evictions: number(pool.evictions),
            prompt_tokens: number(pool.counters.asked_tokens),
            hit_tokens: number(pool.counters.found_tokens),
            lost_tokens: number(pool.counters.lost_tokens),
        }
    }
}
