//! Parses a `config.json` and reads the fields of its objects. Errors name the invalid field.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::count::COUNT_MAX;
use crate::detail::DetailValue;
use crate::error::{Error, Result};

/// The fields that describe a text model.
pub(super) const FIELDS: &[&str] = &[
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "layer_types",
    "layers_block_type",
    "full_attn_idxs",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_layer_offset",
    "full_attention_interval",
    "hybrid_override_pattern",
    "attention_multiplier",
    "conv_L_cache",
    "conv_kernel",
    "expand",
    "n_groups",
    "num_heads",
    "state_size",
    "ssm_state_size",
    "mamba_num_heads",
    "mamba_head_dim",
    "mamba_ssm_cache_dtype",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_d_ssm",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_n_heads",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
];

/// The fields above that list layers.
#[cfg(test)]
pub(super) const LISTS: &[&str] = &[
    "layer_types",
    "layers_block_type",
    "no_rope_layers",
    "full_attn_idxs",
    "attn_layer_indices",
    "full_attention_interval",
    "hybrid_override_pattern",
];

/// A field's value. Families distinguish a missing field from `null`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Given<T> {
    Missing,
    Null,
    Value(T),
}

impl<T> Given<T> {
    /// The value, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Given::Value(value) => Some(value),
            Given::Missing | Given::Null => None,
        }
    }
}

/// An object, and its place in the file.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    /// [`None`] for an object without fields.
    object: Option<&'a Map<String, Value>>,
    prefix: &'static str,
}

impl<'a> Fields<'a> {
    pub fn root(value: &'a Value) -> Result<Self> {
        let object = value.as_object().ok_or_else(|| Error::argument("model", kind(value), "a JSON object"))?;
        Ok(Fields { object: Some(object), prefix: "" })
    }

    /// Returns an object without fields; `prefix` is the start of their names in errors.
    pub fn none(prefix: &'static str) -> Self {
        Fields { object: None, prefix }
    }

    /// An object inside this one; `prefix` is the start of its fields' names in errors.
    pub fn object(&self, name: &str, prefix: &'static str) -> Result<Option<Fields<'a>>> {
        let object = self.read(name, "an object", |value| value.as_object())?;
        Ok(object.value().map(|object| Fields { object: Some(object), prefix }))
    }

    /// The name of a field, as a path from the root of the file.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Reads a whole number of at least 1.
    pub fn count(&self, name: &str) -> Result<Given<u32>> {
        self.read(name, "a whole number of at least 1", |value| {
            value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| (1..=COUNT_MAX).contains(count))
        })
    }

    /// Reads a whole number of at least 1, or returns this default if the field is missing.
    pub fn count_or(&self, name: &str, default: u32) -> Result<u32> {
        match self.count(name)? {
            Given::Value(count) => Ok(count),
            Given::Missing => Ok(default),
            Given::Null => Err(self.null(name, "a whole number of at least 1")),
        }
    }

    /// The error of a field that may be missing but not `null`.
    pub fn null(&self, name: &str, expected: &str) -> Error {
        Error::model(self.path(name), "null", expected)
    }

    /// Reads a whole number of at least 0.
    pub fn index(&self, name: &str) -> Result<Given<u64>> {
        self.read(name, "a whole number", Value::as_u64)
    }

    /// Reads a list of whole numbers, which may be negative.
    pub fn indices(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let indices = |value: &'a Value| value.as_array()?.iter().map(Value::as_i64).collect::<Option<Vec<_>>>();
        Ok(self.read(name, "a list of whole numbers", indices)?.value())
    }

    /// True if the field is there and is this text.
    pub fn is_text(&self, name: &str, text: &str) -> bool {
        self.get(name).and_then(Value::as_str) == Some(text)
    }

    /// True if the field is there and is a text.
    pub fn has_text(&self, name: &str) -> bool {
        self.get(name).is_some_and(Value::is_string)
    }

