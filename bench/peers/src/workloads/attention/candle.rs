//! Attention with candle alone.
//!
//! *Grouped* is the fastest way with its tensor operations: queries are reshaped to `[kv heads, group * queries, dim]`,
//! so no key is repeated. *Repeated* is the way of most models. *Flash* is candle-nn's own function without a matrix of
//! scores. It reads `[batch, tokens, heads, dim]`, so K and V are stored in that order.

use candle_core::{Tensor, WithDType};
use candle_nn::attention::{AttnMask, flash_attn};
use kvtide_bench::{Lane, Role};

use super::layers::GROUP;
use crate::tokens::HEAD_DIM;

fn scale() -> f64 {
    1. / (HEAD_DIM as f64).sqrt()
}

/// Returns the values weighted by the softmax of the scaled scores. `mask` is added to the scores.
fn weighed(scores: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> candle_core::Result<Tensor> {
    let scores = (scores * scale())?;
    let scores = match mask {
        Some(mask) => scores.broadcast_add(mask)?,
        None => scores,
    };
    candle_nn::ops::softmax_last_dim(&scores)?.matmul(v)
}

/// Attention that reads every key and value once. `mask` is `[1, 1, group * queries, keys]`.
pub fn grouped(q: &Tensor, [k, v]: &[Tensor; 2], mask: Option<&Tensor>) -> candle_core::Result<Tensor> {
    let (batch, heads, queries, dim) = q.dims4()?;
    let q = q.reshape((batch, heads / GROUP, GROUP * queries, dim))?;
    weighed(&q.matmul(&k.transpose(2, 3)?)?, v, mask)?.reshape((batch, heads, queries, dim))
}

/// Attention with K and V repeated for every query head.
pub fn repeated(q: &Tensor, [k, v]: &[Tensor; 2]) -> candle_core::Result<Tensor> {
    let repeat = |rows: &Tensor| {
        let (batch, heads, tokens, dim) = rows.dims4()?;
        Tensor::cat(&[rows; GROUP], 2)?.reshape((batch, heads * GROUP, tokens, dim))
    };
    let k = repeat(k)?;
    weighed(&q.matmul(&k.transpose(2, 3)?)?, &repeat(v)?, None)
}

/// Copies `[batch, heads, tokens, dim]` to `[batch, tokens, heads, dim]`.
pub fn by_tokens(rows: &Tensor) -> candle_core::Result<Tensor> {
    rows.transpose(1, 2)?.contiguous()
}

/// Attention with candle-nn's function; all tensors are `[batch, tokens, heads, dim]`.
pub fn flash<T>(q: &Tensor, [k, v]: &[Tensor; 2]) -> candle_core::Result<Tensor>
where
    T: WithDType + num_traits::Float,
{
    let before = k.dim(1)? - q.dim(1)?;
    flash_attn::<T>(q, k, v, scale() as f32, AttnMask::causal_with_offset(before), None, None)
}

/// A lane that computes one layer per round, in turn: all layers would take long, and the other lanes evict the
/// processor's caches between rounds.
pub fn lane<'a>(
    name: &str,
    layers: Vec<[Tensor; 2]>,
    attention: impl Fn(&[Tensor; 2]) -> candle_core::Result<Tensor> + 'a,
) -> Lane<'a> {
    let mut turn = 0;
    Lane::making(Role::Peer, name, 1, move || {
        turn += 1;
        Ok(attention(&layers[(turn - 1) % layers.len()])?)
    })
}

#[cfg(test)]
mod tests {
    use kvtide_tensor::DType;
    use kvtide_tensor::attention::{AttendOptions, attend};

    use super::super::layers::Layers;
    use super::*;

    #[test]
    fn every_way_gives_what_attend_gives() {
        let layers = Layers::new(DType::F32, 1, 1, 100).unwrap();
        let ours = attend(&layers.q, &layers.kv[0], &AttendOptions::default()).unwrap().out.to_f32().unwrap();
        let kv = layers.tensors().unwrap().remove(0);
        let turned = [by_tokens(&kv[0]).unwrap(), by_tokens(&kv[1]).unwrap()];
        let theirs = [
            grouped(&layers.q, &kv, None).unwrap(),
            repeated(&layers.q, &kv).unwrap(),
            flash::<f32>(&by_tokens(&layers.q).unwrap(), &turned).unwrap(),
        ];
        for theirs in theirs {
            let theirs = theirs.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(theirs.len(), ours.len());
            assert!(theirs.iter().zip(&ours).all(|(theirs, ours)| (theirs - ours).abs() < 1e-5));
        }
    }
}
