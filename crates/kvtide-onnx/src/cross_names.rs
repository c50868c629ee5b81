//! The names of inputs and outputs with the keys and values of an encoder's states, as exporters write them.
//!
//! ```text
//! past_key_values.3.encoder.key    present.3.encoder.key     computed by the first call of a merged decoder
//! past_key_cross_3                 -                         given by the encoder
//! ```

/// The input with the states of an encoder.
pub(crate) const ENCODER_STATES: &str = "encoder_hidden_states";

/// The input with 1 for each state to attend to, and 0 for padding.
pub(crate) const ENCODER_MASK: &str = "encoder_attention_mask";

/// True for an input with keys or values of an encoder's states.
pub(crate) fn is_cross(name: &str) -> bool {
    let behind = |start: &str| name.strip_prefix(start).is_some_and(is_number);
    is_between(name, "past_key_values.") || behind("past_key_cross_") || behind("past_value_cross_")
}

/// True for an output with keys or values of an encoder's states.
pub(crate) fn is_cross_present(name: &str) -> bool {
    is_between(name, "present.")
}

/// The input with the values that belong to keys.
pub(crate) fn values_of(keys: &str) -> Option<String> {
    match keys.strip_prefix("past_key_cross_") {
        Some(number) => Some(format!("past_value_cross_{number}")),
        None => keys.strip_suffix(".key").map(|layer| format!("{layer}.value")),
    }
}

/// The output with the keys or values that an input takes, of a decoder that computes them itself.
pub(crate) fn present_of(cross: &str) -> Option<String> {
    cross.strip_prefix("past_key_values.").map(|rest| format!("present.{rest}"))
}

/// `<start>3.encoder.key`
fn is_between(name: &str, start: &str) -> bool {
    let rest = name.strip_prefix(start).and_then(|rest| rest.split_once(".encoder."));
    rest.is_some_and(|(number, side)| is_number(number) && ["key", "value"].contains(&side))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit())
}
