//! Rotary positions: pairs of a head's elements, half a head apart, are rotated by an angle that grows with the position.
//!
//! ```text
//! frequency[i] = theta ^ (-2 i / head_dim)                      then scaled, for contexts longer than the original one
//! low'  = low  * cos(position * frequency) - high * sin(...)
//! high' = high * cos(position * frequency) + low  * sin(...)
//! ```
//!
//! Keys are rotated once, before they are cached: a cached key is valid only at the position it was computed for.

use std::f64::consts::TAU;

use candle_core::{D, Device, Tensor};

use crate::error::{Error, Result};
use crate::family::Family;
use crate::fields::Fields;

/// The parameters from which the frequencies are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RopeSettings {
    theta: f64,
    scaling: Scaling,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    None,
    /// All frequencies are divided.
    Linear {
        factor: f64,
    },
    /// Low frequencies are divided, high ones unchanged, those between blended.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
}

impl RopeSettings {
    /// Reads the settings of sliding layers, or of full layers.
    ///
    /// Newer files have `rope_parameters`, for all layers or for each kind; older files have `rope_theta` and
    /// `rope_scaling`.
    pub fn of(fields: Fields<'_>, family: Family, slides: bool) -> Result<Self> {
        let is_local = family.is_gemma() && slides;
        let old_theta = match (family.is_gemma(), slides) {
            (true, true) => fields.number("rope_local_base_freq", 1e4)?,
            (true, false) => fields.number("rope_theta", 1e6)?,
            (false, _) => fields.number("rope_theta", 1e4)?,
        };
        let parameters = fields.object("rope_parameters");
        let kind = if slides { "sliding_attention" } else { "full_attention" };
        let of_kind = parameters.and_then(|parameters| parameters.object(kind));
        let found = match (of_kind, parameters) {
            (Some(of_kind), _) => Some(of_kind),
            // The file has parameters only for the other kind of layers.
            (None, Some(parameters)) if parameters.0.values().any(serde_json::Value::is_object) => None,
            // Files without two kinds of parameters: they apply to full layers only.
            _ if is_local => None,
            (None, Some(parameters)) => Some(parameters),
            (None, None) => fields.object("rope_scaling"),
        };
        let Some(found) = found else { return Ok(RopeSettings { theta: old_theta, scaling: Scaling::None }) };
        for (name, value) in [("partial_rotary_factor", found), ("partial_rotary_factor", fields)] {
            if value.number(name, 1.)? != 1. {
                return Err(Error::config(name, value.number(name, 1.)?, "1: every element of a head is rotated"));
            }
        }
        Ok(RopeSettings { theta: found.number("rope_theta", old_theta)?, scaling: Scaling::of(found)? })
    }

    /// Returns one frequency for each pair of a head's elements.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let frequency = |pair: usize| self.theta.powf(-2. * pair as f64 / head_dim as f64);
        (0..head_dim / 2).map(|pair| self.scaling.apply(frequency(pair)) as f32).collect()
    }
}

impl Scaling {
    fn of(fields: Fields<'_>) -> Result<Self> {
        match fields.text("rope_type").or_else(|| fields.text("type")).unwrap_or("default") {
            "default" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: fields.require_number("factor")? }),
            "llama3" => {
                let (low, high) =
                    (fields.require_number("low_freq_factor")?, fields.require_number("high_freq_factor")?);
                if high <= low {
                    return Err(Error::config("high_freq_factor", high, format!("more than {low}, low_freq_factor")));
                }
                let original = fields.require_number("original_max_position_embeddings")?;
                Ok(Scaling::Llama3 { factor: fields.require_number("factor")?, low, high, original })
            }
            other => Err(Error::config("rope_type", other, "default, linear or llama3")),
        }
    }

    fn apply(self, frequency: f64) -> f64 {
        match self {
            Scaling::None => frequency,
            Scaling::Linear { factor } => frequency / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                // The number of rotations within the original context.
                let turns = original * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0., 1.);
                kept * frequency + (1. - kept) * frequency / factor
            }
        }
    }
}

/// Cosines and sines of the tokens of a step, `[rows, 1, tokens, head dim / 2]`.
pub(crate) struct Turns {
    cos: Tensor,
    sin: Tensor,
}

