//! Masks of random regular expressions and of small context-free grammars against naive matchers, token by token.

use kvtide_sample::grammar::{Matcher, Vocabulary};

use crate::words::{Random, allowed, lark, regex, vocabulary};

/// A regular expression over a few letters, matched by derivatives, with no other simplification than that of the empty
/// language and of equal alternatives.
#[derive(Clone, Debug, PartialEq)]
enum Pattern {
    Nothing,
    Empty,
    Letter(u8),
    Concat(Box<Pattern>, Box<Pattern>),
    Either(Box<Pattern>, Box<Pattern>),
    Star(Box<Pattern>),
}

use Pattern::{Concat, Either, Empty, Letter, Nothing, Star};

impl Pattern {
    fn random(random: &mut Random, depth: u64) -> Self {
        let inner = |random: &mut Random| Box::new(Pattern::random(random, depth - 1));
        match if depth == 0 { 0 } else { random.below(7) } {
            0 | 1 => Letter(b'a' + random.below(3) as u8),
            2 | 3 => Concat(inner(random), inner(random)),
            4 | 5 => Either(inner(random), inner(random)),
            _ => Star(inner(random)),
        }
    }

    fn text(&self) -> String {
        match self {
            Nothing => unreachable!("no pattern has it"),
            Empty => String::new(),
            Letter(letter) => char::from(*letter).to_string(),
            Concat(first, second) => format!("{}{}", first.text(), second.text()),
            Either(first, second) => format!("(?:{}|{})", first.text(), second.text()),
            Star(inner) => format!("(?:{})*", inner.text()),
        }
    }

    fn is_nullable(&self) -> bool {
        match self {
            Nothing | Letter(_) => false,
            Empty | Star(_) => true,
            Concat(first, second) => first.is_nullable() && second.is_nullable(),
            Either(first, second) => first.is_nullable() || second.is_nullable(),
        }
    }

    fn concat(first: Self, second: Self) -> Self {
        match (first, second) {
            (Nothing, _) | (_, Nothing) => Nothing,
            (Empty, other) | (other, Empty) => other,
            (first, second) => Concat(Box::new(first), Box::new(second)),
        }
    }

    fn either(first: Self, second: Self) -> Self {
        match (first, second) {
            (Nothing, other) | (other, Nothing) => other,
            (first, Either(one, other)) => Pattern::either(Pattern::either(first, *one), *other),
            // Alternatives are a set: without that, derivatives of nested stars grow exponentially.
            (first, second) if first.has(&second) => first,
            (first, second) => Either(Box::new(first), Box::new(second)),
        }
    }

    /// True if a pattern is one of the alternatives.
    fn has(&self, other: &Self) -> bool {
        self == other || matches!(self, Either(first, second) if first.has(other) || second.has(other))
    }

    fn behind(&self, letter: u8) -> Self {
        match self {
            Nothing | Empty => Nothing,
            Letter(own) => {
                if *own == letter {
                    Empty
                } else {
                    Nothing
                }
            }
            Either(first, second) => Pattern::either(first.behind(letter), second.behind(letter)),
            Star(inner) => Pattern::concat(inner.behind(letter), self.clone()),
            Concat(first, second) => {
                let own = Pattern::concat(first.behind(letter), (**second).clone());
                if first.is_nullable() { Pattern::either(own, second.behind(letter)) } else { own }
            }
        }
    }

    fn behind_all(&self, text: &[u8]) -> Self {
        text.iter().fold(self.clone(), |pattern, &letter| pattern.behind(letter))
    }
}

const TOKENS: [&str; 12] = ["a", "b", "c", "ab", "ba", "ca", "abc", "cab", "aaa", "bb", "cc", "abab"];

/// Checks the mask of each text along a random walk.
fn compare(
    vocabulary: &Vocabulary,
    matcher: &mut Matcher,
    random: &mut Random,
    what: &str,
    accepts: &dyn Fn(&[u8]) -> (bool, bool),
) {
    let mut text = Vec::new();
    for _ in 0..10 {
        let found = allowed(vocabulary, matcher);
        let wanted: Vec<u32> = (0..vocabulary.size())
            .filter(|&id| !vocabulary.is_special(id))
            .filter(|&id| accepts(&[&text, vocabulary.bytes(id)].concat()).0)
            .collect();
        let shown = String::from_utf8_lossy(&text).into_owned();
        assert_eq!(found, wanted, "{what} behind {shown:?}");
        let (_, may_end) = accepts(&text);
        assert_eq!(matcher.may_end(), Ok(may_end), "{what} behind {shown:?}");
        assert_eq!(
            matcher.mask().map(|mask| mask.is_over()),
            Ok(may_end && wanted.is_empty()),
            "{what} behind {shown:?}"
        );
        let Some(&token) = wanted.get(random.below(wanted.len().max(1) as u64) as usize) else { return };
        assert_eq!(matcher.advance(token), Ok(true));
        text.extend_from_slice(vocabulary.bytes(token));
    }
}

