//! A cache's costs as a plain object.

use kvtide_tensor::Stats;
use napi_derive::napi;

use crate::border::refusal::number;

/// Memory in use, and copies of rows that were there already.
#[napi(object)]
pub struct NativeStats {
    pub buffer_bytes: f64,
    pub held_bytes: f64,
    pub used_bytes: f64,
    pub limit_bytes: f64,
    pub growths: f64,
    pub compactions: f64,
    pub copies_on_write: f64,
    pub copied_bytes: f64,
}

impl From<Stats> for NativeStats {
    fn from(stats: Stats) -> Self {
        NativeStats {
            buffer_bytes: number(stats.buffer_bytes),
            held_bytes: number(stats.held_bytes),
            used_bytes: number(stats.used_bytes),
            limit_bytes: number(stats.limit_bytes),
            growths: number(stats.growths),
            compactions: number(stats.compactions),
            copies_on_write: number(stats.copies_on_write),
            copied_bytes: number(stats.copied_bytes),
        }
    }
}
