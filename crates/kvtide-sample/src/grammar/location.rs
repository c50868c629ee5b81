//! The place of an error in a grammar.
//!
//! The parser does not say which part of a JSON schema it refuses. So parts are compiled alone, each with the definitions
//! of the whole schema: the first part that is refused too has the error, and its parts are tried next. A Lark grammar's
//! errors begin with line and column.

use serde_json::{Map, Value};

use crate::error::Error;

/// The number of parts that are compiled to find the one with the error.
const TRIES: usize = 256;
/// Keywords whose value is an object of schemas, a list of schemas, or a schema.
pub(super) const NAMED: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SINGLE: [&str; 4] = ["items", "additionalItems", "additionalProperties", "contains"];

/// The error of a schema with the place of the smallest part that is refused. `refusal` compiles a part.
pub(super) fn failing(schema: &Value, reason: String, refusal: &dyn Fn(Value) -> Option<String>) -> Error {
    let (mut place, mut part, mut reason, mut tries) = ("#".to_owned(), schema, reason, TRIES);
    loop {
        let found = parts(part).into_iter().find_map(|(path, part)| {
            tries = tries.checked_sub(1)?;
            Some((path, part, refusal(with_definitions(part, schema))?))
        });
        let Some((path, inner, why)) = found else { return Error::grammar(Some(place), reason) };
        place.push_str(&path);
        (part, reason) = (inner, why);
    }
}

/// The schemas in a schema with their paths; definitions, which may be unused, come last.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for keyword in SINGLE {
        found.extend(schema.get(keyword).map(|part| (format!("/{keyword}"), part)));
    }
    for keyword in LISTS.into_iter().chain(["items"]) {
        let list = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
        found.extend(list.enumerate().map(|(place, part)| (format!("/{keyword}/{place}"), part)));
    }
    for keyword in NAMED {
        let named = schema.get(keyword).and_then(Value::as_object).into_iter().flatten();
        found.extend(named.map(|(name, part)| (format!("/{keyword}/{}", escaped(name)), part)));
    }
    found.retain(|(_, part)| part.is_object());
    found
}

/// A name as a part of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn with_definitions(part: &Value, root: &Value) -> Value {
    let mut whole: Map<String, Value> = part.as_object().cloned().unwrap_or_default();
    for keyword in ["$defs", "definitions", "x-guidance"] {
        if let Some(shared) = root.get(keyword).filter(|_| !whole.contains_key(keyword)) {
            whole.insert(keyword.to_owned(), shared.clone());
        }
    }
    Value::Object(whole)
}

/// The error of a Lark grammar: `3(7): expected ...`, also with `at` in front.
pub(super) fn in_lark(reason: &str) -> Error {
    let parts = || {
        let (place, rest) = reason.strip_prefix("at ").unwrap_or(reason).split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        let (line, column) = (line.parse::<u32>().ok()?, column.parse::<u32>().ok()?);
        Some((format!("line {line}, column {column}"), rest))
    };
    match parts() {
        Some((place, rest)) => Error::grammar(Some(place), rest),
        None => Error::grammar(None, reason),
    }
}
