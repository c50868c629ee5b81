//! Measures attention over kvtide's caches, against reading K and V, the multiply-adds, candle and ggml.

mod candle;
mod decode;
#[cfg(feature = "ggml")]
mod ggml;
#[cfg(not(feature = "ggml"))]
#[path = "no_ggml.rs"]
mod ggml;
mod layers;
mod limits;
mod pages;
mod prefill;
mod shared;

use kvtide_bench::{Lane, Role};
use kvtide_tensor::attention::{AttendOptions, attend};
use layers::Layers;

pub use decode::run as decode;
pub use layers::{noise, with_bytes};
pub use pages::run as pages;
pub use prefill::run as prefill;
pub use shared::{Kind, run as shared};

/// Computes attention over every layer in turn, on `threads` threads.
fn ours<'a>(name: &str, layers: &'a Layers, threads: usize) -> Lane<'a> {
    Lane::timed(Role::Ours, name, layers.kv.len() as u32, move |stopwatch| {
        stopwatch.time_on(threads, || {
            let options = AttendOptions { threads: Some(threads), ..Default::default() };
            for kv in &layers.kv {
                std::hint::black_box(attend(&layers.q, kv, &options)?);
            }
            Ok(())
        })
    })
}
