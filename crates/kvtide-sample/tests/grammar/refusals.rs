//! Grammars and tokenizers that cannot be used: each is an error with its place, in bounded time, and no panic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtide_sample::Error;
use kvtide_sample::grammar::{Grammar, Matcher, Token, Vocabulary};

use crate::words::{bytes_and_words, regex, text, vocabulary};

fn refusal(vocabulary: &Vocabulary, grammar: &Grammar) -> (Option<String>, String) {
    match vocabulary.compile(grammar).err() {
        Some(Error::InvalidGrammar { place, reason }) => (place, reason),
        other => panic!("{grammar:?}: {other:?}"),
    }
}

#[test]
fn a_schema_is_refused_with_the_path_of_the_part() {
    let vocabulary = bytes_and_words();
    let cases = [
        ("{", "line 1, column 1"),
        ("[]", "#"),
        (r#"{"type": "objekt"}"#, "#"),
        (r#"{"type": "object", "properties": {"a": {"not": {}}}}"#, "#/properties/a"),
        (r#"{"properties": {"a/b": {"items": {"type": "string", "format": "no such"}}}}"#, "#/properties/a~1b/items"),
        (r#"{"anyOf": [{"type": "null"}, {"uniqueItems": true, "type": "array"}]}"#, "#/anyOf/1"),
        (r##"{"$defs": {"x": {"type": 5}}, "items": {"$ref": "#/$defs/x"}}"##, "#/items"),
        (r##"{"properties": {"a": {"$ref": "#/$defs/none"}}}"##, "#/properties/a"),
        (r#"{"properties": {"a": {"$ref": "https://example.com/schema.json"}}}"#, "#/properties/a"),
        (r#"{"$ref": "other.json#/a"}"#, "#"),
        (r#"{"properties": {"a": {"$ref": "other.json#/properties/b"}, "b": {}}}"#, "#/properties/a"),
        (r#"{"type": "string", "pattern": "("}"#, "#"),
        ("false", "#"),
    ];
    for (schema, place) in cases {
        let (found, reason) = refusal(&vocabulary, &Grammar::Json(schema.to_owned()));
        assert_eq!(found.as_deref(), Some(place), "{schema}: {reason}");
        assert!(!reason.is_empty() && !reason.contains('\n') && !reason.contains("backtrace"), "{reason}");
    }
}

#[test]
fn a_regular_expression_and_a_lark_grammar_are_refused_with_the_place() {
    let vocabulary = bytes_and_words();
    for (pattern, place) in
        [("é(a", Some("character 1")), ("a**(?=b)", Some("character 3")), (r"a\b", None), ("a^b", None)]
    {
        let (found, reason) = refusal(&vocabulary, &Grammar::Regex(pattern.to_owned()));
        assert_eq!(found.as_deref(), place, "{pattern}: {reason}");
        assert!(place.is_some() || reason.starts_with("anchors and word boundaries"), "{pattern}: {reason}");
    }
    for (text, place) in [
        ("start: \"a\" |\n  other", Some("line 2, column 8")),
        ("start: \"a\"\n\n???", Some("line 3, column")),
        ("nothing: \"a\"", None),
        ("start: <no-such-token>", Some("line 1, column")),
        ("start: a\na[max_tokens=3]: /b+/", None),
    ] {
        let (found, reason) = refusal(&vocabulary, &Grammar::Lark(text.to_owned()));
        let is_there = match place {
            Some(place) => found.as_deref().is_some_and(|found| found.starts_with(place)),
            None => true,
        };
        assert!(is_there, "{text:?}: {found:?} {reason}");
        assert!(!reason.contains('\n'), "{reason}");
    }
}

#[test]
fn a_rule_that_is_a_schema_is_read_as_a_schema_alone() {
    let vocabulary = bytes_and_words();
    let rule = |schema: &str| Grammar::Lark(format!("start: \"<\" value \">\"\nvalue: %json {schema}\n"));
    let names =
        |count: usize| (0..count).map(|at| format!(r#""a name of a property, {at}":true,"#)).collect::<String>();
    let long =
        format!(r##"{{"properties":{{{}"b":{{"$ref":"#here"}}}},"$defs":{{"x":{{"$anchor":"here"}}}}}}"##, names(800));
    assert!(long.len() > 1 << 14);
    vocabulary.compile(&rule(&long)).unwrap();
    // Between tokens of JSON there may be a space, and not two.
    let compiled = Arc::new(vocabulary.compile(&rule(r#"{"type":"array","items":{"type":"null"}}"#)).unwrap());
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    for (text, is_there) in [("<[ null]>", true), ("<[  null]>", false)] {
        assert_eq!(Matcher::new(Arc::clone(&compiled)).seek(&bytes(text)), Ok(is_there), "{text}");
    }
    for (schema, expected) in [
        (format!(r#"{{"pattern":"{}"}}"#, "a".repeat(9000)), "8192"),
        (format!(r#"{{"enum":["{}"]}}"#, "a".repeat(1 << 20)), "1048576"),
        (r#"{"$ref":"other.json"}"#.to_owned(), "not fetched"),
    ] {
        let (_, reason) = refusal(&vocabulary, &rule(&schema));
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn a_schema_is_refused_that_is_too_deep_along_its_references() {
    let nested = |inner: String| (0..60).fold(inner, |schema, _| format!(r#"{{"items":{schema}}}"#));
    let next = |at: usize| {
        if at == 299 { r#"{"type":"null"}"#.into() } else { format!(r##"{{"$ref":"#/$defs/d{}"}}"##, at + 1) }
    };
    let all: Vec<String> = (0..300).map(|at| format!(r#""d{at}":{}"#, nested(next(at)))).collect();
    let schema = format!(r##"{{"$defs":{{{}}},"$ref":"#/$defs/d0"}}"##, all.join(","));
    let (place, reason) = refusal(&bytes_and_words(), &Grammar::Json(schema));
    assert_eq!(place.as_deref(), Some("#"));
    assert!(reason.contains("levels along its references"), "{reason}");
}

#[test]
fn anchors_around_a_whole_expression_change_nothing() {
    let vocabulary = vocabulary(&["a", "b", "$"]);
    for pattern in ["^ab$", "ab", "^ab", "ab$"] {
        let mut matcher = Matcher::new(regex(&vocabulary, pattern));
        assert_eq!(matcher.seek(&[0, 1]), Ok(true), "{pattern}");
        assert_eq!(matcher.is_over(), Ok(true));
    }
    assert_eq!(Matcher::new(regex(&vocabulary, r"^ab\$")).seek(&[0, 1, 2]), Ok(true));
    assert!(regex(&vocabulary, "").is_empty() && regex(&vocabulary, "^$").is_empty());
    assert!(!regex(&vocabulary, "a*").is_empty());
}

/// Grammars that are large, deep or slow.
fn hostile() -> Vec<(&'static str, Grammar)> {
    let through = |count: usize, open: &str, close: &str| {
        let definitions = (0..count).map(|n| format!(r##""d{n}":{{{open}{{"$ref":"#/$defs/d{}"}}{close}}}"##, n + 1));
        let definitions = definitions.collect::<Vec<_>>().join(",");
        format!(r##"{{"$defs":{{{definitions},"d{count}":{{}}}},"$ref":"#/$defs/d0"}}"##)
    };
    let chain = |count| through(count, r#""items":"#, "");
    let repeated = |part: &str, count: usize| part.repeat(count);
    let rules = (0..8000).map(|n| format!("r{n}: r{}\n", n + 1)).collect::<String>();
    vec![
        ("deep schema", Grammar::Json(repeated(r#"{"items":"#, 5000) + "{}" + &repeated("}", 5000))),
        ("chain of references", Grammar::Json(chain(5_900))),
        ("longer chain", Grammar::Json(chain(20_000))),
        ("longer chain in names", Grammar::Json(through(10_000, r#""properties":{"default":"#, "}"))),
        ("references in a circle", Grammar::Json(r##"{"$ref": "#"}"##.to_owned())),
        (
            "a circle of two",
            Grammar::Json(
                r##"{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}"##.to_owned(),
            ),
        ),
        (
            "large enum",
            Grammar::Json(format!("{{\"enum\":[{}1]}}", (2..60_000).map(|n| format!("{n},")).collect::<String>())),
        ),
        ("long string", Grammar::Json(r#"{"type":"string","minLength":100000,"maxLength":1000000}"#.to_owned())),
        ("large numbers", Grammar::Json(r#"{"type":"array","minItems":100000000,"maxItems":4000000000}"#.to_owned())),
        (
            "pattern in a schema",
            Grammar::Json(r#"{"type":"string","pattern":"((a{1,100}){1,100}){1,100}"}"#.to_owned()),
        ),
        ("nested repetition", Grammar::Regex("((a{1,500}){1,500}){1,500}".to_owned())),
        ("intersections", Grammar::Lark("start: A\nA: /(.*a.{30})/ & /(.*b.{31})/ & ~/(.*c.{29})/".to_owned())),
        ("exponential states", Grammar::Regex("(?:a|b)*a(?:a|b){24}".to_owned())),
        ("many groups", Grammar::Regex(repeated("(", 20_000) + &repeated(")", 20_000))),
        ("groups below the limit", Grammar::Regex(repeated("(?:", 95) + "a" + &repeated(")*", 95))),
        ("many optional letters", Grammar::Regex(repeated("a?", 60_000))),
        ("fewer optional letters", Grammar::Regex(repeated("a?", 4000))),
        ("optional letters in a schema", Grammar::Json(format!("{{\"pattern\":\"{}\"}}", repeated("a?", 60_000)))),
        ("long alternative", Grammar::Regex((0..20_000).map(|n| format!("w{n}|")).collect::<String>() + "end")),
        ("deep Lark", Grammar::Lark(format!("start: {}\"a\"{}", repeated("(", 60_000), repeated(")", 60_000)))),
        ("chain of rules", Grammar::Lark(format!("start: r0\n{rules}r8000: \"a\""))),
        ("rules in a circle", Grammar::Lark("start: a\na: b\nb: a".to_owned())),
        ("ambiguous", Grammar::Lark("start: s\ns: s s s | s s | \"a\" | \"\"".to_owned())),
        ("too long", Grammar::Regex(repeated("a", 300_000))),
        ("much too long", Grammar::Json(format!("{{\"description\":\"{}\"}}", repeated("a", 2_000_000)))),
    ]
}

#[test]
fn hostile_grammars_end_in_bounded_time_and_never_panic() {
    let vocabulary = bytes_and_words();
    for (name, grammar) in hostile() {
        let start = Instant::now();
        let compiled = vocabulary.compile(&grammar);
        let compiling = start.elapsed();
        let start = Instant::now();
        let outcome = compiled.and_then(|compiled| {
            let mut matcher = Matcher::new(Arc::new(compiled));
            for _ in 0..40 {
                let mask = matcher.mask()?;
                let Some(token) = (0..vocabulary.size()).rev().find(|&id| mask.allows(id)) else { break };
                matcher.advance(token)?;
            }
            Ok(())
        });
        println!("{name}: {compiling:?}, masks {:?}: {outcome:?}", start.elapsed());
        assert!(compiling < Duration::from_secs(20) && start.elapsed() < Duration::from_secs(20), "{name}");
        if let Err(error) = outcome {
            assert!(matches!(error, Error::InvalidGrammar { .. }), "{name}: {error}");
        }
    }
}

#[test]
fn a_text_that_no_token_continues_is_an_error_of_its_matcher_alone() {
    let vocabulary = vocabulary(&["a", "b"]);
    let grammar = regex(&vocabulary, "a(?:b|cd)|bz");
    let mut stuck = Matcher::new(grammar.clone());
    assert_eq!(stuck.seek(&[1]), Ok(true));
    let refused = stuck.mask().err();
    let wanted = Error::InvalidGrammar {
        place: Some("token 1".to_owned()),
        reason: "no token of the vocabulary continues the text".to_owned(),
    };
    assert_eq!(refused.as_ref(), Some(&wanted));
    assert_eq!(stuck.rollback(1).err(), refused);
    drop(stuck);
    assert_eq!(Matcher::new(grammar).seek(&[0, 1]), Ok(true));
}

#[test]
fn wrong_positions_and_vocabularies_are_refused() {
    let vocabulary = vocabulary(&["a"]);
    let mut matcher = Matcher::new(regex(&vocabulary, "a*"));
    assert!(matches!(matcher.rollback(1), Err(Error::InvalidArgument { argument: "count", .. })));
    assert!(matches!(matcher.masks(&[99], &[]), Err(Error::InvalidGrammar { .. })));
    assert_eq!(matcher.advance(u32::MAX), Ok(false));
    assert!(matches!(Vocabulary::new(&[]), Err(Error::InvalidArgument { .. })));
    // Tokens that the trie does not hold are never allowed.
    let odd =
        [text("a"), Token::Text(vec![b'a'; 5000]), Token::Text(vec![b'a', 0xff]), Token::Unused, Token::Text(vec![])];
    let odd = Vocabulary::new(&odd).expect("a vocabulary");
    let mask = Matcher::new(regex(&odd, "a*")).mask().expect("a mask");
    assert_eq!((0..5).filter(|&id| mask.allows(id)).collect::<Vec<_>>(), [0]);
    assert_eq!(odd.bytes(1).len(), 5000);
}
