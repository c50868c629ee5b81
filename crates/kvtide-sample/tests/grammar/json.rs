//! JSON schemas: random walks give valid documents, and every token of a valid document is allowed.

use std::sync::Arc;

use kvtide_sample::grammar::{CompiledGrammar, Matcher, Vocabulary};
use serde_json::Value;

use crate::validator::is_valid;
use crate::words::{Random, allowed, bytes_and_words, json};

/// Schemas, each with documents that are valid.
const CASES: [(&str, &[&str]); 13] = [
    ("true", &["1", "\"a\"", "{\"b\": [null, true, -1.5e3]}", "[]"]),
    (r#"{"type": "object"}"#, &["{}", r#"{"a": {"b": 1}}"#]),
    (r#"{"type": ["integer", "null"], "minimum": -20, "maximum": 300}"#, &["-20", "0", "299", "null"]),
    (r#"{"type": "string", "minLength": 2, "maxLength": 5}"#, &["\"ab\"", "\"日本é\"", "\"a\\nb\""]),
    (r#"{"enum": ["red", "green", 7, null, {"a": 1}]}"#, &["\"red\"", "7", "null", "{\"a\":1}"]),
    (r#"{"const": {"deep": [1, "two"]}}"#, &[r#"{"deep":[1,"two"]}"#]),
    (
        r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
            "required": ["name", "age"], "additionalProperties": false}"#,
        &[r#"{"name":"é","age":12}"#, "{ \"name\" : \"\" ,\n  \"age\" : 0 }"],
    ),
    (
        r#"{"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1,
            "maxItems": 3}, "id": {"type": "number"}}, "required": ["tags"], "additionalProperties": {"type": "boolean"}}"#,
        &[r#"{"tags":["red"],"id":0.5}"#, r#"{"tags":["green","red","red"],"other":true}"#],
    ),
    (
        r##"{"$defs": {"tree": {"type": "object", "properties": {"value": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["value", "children"],
            "additionalProperties": false}}, "$ref": "#/$defs/tree"}"##,
        &[r#"{"value":1,"children":[{"value":-2,"children":[]}]}"#],
    ),
    (
        r##"{"$defs": {"a/b": {"type": "integer"}, "c": {"$anchor": "named", "type": "boolean"}}, "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#named"}]}, "maxItems": 4}"##,
        &["[1,true]"],
    ),
    (
        r##"{"$defs": {"a~b": {"type": "integer"}}, "type": "object", "properties": {"default": {"$ref": "#/$defs/a~0b"}, "enum":
            {"type": "null"}}, "required": ["default"], "additionalProperties": false}"##,
        &[r#"{"default":3}"#, r#"{"default":3,"enum":null}"#],
    ),
    (
        r#"{"anyOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
            "required": ["kind", "n"], "additionalProperties": false}, {"type": "object", "properties":
            {"kind": {"const": "b"}}, "required": ["kind"], "additionalProperties": false}, {"type": "null"}]}"#,
        &[r#"{"kind":"a","n":3}"#, r#"{"kind":"b"}"#, "null"],
    ),
    (
        r#"{"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}}], "additionalProperties": false,
            "properties": {"a": {}}}"#,
        &[r#"{"a":5}"#],
    ),
];

/// A random text that the masks allow, up to its end. Behind many tokens it prefers those that close something.
fn walk(vocabulary: &Vocabulary, matcher: &mut Matcher, random: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    for step in 0..2000 {
        let mask = matcher.mask().expect("a mask");
        if mask.is_over() || (mask.may_end() && (step > 30 || random.below(3) == 0)) {
            return text;
        }
        let found = allowed(vocabulary, matcher);
        let closing = ["\"", "}", "]", "\":", ":", "e", "l", "n", "[]", ",", "0"];
        let preferred = closing.iter().find_map(|wanted| {
            found.iter().copied().find(|&id| vocabulary.bytes(id) == wanted.as_bytes()).filter(|_| step > 30)
        });
        let token = preferred.unwrap_or_else(|| found[random.below(found.len() as u64) as usize]);
        assert_eq!(matcher.advance(token), Ok(true));
        text.extend_from_slice(vocabulary.bytes(token));
    }
    panic!("{:?} does not end", String::from_utf8_lossy(&text));
}