    /// True if the field is there, with any value, `null` included.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Reads a number over 0.
    pub fn number(&self, name: &str) -> Result<Given<f64>> {
        self.read(name, "a number over 0", |value| {
            value.as_f64().filter(|&number| number > 0. && number <= f32::MAX.into())
        })
    }

    /// Reads true or false; false if the field is missing or `null`.
    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.read(name, "true or false", Value::as_bool)?.value().unwrap_or(false))
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(self.read(name, "a string", Value::as_str)?.value())
    }

    /// Reads a text, or returns this default if the field is missing.
    pub fn text_or(&self, name: &str, default: &'static str, expected: &str) -> Result<&'a str> {
        match self.text(name)? {
            Some(text) => Ok(text),
            None if self.has(name) => Err(self.null(name, expected)),
            None => Ok(default),
        }
    }

    pub fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>> {
        let texts = |value: &'a Value| value.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
        Ok(self.read(name, "a list of strings", texts)?.value())
    }

    /// True if the field has a value other than `null` and an empty list or object.
    pub fn says(&self, name: &str) -> bool {
        let empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(object) => object.is_empty(),
            _ => false,
        };
        self.get(name).is_some_and(|value| !empty(value))
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object?.get(name)
    }

    fn read<T>(&self, name: &str, expected: &str, valid: impl Fn(&'a Value) -> Option<T>) -> Result<Given<T>> {
        match self.get(name) {
            None => Ok(Given::Missing),
            Some(Value::Null) => Ok(Given::Null),
            Some(value) => match valid(value) {
                Some(valid) => Ok(Given::Value(valid)),
                None => Err(Error::model(self.path(name), shown(value), expected)),
            },
        }
    }
}

/// A value in an error message: a number as it is, a string up to 60 characters, and the kind of any other value, whose
/// content could be anything.
fn shown(value: &Value) -> DetailValue {
    const CHARS_MAX: usize = 60;
    match (value.as_u64(), value.as_f64()) {
        (Some(number), _) => number.into(),
        (None, Some(number)) => number.into(),
        _ if value.is_string() => {
            let text = value.to_string();
            match text.char_indices().nth(CHARS_MAX) {
                Some((end, _)) => format!("{}…", &text[..end]).into(),
                None => text.into(),
            }
        }
        _ => kind(value).into(),
    }
}

/// The kind of a value, without its content.
fn kind(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(list) => format!("an array of {}", list.len()),
        Value::String(_) => "a string".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Null => "null".to_owned(),
    }
}

/// Parses the text of a file.
pub(super) fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(&without_python_numbers(text)).map_err(|error| {
        Error::argument("model", format!("text that is not JSON ({error})"), "the text of a config.json")
    })
}

/// Replaces `NaN` and `Infinity`, which Python writes although JSON lacks them, by `null`, so that errors about such a
/// file name its fields. Words inside strings stay.
fn without_python_numbers(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !WORDS.iter().any(|word| text.contains(word)) {
        return text.into();
    }
    let (mut out, mut rest, mut quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(first) = rest.chars().next() {
        if !quoted && let Some(word) = WORDS.iter().find(|word| rest.starts_with(**word)) {
            out.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = if quoted && first == '\\' { rest.chars().nth(1).map_or(0, char::len_utf8) } else { 0 };
        quoted ^= first == '"';
        let (taken, left) = rest.split_at(first.len_utf8() + escaped);
        out.push_str(taken);
        rest = left;
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_python_are_null_outside_strings_alone() {
        let text = r#"{"a": [NaN, -Infinity], "Infinity \" NaN": "é\\", "b": Infinity}"#;
        let expected = r#"{"a": [null, null], "Infinity \" NaN": "é\\", "b": null}"#;
        assert_eq!(without_python_numbers(text), expected);
        assert!(matches!(without_python_numbers(r#"{"a": 1}"#), Cow::Borrowed(_)));
    }
}
