//! Prepares a JSON schema for the parser, which follows references like `#/$defs/name` only.
//!
//! - A reference with an anchor, or with escaped characters, is replaced by one to a copy of its schema in `$defs`.
//! - A reference to another document is refused: nothing is fetched.
//! - Regular expressions have a length that the parser reads in time.
//! - The depth of schemas along references is bounded, since the parser's compiler recurses along them.
//! - White space between tokens of JSON is bounded: small models would fill their answer with it.
//!
//! O(schema), and the size of each copy.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

use super::compiled::PATTERN_MAX;
use super::location::{NAMED, escaped};

/// The deepest nesting of values along all references.
const LEVELS_MAX: usize = 12_000;
/// The number of references that are replaced.
const REPLACED_MAX: usize = 1000;
/// The keyword for options of the parser.
const OPTIONS: &str = "x-guidance";
/// White space between tokens of JSON by default: a space, or a line break and its indentation.
const SPACE: &str = r"[ \t]|\r?\n[ \t]{0,40}";
/// Keywords whose value is data, in which `$ref` means nothing.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// The references of a schema.
#[derive(Default)]
struct References {
    /// The path of each anchor.
    anchors: HashMap<String, String>,
    /// Each reference, and the place where it was found first.
    found: HashMap<String, String>,
    /// The depth below each path of an object.
    depths: HashMap<String, usize>,
    /// The first regular expression that is too long.
    refusal: Option<Error>,
}

/// Reads the text of a schema.
pub(super) fn prepared(text: &str) -> Result<Value> {
    let mut schema: Value = serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        Error::grammar(Some(place), format!("expected a JSON schema of at most 128 levels: {error}"))
    })?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err(Error::grammar(Some("#".to_owned()), "expected an object or a boolean"));
    }
    let mut references = References::default();
    let own = references.read(&schema, &mut String::new(), false);
    if let Some(refusal) = references.refusal.take() {
        return Err(refusal);
    }
    let id = schema.get("$id").and_then(Value::as_str).unwrap_or("").trim_end_matches('#').to_owned();
    let mut replaced = HashMap::new();
    let mut levels = own;
    for (reference, place) in &references.found {
        let path = references.path_of(reference, &id).and_then(|path| schema.pointer(&path).map(|_| path));
        let Some(path) = path else {
            let reason = format!("$ref {reference:?} leads to no schema of this document; others are not fetched");
            return Err(Error::grammar(Some(place.clone()), reason));
        };
        levels += references.depths.get(&path).copied().unwrap_or(0);
        if *reference != format!("#{path}") || path.contains(['~', '%']) {
            replaced.insert(reference.clone(), path);
        }
    }
    if levels > LEVELS_MAX {
        let reason = format!("{levels} levels along its references, expected at most {LEVELS_MAX}");
        return Err(Error::grammar(Some("#".to_owned()), reason));
    }
    replace(&mut schema, replaced)?;
    bound_space(&mut schema);
    Ok(schema)
}

/// Adds the default of white space, if the schema does not set another one.
fn bound_space(schema: &mut Value) {
    if *schema == Value::Bool(true) {
        *schema = Value::Object(Map::new());
    }
    if let Some(fields) = schema.as_object_mut()
        && let Some(options) = fields.entry(OPTIONS).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
        && !["whitespace_flexible", "whitespace_pattern"].iter().any(|&name| options.contains_key(name))
    {
        options.insert("whitespace_pattern".to_owned(), SPACE.into());
    }
}

