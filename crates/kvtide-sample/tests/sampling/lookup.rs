//! Compares prompt lookup with an exhaustive search.

use kvtide_sample::{Error, PromptLookup};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::run;

/// The longest n-gram first, and for it the latest place.
fn naive(tokens: &[u32], shortest: usize, longest: usize, most: usize) -> Vec<u32> {
    for length in (shortest..=longest).rev().filter(|&length| length < tokens.len()) {
        let last = &tokens[tokens.len() - length..];
        if let Some(end) = (length..tokens.len()).rev().find(|&end| &tokens[end - length..end] == last) {
            let mut all = tokens.to_vec();
            (0..most).for_each(|place| all.push(all[end + place]));
            return all.split_off(tokens.len());
        }
    }
    Vec::new()
}

#[derive(Clone, Debug)]
enum Operation {
    Push(Vec<u32>),
    Truncate(usize),
}

#[test]
fn drafts_are_those_that_looking_everywhere_finds() {
    let alphabet = prop_oneof![Just(2u32), Just(4), Just(40)];
    let operations = alphabet.prop_flat_map(|most| {
        let push = vec(0..most, 0..30).prop_map(Operation::Push);
        vec(prop_oneof![5 => push, 1 => (0usize..80).prop_map(Operation::Truncate)], 1..12)
    });
    let cases = (1u32..5, 0u32..5, 0usize..12, operations);
    run("lookup", 2000, cases, |(shortest, more, most, operations)| {
        let longest = shortest + more;
        let (mut lookup, mut tokens) = (PromptLookup::new(shortest, longest).expect("lengths"), Vec::new());
        for operation in operations {
            match operation {
                Operation::Push(pushed) => {
                    for token in pushed {
                        lookup.push(&[token]);
                        tokens.push(token);
                        let wanted = naive(&tokens, shortest as usize, longest as usize, most);
                        prop_assert_eq!(lookup.draft(most), wanted, "{:?}", tokens);
                    }
                }
                Operation::Truncate(len) => {
                    lookup.truncate(len);
                    tokens.truncate(len);
                    prop_assert_eq!(lookup.draft(most), naive(&tokens, shortest as usize, longest as usize, most));
                }
            }
            prop_assert_eq!(lookup.len(), tokens.len());
        }
        Ok(())
    });
}

#[test]
fn many_different_tokens_are_all_found_again() {
    let tokens: Vec<u32> = (0..100_000u32).map(|place| place.wrapping_mul(2_654_435_761)).collect();
    let mut lookup = PromptLookup::new(1, 3).expect("lengths");
    lookup.push(&tokens);
    for place in [0, 1, 777, 50_000, 99_990] {
        lookup.push(&tokens[place..place + 2]);
        assert_eq!(lookup.draft(3), tokens[place + 2..place + 5], "{place}");
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let refused =
        |shortest, longest| matches!(PromptLookup::new(shortest, longest), Err(Error::InvalidArgument { .. }));
    assert!(refused(0, 3) && refused(4, 3) && refused(1, 0) && refused(1, 17));
    assert!(!refused(1, 16) && !refused(3, 3));
}
