//! Attention by its definition, in 64-bit floats: all scores, a softmax, all values.

/// A query, all keys, and a function that says which of them it attends to.
pub struct Naive<'a> {
    pub keys: &'a [Vec<f64>],
    pub values: &'a [Vec<f64>],
    /// The number added to the score of a key; `None` for a hidden key.
    pub added: &'a dyn Fn(usize) -> Option<f64>,
    pub scale: f64,
    pub softcap: Option<f64>,
    pub logit: Option<f64>,
}

impl Naive<'_> {
    /// The output, and the logarithm of its sum.
    pub fn attend(&self, query: &[f64], width: usize) -> (Vec<f64>, f64) {
        let score = |key: &Vec<f64>| {
            let product = self.scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
            self.softcap.map_or(product, |cap| cap * (product / cap).tanh())
        };
        let seen = (0..self.keys.len()).filter_map(|key| Some((key, (self.added)(key)?)));
        let scores: Vec<(usize, f64)> = seen
            .map(|(key, added)| (key, score(&self.keys[key]) + added))
            .filter(|of| of.1 > f64::NEG_INFINITY)
            .collect();
        let max = scores.iter().map(|of| of.1).chain(self.logit).fold(f64::NEG_INFINITY, f64::max);
        let mut sum = self.logit.map_or(0.0, |logit| (logit - max).exp());
        let mut out = vec![0.0; width];
        for (key, score) in scores {
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
