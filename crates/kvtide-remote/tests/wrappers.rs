//! What is sealed or compressed comes out as it was, or not at all.

#[path = "support/memory.rs"]
mod memory;

use std::time::Instant;

use kvtide_remote::{Compressed, Sealed, Store, compress, decompress};
use memory::Memory;
use proptest::prelude::*;

const MAX: usize = 1 << 20;

fn put(store: &impl Store, key: &str, value: &[u8]) {
    assert_eq!(store.put_many(&[(key.to_owned(), value)], Instant::now()), 1);
}

fn get(store: &impl Store, key: &str, bytes_max: usize) -> Option<Vec<u8>> {
    store.get_many(&[key.to_owned()], bytes_max, Instant::now()).remove(0)
}

/// Changes what lies in the memory under a seal.
fn tamper(sealed: &Sealed<Memory>, change: impl FnOnce(&mut std::collections::BTreeMap<String, Vec<u8>>)) {
    change(&mut sealed.store().0.lock().unwrap());
}

#[test]
fn what_was_not_sealed_with_the_secret_under_its_key_is_a_miss_and_counted() {
    let sealed = Sealed::new(Memory::default(), [7; 32]);
    put(&sealed, "a", b"the value");
    put(&sealed, "b", b"another one");
    assert_eq!(get(&sealed, "a", 9), Some(b"the value".to_vec()));
    assert_eq!(get(&sealed, "a", 8), None, "too long");
    assert_eq!(get(&sealed, "c", 9), None);
    assert_eq!(sealed.forged(), 0);

    let whole = sealed.store().0.lock().unwrap()["a"].clone();
    let mut wrong = vec![Vec::new(), b"the value".to_vec(), whole[..whole.len() - 1].to_vec(), whole[1..].to_vec()];
    wrong.extend((0..whole.len()).map(|place| {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        bytes
    }));
    let count = wrong.len() as u64;
    for bytes in wrong {
        tamper(&sealed, |values| _ = values.insert("a".to_owned(), bytes));
        assert_eq!(get(&sealed, "a", MAX), None);
    }
    tamper(&sealed, |values| _ = values.insert("a".to_owned(), values["b"].clone()));
    assert_eq!(get(&sealed, "a", MAX), None, "of another key");
    assert_eq!(sealed.forged(), count + 1);
    assert_eq!(get(&sealed, "b", MAX), Some(b"another one".to_vec()));

    let other = Sealed::new(sealed, [8; 32]);
    assert_eq!(get(&other, "b", MAX), None, "of another secret");
}

#[test]
fn the_secret_is_shown_nowhere() {
    let sealed = Sealed::new(Memory::default(), *b"a secret that nobody may ever se");
    let shown = format!("{sealed:?} {sealed:#?}");
    assert!(!shown.contains("secret") && !shown.contains("97, 32, 115"), "{shown}");
}

#[test]
fn numbers_that_are_alike_get_smaller_and_random_bytes_stay_as_they_are() {
    let smooth: Vec<u8> = (0..4096).flat_map(|index| (1.0 + index as f32 * 1e-4).to_le_bytes()).collect();
    assert!(compress(&smooth, 4).unwrap().len() < smooth.len() * 3 / 4);
    let mut state = 1u64;
    let random: Vec<u8> = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    assert_eq!(compress(&random, 2).unwrap().len(), random.len() + 5);
}

#[test]
fn a_length_that_is_too_long_is_a_miss_before_memory_is_taken() {
    let zeros = compress(&vec![0; 1 << 16], 1).unwrap();
    assert_eq!(decompress(zeros.clone(), 1 << 16), Some(vec![0; 1 << 16]));
    assert_eq!(decompress(zeros.clone(), (1 << 16) - 1), None);
    let mut hostile = zeros;
    let place = hostile.len() - 5;
    hostile[place..place + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decompress(hostile, MAX), None);
}

#[test]
fn elements_of_another_size_are_refused() {
    let error = Compressed::new(Memory::default(), 3).unwrap_err();
    assert_eq!(error.to_string(), "elementBytes is 3, expected 1, 2 or 4");
}

#[test]
fn sealed_and_compressed_together_are_as_the_store_within() {
    for element_bytes in [1, 2, 4] {
        let store = Compressed::new(Sealed::new(Memory::default(), [1; 32]), element_bytes).unwrap();
        let keys: Vec<String> = ["x", "y"].map(str::to_owned).to_vec();
        put(&store, "x", &[5; 1001]);
        assert_eq!(store.has_many(&keys, Instant::now()), [true, false]);
        assert_eq!(store.get_many(&keys, 1001, Instant::now()), [Some(vec![5; 1001]), None]);
        store.remove_many(&keys, Instant::now());
        assert_eq!(get(&store, "x", MAX), None);
    }
}

proptest! {
    #[test]
    fn any_value_comes_out_as_it_was(value in prop::collection::vec(0u8..9, 0..300), element_bytes in prop::sample::select(vec![1usize, 2, 4])) {
        let bytes = compress(&value, element_bytes).unwrap();
        prop_assert!(bytes.len() <= value.len() + 5);
        prop_assert_eq!(decompress(bytes, value.len()), Some(value));
    }

    #[test]
    fn any_bytes_are_a_value_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300), method in 0u8..6, length in 0u32..2000) {
        let mut bytes = bytes;
        bytes.extend(length.to_le_bytes());
        bytes.push(method);
        if let Some(value) = decompress(bytes, 1000) {
            prop_assert_eq!(value.len(), length as usize);
            prop_assert!(value.len() <= 1000);
        }
    }
}
