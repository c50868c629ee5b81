//! Attention as its definition reads, in 64-bit floats: all scores, a softmax, all values.

/// A query, the keys it may see, and its rules.
pub struct Naive<'a> {
    pub keys: &'a [Vec<f64>],
    pub values: &'a [Vec<f64>],
    pub position: i64,
    pub is_causal: bool,
    pub window: Option<i64>,
    pub sinks: i64,
    pub scale: f64,
    pub softcap: Option<f64>,
    pub logit: Option<f64>,
}

impl Naive<'_> {
    /// The output, and the logarithm of its sum.
    pub fn attend(&self, query: &[f64], width: usize) -> (Vec<f64>, f64) {
        let shows = |key: i64| {
            (!self.is_causal || key <= self.position)
                && self.window.is_none_or(|window| self.position - key < window || key < self.sinks)
        };
        let score = |key: &Vec<f64>| {
            let product = self.scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
            self.softcap.map_or(product, |cap| cap * (product / cap).tanh())
        };
        let seen: Vec<_> = (0..self.keys.len()).filter(|&key| shows(key as i64)).collect();
        let scores: Vec<f64> = seen.iter().map(|&key| score(&self.keys[key])).collect();
        let max = scores.iter().copied().chain(self.logit).fold(f64::NEG_INFINITY, f64::max);
        let mut sum = self.logit.map_or(0.0, |logit| (logit - max).exp());
        let mut out = vec![0.0; width];
        for (&key, score) in seen.iter().zip(scores) {
            let weight = (score - max).exp();
            sum += weight;
            out.iter_mut().zip(&self.values[key]).for_each(|(total, value)| *total += weight * value);
        }
        if sum == 0.0 {
            return (out, f64::NEG_INFINITY);
        }
        out.iter_mut().for_each(|total| *total /= sum);
        (out, max + sum.ln())
    }
}
