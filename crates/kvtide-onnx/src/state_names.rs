//! The names of inputs and outputs with the states of layers, as exporters write them.
//!
//! ```text
//! past_conv.3                          present_conv.3
//! past_key_values.3.recurrent_state    present.3.recurrent_state
//! past.3.ssm, past_states.3.ssm        present.3.ssm
//! ```
//! An input with such a name is a state, whatever its form: pasts of keys and values have other names.

/// Tensors of a layer.
const TENSORS: [&str; 3] = ["conv", "ssm", "recurrent"];

/// A tensor may have this ending, which is not part of its name.
const ENDING: &str = "_state";

/// The most digits of a layer's number.
const DIGITS_MAX: usize = 9;

/// The name of an input with a state, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateName<'a> {
    /// The layer's number.
    pub number: u32,
    /// The tensor as it is written in the name.
    written: &'a str,
    /// True if the tensor comes before the number.
    is_in_front: bool,
}

impl<'a> StateName<'a> {
    /// Takes the name of an input apart; [`None`] if it is no state.
    pub fn of_past(name: &'a str) -> Option<Self> {
        let behind = ["past_key_values.", "past.", "past_states."].iter().find_map(|start| name.strip_prefix(start));
        if let Some(found) = behind.and_then(Self::behind) {
            return Some(found);
        }
        Self::in_front(name.strip_prefix("past_")?)
    }

    /// Takes the name of an output apart; [`None`] if it is no new state.
    pub fn of_present(name: &'a str) -> Option<Self> {
        name.strip_prefix("present.").and_then(Self::behind).or_else(|| Self::in_front(name.strip_prefix("present_")?))
    }

    /// `3.conv_state`
    fn behind(rest: &'a str) -> Option<Self> {
        let (digits, written) = rest.split_once('.')?;
        Self { number: number(digits)?, written, is_in_front: false }.known()
    }

    /// `conv.3`
    fn in_front(rest: &'a str) -> Option<Self> {
        let (written, digits) = rest.split_once('.')?;
        Self { number: number(digits)?, written, is_in_front: true }.known()
    }

    fn known(self) -> Option<Self> {
        TENSORS.contains(&self.tensor()).then_some(self)
    }

    /// The tensor: `conv`, `ssm` or `recurrent`.
    pub fn tensor(&self) -> &'a str {
        self.written.strip_suffix(ENDING).unwrap_or(self.written)
    }

    /// The name of the output that goes with an input of this name.
    pub fn present(&self) -> String {
        let Self { number, written, is_in_front } = self;
        if *is_in_front { format!("present_{written}.{number}") } else { format!("present.{number}.{written}") }
    }
}

/// True for the name of an input with a state.
pub(crate) fn is_state(name: &str) -> bool {
    StateName::of_past(name).is_some()
}

/// A number without zeros in front.
fn number(digits: &str) -> Option<u32> {
    let is_plain = digits == "0" || !digits.starts_with('0');
    let is_whole = digits.len() <= DIGITS_MAX && digits.bytes().all(|digit| digit.is_ascii_digit());
    (is_plain && is_whole).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Option<(u32, String, String)> {
        StateName::of_past(name).map(|found| (found.number, found.tensor().into(), found.present()))
    }

    #[test]
    fn names_of_all_exporters_are_read() {
        for (past, number, tensor, present) in [
            ("past_conv.0", 0, "conv", "present_conv.0"),
            ("past_ssm.12", 12, "ssm", "present_ssm.12"),
            ("past_recurrent.3", 3, "recurrent", "present_recurrent.3"),
            ("past_key_values.3.conv_state", 3, "conv", "present.3.conv_state"),
            ("past.7.recurrent", 7, "recurrent", "present.7.recurrent"),
            ("past_states.1.ssm_state", 1, "ssm", "present.1.ssm_state"),
            ("past_conv_state.4", 4, "conv", "present_conv_state.4"),
        ] {
            assert_eq!(read(past), Some((number, tensor.into(), present.into())), "{past}");
            let again = StateName::of_present(present).map(|found| (found.number, found.tensor().to_owned()));
            assert_eq!(again, Some((number, tensor.into())), "{present}");
        }
    }

    #[test]
    fn other_names_are_no_states() {
        for name in [
            "past_key_values.3.key",
            "past_key_3",
            "past_conv.03",
            "past_conv.x",
            "past_conv.",
            "past_conv",
            "past_conv.1.2",
            "past.conv.3",
            "past_1234567890.conv",
            "past_conv.1234567890",
            "past_key_values.3.conv_state_state",
            "present_conv.3",
        ] {
            assert_eq!(read(name), None, "{name}");
        }
    }
}