#[test]
fn random_walks_through_masks_give_valid_documents() {
    let vocabulary = bytes_and_words();
    let mut random = Random::new(3);
    for (schema, _) in CASES {
        let grammar = json(&vocabulary, schema);
        let root: Value = serde_json::from_str(schema).expect("a schema");
        let root = with_plain_references(root);
        for _ in 0..60 {
            let text = walk(&vocabulary, &mut Matcher::new(grammar.clone()), &mut random);
            let shown = String::from_utf8_lossy(&text).into_owned();
            let value: Value = match serde_json::from_slice(&text) {
                Ok(value) => value,
                // JSON has numbers that no double holds.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{shown}: {error}"),
            };
            assert!(is_valid(&root, &root, &value), "{shown} of {schema}");
        }
    }
}

/// The validator follows pointers only.
fn with_plain_references(schema: Value) -> Value {
    let text = schema.to_string().replace("#named", "#/$defs/c").replace("\"$anchor\":\"named\",", "");
    serde_json::from_str(&text).expect("a schema")
}

#[test]
fn every_way_to_write_a_valid_document_in_tokens_is_allowed() {
    let vocabulary = bytes_and_words();
    let mut random = Random::new(5);
    for (schema, documents) in CASES {
        let grammar = json(&vocabulary, schema);
        for document in documents {
            for _ in 0..8 {
                let mut matcher = Matcher::new(grammar.clone());
                let mut rest = document.as_bytes();
                while !rest.is_empty() {
                    let starts = |&id: &u32| !vocabulary.bytes(id).is_empty() && rest.starts_with(vocabulary.bytes(id));
                    let fitting: Vec<u32> = (0..vocabulary.size()).filter(starts).collect();
                    let token = fitting[random.below(fitting.len() as u64) as usize];
                    let is_masked = matcher.mask().expect("a mask").allows(token);
                    assert!(is_masked, "{document} of {schema}: {rest:?}");
                    assert_eq!(matcher.advance(token), Ok(true));
                    rest = &rest[vocabulary.bytes(token).len()..];
                }
                assert_eq!(matcher.may_end(), Ok(true), "{document} of {schema}");
            }
        }
    }
}

#[test]
fn white_space_is_a_space_or_a_line_break_with_its_indentation() {
    let vocabulary = bytes_and_words();
    let indented = |columns: usize| format!("\n{}", " ".repeat(columns));
    for schema in ["true", r#"{"type": "object"}"#, r#"{"x-guidance": {"lenient": true}}"#] {
        let grammar = json(&vocabulary, schema);
        for space in ["", " ", "\t", "\n", "\r\n\t", &indented(40)] {
            assert!(is_allowed(&vocabulary, &grammar, &format!("{{\"a\":{space}1{space}}}")), "{space:?} of {schema}");
        }
        for space in ["  ", "\n\n", " \n", &indented(41)] {
            assert!(!is_allowed(&vocabulary, &grammar, &format!("{{\"a\":{space}1}}")), "{space:?} of {schema}");
        }
    }
    let any = json(&vocabulary, r#"{"x-guidance": {"whitespace_flexible": true}}"#);
    assert!(is_allowed(&vocabulary, &any, "{\"a\":\n\n \t1}"));
    let none = json(&vocabulary, r#"{"x-guidance": {"whitespace_flexible": false}}"#);
    assert!(!is_allowed(&vocabulary, &none, "{\"a\": 1}"));
}

/// True if a text is allowed byte by byte.
fn is_allowed(vocabulary: &Vocabulary, grammar: &Arc<CompiledGrammar>, text: &str) -> bool {
    let mut matcher = Matcher::new(grammar.clone());
    text.bytes().all(|byte| {
        let token = (0..vocabulary.size()).find(|&id| vocabulary.bytes(id) == [byte]).expect("a token of each byte");
        matcher.mask().expect("a mask").allows(token) && matcher.advance(token) == Ok(true)
    })
}