#[test]
fn masks_of_regular_expressions_are_those_of_a_naive_matcher() {
    let vocabulary = vocabulary(&TOKENS);
    let mut random = Random::new(7);
    for _ in 0..300 {
        let pattern = Pattern::random(&mut random, 4);
        let text = pattern.text();
        let grammar = regex(&vocabulary, &text);
        let accepts = |text: &[u8]| {
            let rest = pattern.behind_all(text);
            (!matches!(rest, Nothing), rest.is_nullable())
        };
        for _ in 0..3 {
            compare(&vocabulary, &mut Matcher::new(grammar.clone()), &mut random, &text, &accepts);
        }
    }
}

/// All texts of a grammar up to a length, by replacing its first upper-case letter with each alternative.
fn texts_of(rules: &[(char, &[&str])], most: usize) -> Vec<String> {
    let (mut open, mut found) = (vec!["S".to_owned()], Vec::new());
    while let Some(form) = open.pop() {
        let Some(place) = form.find(|letter: char| letter.is_uppercase()) else {
            found.push(form);
            continue;
        };
        let rule = form[place..].chars().next();
        let (_, choices) = rules.iter().find(|(name, _)| Some(*name) == rule).expect("a rule");
        let replaced = choices.iter().map(|choice| format!("{}{choice}{}", &form[..place], &form[place + 1..]));
        open.extend(replaced.filter(|form| form.chars().filter(|letter| !letter.is_uppercase()).count() <= most));
        open.retain(|form| form.len() <= 2 * most + 2);
    }
    found
}

#[test]
fn masks_of_context_free_grammars_are_those_of_a_naive_enumeration() {
    type Rules = &'static [(char, &'static [&'static str])];
    let cases: [(&str, Rules); 4] = [
        ("start: s\ns: \"a\" s \"b\" | \"\"", &[('S', &["aSb", ""])]),
        ("start: s\ns: \"a\" s \"a\" | \"b\" s \"b\" | \"c\"", &[('S', &["aSa", "bSb", "c"])]),
        ("start: s\ns: p \"c\"\np: \"a\" p \"b\" p | \"\"", &[('S', &["Pc"]), ('P', &["aPbP", ""])]),
        ("start: s\ns: \"a\" | s \"b\" \"a\"", &[('S', &["a", "Sba"])]),
    ];
    let vocabulary = vocabulary(&TOKENS);
    let mut random = Random::new(11);
    for (text, rules) in cases {
        let texts = texts_of(rules, 13);
        let grammar = lark(&vocabulary, text);
        let accepts = |text: &[u8]| {
            let is_text = texts.iter().any(|other| other.as_bytes() == text);
            (texts.iter().any(|other| other.as_bytes().starts_with(text)), is_text)
        };
        for _ in 0..20 {
            // Texts up to half of the length that was enumerated, where every start of a text is one of them.
            let mut matcher = Matcher::new(grammar.clone());
            let mut so_far = 0;
            let mut walked = Vec::new();
            while so_far + 4 <= 6 {
                let found = allowed(&vocabulary, &mut matcher);
                let wanted: Vec<u32> = (0..TOKENS.len() as u32)
                    .filter(|&id| accepts(&[walked.as_slice(), vocabulary.bytes(id)].concat()).0)
                    .collect();
                assert_eq!(found, wanted, "{text:?} behind {:?}", String::from_utf8_lossy(&walked));
                assert_eq!(matcher.may_end(), Ok(accepts(&walked).1));
                let Some(&token) = wanted.get(random.below(wanted.len().max(1) as u64) as usize) else { break };
                matcher.advance(token).expect("a token");
                walked.extend_from_slice(vocabulary.bytes(token));
                so_far = walked.len();
            }
        }
    }
}

#[test]
fn only_a_grammar_that_names_a_special_token_allows_it() {
    let vocabulary = vocabulary(&TOKENS);
    let end = TOKENS.len() as u32;
    let mut named = Matcher::new(lark(&vocabulary, "start: \"a\" <end> \"b\""));
    assert_eq!(named.seek(&[0, end, 1]), Ok(true));
    assert_eq!(named.is_over(), Ok(true));
    let mut any = Matcher::new(regex(&vocabulary, "(?s:.)*"));
    assert_eq!(any.advance(end), Ok(false));
    assert_eq!(allowed(&vocabulary, &mut any).len(), TOKENS.len());
}
