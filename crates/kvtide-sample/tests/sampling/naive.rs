//! The oracle: everything is sorted, in doubles, one step after another.

use kvtide_sample::Options;

/// The tokens that could be drawn.
pub struct Naive {
    /// The probability of each token of the vocabulary.
    pub probabilities: Vec<f64>,
    /// The logarithm of each one's probability before temperature and cuts.
    pub logprobs: Vec<f64>,
    /// The distance of the nearest cut from a different decision.
    pub margin: f64,
}

fn round(logit: f64) -> f64 {
    if logit == f64::NEG_INFINITY { logit } else { f64::from((logit as f32).clamp(f32::MIN, f32::MAX)) }
}

fn processed(
    logits: &[f32],
    options: &Options,
    prompt: &[u32],
    generated: &[u32],
    allowed: Option<&[bool]>,
) -> Vec<f64> {
    let mut row: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    for (id, logit) in row.iter_mut().enumerate() {
        let id = id as u32;
        let times = generated.iter().filter(|&&token| token == id).count();
        if times > 0 || prompt.contains(&id) {
            let penalty = f64::from(options.repetition_penalty);
            *logit = round(if *logit > 0.0 { *logit / penalty } else { *logit * penalty });
        }
        if times > 0 {
            let frequency = f64::from(options.frequency_penalty) * times as f64;
            *logit = round(*logit - f64::from(options.presence_penalty) - frequency);
        }
        if let Some((_, bias)) = options.bias.iter().find(|(token, _)| *token == id) {
            *logit = round(*logit + f64::from(*bias));
        }
        if allowed.is_some_and(|allowed| !allowed[id as usize]) {
            *logit = f64::NEG_INFINITY;
        }
    }
    row
}

/// Nothing where no token is possible.
pub fn naive(
    logits: &[f32],
    options: &Options,
    prompt: &[u32],
    generated: &[u32],
    allowed: Option<&[bool]>,
) -> Option<Naive> {
    let row = processed(logits, options, prompt, generated, allowed);
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return None;
    }
    let all: f64 = row.iter().map(|logit| (logit - most).exp()).sum();
    let logprobs = row.iter().map(|logit| logit - most - all.ln()).collect();
    let mut probabilities = vec![0.0; row.len()];
    let mut sorted: Vec<usize> = (0..row.len()).collect();
    sorted.sort_by(|&one, &other| row[other].partial_cmp(&row[one]).expect("numbers").then(one.cmp(&other)));
    if options.temperature == 0.0 {
        probabilities[row.iter().position(|&logit| logit == most)?] = 1.0;
        return Some(Naive { probabilities, logprobs, margin: 1.0 });
    }
    let weight = |id: usize| ((row[id] - most) / f64::from(options.temperature)).exp();
    sorted.truncate(options.top_k.map_or(usize::MAX, |k| k as usize));
    let sum: f64 = sorted.iter().map(|&id| weight(id)).sum();
    let mut margin = 1.0f64;
    let (mut reached, mut kept) = (0.0, Vec::new());
    for id in sorted {
        let (top_p, min_p) = (f64::from(options.top_p), f64::from(options.min_p));
        if top_p < 1.0 {
            margin = margin.min((reached / sum - top_p).abs());
        }
        if top_p < 1.0 && reached / sum >= top_p {
            break;
        }
        reached += weight(id);
        if min_p > 0.0 {
            margin = margin.min((weight(id) - min_p).abs());
        }
        if weight(id) >= min_p {
            kept.push(id);
        }
    }
    let left: f64 = kept.iter().map(|&id| weight(id)).sum();
    kept.iter().for_each(|&id| probabilities[id] = weight(id) / left);
    Some(Naive { probabilities, logprobs, margin })
}