impl Turns {
    /// Computes the cosines and sines of `positions`, row by row.
    pub fn new(frequencies: &[f32], positions: &[u32], rows: usize) -> Result<Self> {
        let angles: Vec<f32> = positions
            .iter()
            .flat_map(|&position| frequencies.iter().map(move |frequency| position as f32 * frequency))
            .collect();
        let shape = (rows, 1, positions.len() / rows, frequencies.len());
        let angles = Tensor::from_vec(angles, shape, &Device::Cpu)?;
        Ok(Turns { cos: angles.cos()?, sin: angles.sin()? })
    }

    /// Rotates heads `[rows, heads, tokens, head dim]`.
    pub fn turn(&self, heads: &Tensor) -> Result<Tensor> {
        let half = heads.dim(D::Minus1)? / 2;
        let (low, high) = (heads.narrow(D::Minus1, 0, half)?, heads.narrow(D::Minus1, half, half)?);
        let turned_low = (low.broadcast_mul(&self.cos)? - high.broadcast_mul(&self.sin)?)?;
        let turned_high = (high.broadcast_mul(&self.cos)? + low.broadcast_mul(&self.sin)?)?;
        Ok(Tensor::cat(&[turned_low, turned_high], D::Minus1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn settings(config: &Value, family: Family, slides: bool) -> Result<RopeSettings> {
        RopeSettings::of(Fields(config.as_object().unwrap()), family, slides)
    }

    #[test]
    fn both_ways_to_write_it_say_the_same() {
        let old = json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 8.0 } });
        let new = json!({ "rope_parameters": { "rope_theta": 5e5, "rope_type": "linear", "factor": 8.0 } });
        assert_eq!(settings(&old, Family::Llama, false).unwrap(), settings(&new, Family::Llama, true).unwrap());
    }

    #[test]
    fn gemma_scales_layers_that_keep_everything_alone() {
        let old = json!({ "rope_local_base_freq": 2e4, "rope_scaling": { "rope_type": "linear", "factor": 8.0 } });
        let new = json!({ "rope_parameters": { "sliding_attention": { "rope_theta": 2e4, "rope_type": "default" },
            "full_attention": { "rope_theta": 1e6, "rope_type": "linear", "factor": 8.0 } } });
        for slides in [false, true] {
            let found = settings(&old, Family::Gemma3, slides).unwrap();
            assert_eq!(found, settings(&new, Family::Gemma3, slides).unwrap());
            assert_eq!(found.scaling == Scaling::None, slides);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let error = settings(&json!({ "rope_scaling": { "rope_type": "yarn" } }), Family::Llama, false).unwrap_err();
        assert_eq!(error.to_string(), "rope_type is yarn, expected default, linear or llama3");
        let partial = json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } });
        assert!(
            settings(&partial, Family::Llama, false)
                .unwrap_err()
                .to_string()
                .starts_with("partial_rotary_factor is 0.5")
        );
    }

    #[test]
    fn llama3_leaves_high_frequencies_and_divides_low_ones() {
        let scaling = Scaling::Llama3 { factor: 8., low: 1., high: 4., original: 8192. };
        assert_eq!(scaling.apply(1.), 1.);
        assert_eq!(scaling.apply(1e-5), 1e-5 / 8.);
        let between = 2.5 * TAU / 8192.;
        assert!((scaling.apply(between) / between - (0.5 + 0.5 / 8.)).abs() < 1e-12);
    }

    #[test]
    fn position_0_turns_nothing_and_lengths_stay() {
        let heads = Tensor::new(&[[[[3f32, 1., 4., 1.], [3., 1., 4., 1.]]]], &Device::Cpu).unwrap();
        let turned = Turns::new(&[1., 0.1], &[0, 9], 1).unwrap().turn(&heads).unwrap().flatten_all().unwrap();
        let turned = turned.to_vec1::<f32>().unwrap();
        assert_eq!(turned[..4], [3., 1., 4., 1.]);
        assert!((turned[4].hypot(turned[6]) - 5.).abs() < 1e-6 && (turned[4] - 3.).abs() > 1.);
    }
}