impl References {
    /// Reads the references below a path, and returns the depth. The names of an object of schemas are no keywords.
    fn read(&mut self, value: &Value, path: &mut String, has_names: bool) -> usize {
        let length = path.len();
        let mut depth = 0;
        match value {
            Value::Object(fields) => {
                for (name, inner) in fields.iter().filter(|(name, _)| has_names || !DATA.contains(&name.as_str())) {
                    match (name.as_str(), inner) {
                        _ if has_names => {}
                        ("$ref", Value::String(reference)) => {
                            self.found.entry(reference.clone()).or_insert_with(|| format!("#{path}"));
                        }
                        ("$anchor", Value::String(anchor)) => {
                            self.anchors.insert(anchor.clone(), path.clone());
                        }
                        ("pattern", Value::String(pattern)) => self.check(pattern, path),
                        ("patternProperties", Value::Object(patterns)) => {
                            patterns.keys().for_each(|pattern| self.check(pattern, path));
                        }
                        _ => {}
                    }
                    path.push('/');
                    path.push_str(&escaped(name));
                    let has_names = !has_names && NAMED.contains(&name.as_str());
                    depth = depth.max(1 + self.read(inner, path, has_names));
                    path.truncate(length);
                }
                self.depths.insert(path.clone(), depth);
            }
            Value::Array(list) => {
                for (place, inner) in list.iter().enumerate() {
                    path.push_str(&format!("/{place}"));
                    depth = depth.max(1 + self.read(inner, path, false));
                    path.truncate(length);
                }
            }
            _ => {}
        }
        depth
    }

    /// Notes a regular expression that is too long.
    fn check(&mut self, pattern: &str, path: &str) {
        if pattern.len() > PATTERN_MAX && self.refusal.is_none() {
            let reason = format!("a pattern of {} bytes, expected at most {PATTERN_MAX}", pattern.len());
            self.refusal = Some(Error::grammar(Some(format!("#{path}")), reason));
        }
    }

    /// The path that a reference leads to, if that is in this document, whose name is `id`.
    fn path_of(&self, reference: &str, id: &str) -> Option<String> {
        let own = reference.strip_prefix(id).filter(|_| !id.is_empty()).unwrap_or(reference);
        if own.is_empty() {
            return Some(String::new());
        }
        let fragment = unescaped(own.strip_prefix('#')?)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            // The parser takes `#/` for the whole document too.
            return Some(fragment.trim_end_matches('/').to_owned());
        }
        self.anchors.get(&fragment).cloned()
    }
}

/// A fragment of a URI without its percent signs.
fn unescaped(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push((digit()? << 4 | digit()?) as u8);
    }
    String::from_utf8(bytes).ok()
}

/// Replaces references by those to copies in `$defs`.
fn replace(schema: &mut Value, replaced: HashMap<String, String>) -> Result<()> {
    if replaced.is_empty() {
        return Ok(());
    }
    if replaced.len() > REPLACED_MAX {
        let reason = format!("{} references with anchors or escapes, expected at most {REPLACED_MAX}", replaced.len());
        return Err(Error::grammar(Some("#".to_owned()), reason));
    }
    let names: HashMap<String, (String, String)> = (0..)
        .zip(replaced)
        .map(|(place, (reference, path))| (reference, (format!("kvtide-reference-{place}"), path)))
        .collect();
    rename(schema, &names, false);
    let copies: Map<String, Value> = names
        .into_values()
        // The whole document has a reference of its own.
        .filter(|(_, path)| !path.is_empty())
        .filter_map(|(name, path)| Some((name, schema.pointer(&path)?.clone())))
        .collect();
    if let Some(fields) = schema.as_object_mut()
        && let Some(definitions) = fields.entry("$defs").or_insert_with(|| Value::Object(Map::new())).as_object_mut()
    {
        definitions.extend(copies);
    }
    Ok(())
}

fn rename(value: &mut Value, names: &HashMap<String, (String, String)>, has_names: bool) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields.iter_mut().filter(|(name, _)| has_names || !DATA.contains(&name.as_str())) {
                match inner {
                    Value::String(reference) if name == "$ref" && !has_names => {
                        if let Some((name, path)) = names.get(reference.as_str()) {
                            *reference = if path.is_empty() { "#".to_owned() } else { format!("#/$defs/{name}") };
                        }
                    }
                    _ => rename(inner, names, !has_names && NAMED.contains(&name.as_str())),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| rename(inner, names, false)),
        _ => {}
    }
}
