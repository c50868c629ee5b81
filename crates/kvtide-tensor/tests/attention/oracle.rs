//! Attention by its definition, in 64-bit floats: all scores, a softmax, all values.
//!
//! A score is a 32-bit float: NaN or infinity makes a row NaN, minus infinity hides the key. A value counts wherever it is
//! visible: an infinity gives an infinity in the output, however small its weight.

/// The possible error of a 32-bit score, relative to the products that it sums.
const ROUNDING: f64 = 8.0 * f32::EPSILON as f64;

/// The score of one key.
struct Scored {
    index: usize,
    score: f64,
    /// The possible difference to another order of sums and roundings.
    off: f64,
}

/// One sequence's keys, values and rules.
pub struct Naive<'a> {
    /// Each key's position.
    pub positions: &'a [i64],
    pub kv_heads: usize,
    pub query_heads: usize,
    /// The key of a head at an index, the value likewise.
    pub key: &'a dyn Fn(usize, usize) -> Vec<f64>,
    pub value: &'a dyn Fn(usize, usize) -> Vec<f64>,
    pub scale: f64,
    pub causal: bool,
    pub window: Option<i64>,
    pub sinks: i64,
    pub start: i64,
    pub softcap: Option<f64>,
    pub sink_logits: Option<&'a [f32]>,
    /// The slope of each query head.
    pub slopes: Option<&'a [f32]>,
    /// The number added to the score of a head, a query and a key.
    pub mask: &'a dyn Fn(usize, usize, usize) -> f64,
    /// The parents of the last keys.
    pub parents: Option<&'a [i32]>,
    /// The node that the first query is; below 0 where that comes before the tree.
    pub first_node: i64,
}

impl Naive<'_> {
    /// One query's output, the logarithm of its sum, and the average magnitude of the terms of each element: infinite if the
    /// rounding of huge scores decides which key counts.
    pub fn attend(&self, query: &[f64], node: usize, position: i64, head: usize) -> (Vec<f64>, f64, Vec<f64>) {
        let kv_head = head / (self.query_heads / self.kv_heads);
        let mut scored = Vec::new();
        for index in 0..self.positions.len() {
            if position < self.start || !self.shows(node, position, index) {
                continue;
            }
            let (key, added) = ((self.key)(kv_head, index), (self.mask)(head, node, index));
            let float = |number: f64| f64::from(number as f32);
            let products = || query.iter().zip(&key).map(|(a, b)| a * b);
            let mut score = float(self.scale * products().sum::<f64>());
            let mut off = ROUNDING * (self.scale * products().map(f64::abs).sum::<f64>()).abs();
            if let Some(cap) = self.softcap {
                // The slope of a tanh is 1 at most, and none where it ends.
                let end = cap * ((score.abs() - off).max(0.0) / cap).tanh();
                score = cap * (score / cap).tanh();
                off = off.min(cap - end);
            }
            if let Some(slopes) = self.slopes {
                score += f64::from(slopes[head]) * (self.position(index) - position) as f64;
            }
            score = float(score + added);
            if added > f64::NEG_INFINITY && score != f64::NEG_INFINITY {
                scored.push(Scored { index, score, off });
            }
        }
        let sink = self.sink_logits.map(|logits| f64::from(logits[head])).filter(|sink| *sink > f64::NEG_INFINITY);
        let max = scored.iter().map(|of| of.score).chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let width = (self.value)(kv_head, 0).len();
        if scored.iter().any(|of| !of.score.is_finite()) {
            return (vec![f64::NAN; width], f64::NAN, vec![0.0; width]);
        }
        let (mut out, mut beyond, mut sizes) = (vec![0.0; width], vec![0.0; width], vec![0.0; width]);
        let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
        let decides = rounding_decides(&scored, max);
        for Scored { index, score, .. } in scored {
            let weight = (score - max).exp();
            sum += weight;
            for (place, value) in (self.value)(kv_head, index).into_iter().enumerate() {
                if value.is_finite() {
                    out[place] += weight * value;
                    sizes[place] += weight * value.abs();
                } else {
                    beyond[place] += value;
                }
            }
        }
        if sum == 0.0 {
            return (vec![0.0; width], f64::NEG_INFINITY, sizes);
        }
        sizes.iter_mut().for_each(|size| *size = if decides { f64::INFINITY } else { *size / sum });
        let out = out.iter().zip(beyond).map(|(total, beyond)| total / sum + beyond);
        (out.collect(), max + sum.ln(), sizes)
    }

    /// The parents of the last keys, and the node that a key is, if it is one.
    fn drafted(&self, index: usize) -> Option<(&[i32], usize)> {
        let parents = self.parents?;
        Some((parents, index.checked_sub(self.positions.len() - parents.len())?))
    }

    /// The position of a key: a node's follows from its depth.
    fn position(&self, index: usize) -> i64 {
        let Some((parents, node)) = self.drafted(index) else { return self.positions[index] };
        let first = self.positions.last().map_or(0, |last| last + 1) - parents.len() as i64;
        first + ancestors(parents, node).len() as i64 - 1
    }

    fn shows(&self, node: usize, query: i64, index: usize) -> bool {
        let (key, drafted) = (self.position(index), self.drafted(index));
        if let Some((parents, other)) = drafted {
            let node = usize::try_from(self.first_node + node as i64);
            if !node.is_ok_and(|node| ancestors(parents, node).contains(&other)) {
                return false;
            }
        }
        (drafted.is_some() || !self.causal || key <= query)
            && self.window.is_none_or(|window| query - key < window || key < self.sinks)
            && key >= self.start
    }
}

/// A slope for each head, so gentle that the farthest of `keys` keys loses little.
pub fn slopes(heads: usize, keys: usize) -> Vec<f32> {
    (0..heads).map(|head| [4.0, -2.0, 1.0, 0.0, 3.0][head % 5] / (keys + 8) as f32).collect()
}

/// True where two keys may be the largest, by rounding alone: the weights of both are then anything.
fn rounding_decides(scored: &[Scored], max: f64) -> bool {
    let near: Vec<&Scored> = scored.iter().filter(|of| of.score + of.off >= max - 1.0).collect();
    near.len() > 1 && near.iter().any(|of| of.off > 1e-3)
}

/// A node and those it descends from.
pub fn ancestors(parents: &[i32], node: usize) -> Vec<usize> {
    let mut line = vec![node];
    let mut at = node;
    while let Ok(parent) = usize::try_from(parents[at]) {
        line.push(parent);
        at = parent;
    }
    line
}
