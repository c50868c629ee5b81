//! Positions: whatever way a matcher comes to a text, its masks are those of a matcher that began there.

use std::sync::Arc;
use std::thread;

use kvtide_sample::grammar::{AllowedTokens, CompiledGrammar, Matcher, Vocabulary};

use crate::words::{Random, allowed, bytes_and_words, json};

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "tags": {"type": "array",
    "items": {"enum": ["red", "green"]}}, "age": {"type": "integer"}}, "required": ["name", "tags"]}"#;

fn fresh(grammar: &Arc<CompiledGrammar>, text: &[u32]) -> AllowedTokens {
    let mut matcher = Matcher::new(grammar.clone());
    assert_eq!(matcher.seek(text), Ok(true));
    (*matcher.mask().expect("a mask")).clone()
}

fn next(vocabulary: &Vocabulary, matcher: &mut Matcher, random: &mut Random) -> Option<u32> {
    let found = allowed(vocabulary, matcher);
    found.get(random.below(found.len().max(1) as u64) as usize).copied()
}

#[test]
fn advancing_rolling_back_forking_and_seeking_never_change_a_mask() {
    let vocabulary = bytes_and_words();
    let grammar = json(&vocabulary, SCHEMA);
    let mut random = Random::new(19);
    for _ in 0..40 {
        let mut matcher = Matcher::new(grammar.clone());
        let mut text: Vec<u32> = Vec::new();
        for _ in 0..25 {
            match random.below(6) {
                0 | 1 => {
                    if let Some(token) = next(&vocabulary, &mut matcher, &mut random) {
                        assert_eq!(matcher.advance(token), Ok(true));
                        text.push(token);
                    }
                }
                2 => {
                    let count = random.below(text.len() as u64 + 1) as usize;
                    matcher.rollback(count).expect("at most all tokens");
                    text.truncate(text.len() - count);
                }
                3 => {
                    let mut other = matcher.fork().expect("a fork");
                    let _ = next(&vocabulary, &mut other, &mut random).map(|token| other.advance(token));
                    if random.below(2) == 0 {
                        matcher = other;
                        matcher.seek(&text).expect("its own text");
                    }
                }
                4 => {
                    // A draft whose last token may not be allowed.
                    let mut ahead = matcher.fork().expect("a fork");
                    let mut drafted = Vec::new();
                    for _ in 0..random.below(4) {
                        let Some(token) = next(&vocabulary, &mut ahead, &mut random) else { break };
                        assert_eq!(ahead.advance(token), Ok(true));
                        drafted.push(token);
                    }
                    drafted.extend((random.below(2) == 0).then(|| random.below(u64::from(vocabulary.size())) as u32));
                    check_drafted(&grammar, &mut matcher, &text, &drafted);
                }
                _ => {
                    let wrong = (0..vocabulary.size()).find(|&id| !fresh(&grammar, &text).allows(id));
                    assert_eq!(wrong.map(|token| matcher.advance(token)), Some(Ok(false)));
                }
            }
            assert_eq!(matcher.seek(&text), Ok(true));
            assert_eq!(*matcher.mask().expect("a mask"), fresh(&grammar, &text), "behind {text:?}");
        }
    }
}

fn check_drafted(grammar: &Arc<CompiledGrammar>, matcher: &mut Matcher, text: &[u32], drafted: &[u32]) {
    let masks = matcher.masks(text, drafted).expect("masks");
    assert_eq!(masks.len(), drafted.len() + 1);
    assert_eq!(matcher.ready(text, drafted).as_ref(), Some(&masks));
    // Another draft has masks of its own.
    if let (Some(&first), Some(mask)) = (drafted.first().filter(|_| masks[1].is_some()), &masks[0]) {
        let other = (0..256).find(|&id| id != first && mask.allows(id));
        assert!(other.is_none_or(|other| matcher.ready(text, &[other]).is_none()));
    }
    let mut is_reached = true;
    for (place, mask) in masks.iter().enumerate() {
        assert_eq!(mask.is_some(), is_reached, "row {place}");
        let Some(mask) = mask else { continue };
        assert_eq!(**mask, fresh(grammar, &[text, &drafted[..place]].concat()));
        is_reached = drafted.get(place).is_some_and(|&token| mask.allows(token));
    }
}

#[test]
fn a_matcher_that_was_dropped_leaves_nothing_to_the_next_one() {
    let vocabulary = bytes_and_words();
    let grammar = json(&vocabulary, SCHEMA);
    let (start, mut random) = (fresh(&grammar, &[]), Random::new(23));
    for _ in 0..20 {
        let mut matcher = Matcher::new(grammar.clone());
        assert_eq!(*matcher.mask().expect("a mask"), start);
        for _ in 0..random.below(30) {
            let Some(token) = next(&vocabulary, &mut matcher, &mut random) else { break };
            matcher.advance(token).expect("a token");
        }
    }
}

#[test]
fn matchers_on_several_threads_give_the_masks_of_one() {
    let vocabulary = bytes_and_words();
    let grammar = json(&vocabulary, SCHEMA);
    let walk = |seed| {
        let (mut matcher, mut random) = (Matcher::new(grammar.clone()), Random::new(seed));
        let mut masks = Vec::new();
        for _ in 0..30 {
            masks.push((*matcher.mask().expect("a mask")).clone());
            let Some(token) = next(&vocabulary, &mut matcher, &mut random) else { break };
            matcher.advance(token).expect("a token");
        }
        masks
    };
    let alone: Vec<_> = (0..8).map(walk).collect();
    let together: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..8).map(|seed| scope.spawn(move || walk(seed))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(alone == together);
}
