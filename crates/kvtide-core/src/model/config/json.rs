//! The text of a `config.json` as JSON.
//!
//! The files are written by Python, which writes `NaN` and `Infinity` where JSON has no word. Those are read as `null`, so that
//! such a file is refused for what it describes. O(bytes).

use std::borrow::Cow;

use serde_json::Value;

use crate::error::{Error, Result};

/// The value of a text.
pub(super) fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(&without_python_numbers(text)).map_err(|error| {
        Error::argument("model", format!("text that is no JSON ({error})"), "the text of a config.json")
    })
}

/// The same text with `null` for each of Python's words outside strings.
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
