//! A value that was sealed or compressed is opened unchanged, or not at all.

use kvtide_tiers::{Envelope, compress, decompress};
use proptest::prelude::*;

const MAX: usize = 1 << 20;

fn opened(envelope: &Envelope, key: &str, bytes: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    envelope.open(key, bytes, bytes_max).map(std::borrow::Cow::into_owned)
}

#[test]
fn what_was_not_sealed_with_the_secret_under_its_key_is_nothing() {
    let sealed = Envelope::new(Some([7; 32]), None).unwrap();
    let whole = sealed.close("a", b"the value".to_vec()).unwrap();
    assert_eq!(whole.len(), sealed.bytes_max(9));
    assert_eq!(opened(&sealed, "a", &whole, 9), Some(b"the value".to_vec()));
    assert_eq!(opened(&sealed, "a", &whole, 8), None, "too long");
    let mut wrong = vec![Vec::new(), b"the value".to_vec(), whole[..whole.len() - 1].to_vec(), whole[1..].to_vec()];
    wrong.extend((0..whole.len()).map(|place| {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        bytes
    }));
    wrong.iter().for_each(|bytes| assert_eq!(opened(&sealed, "a", bytes, MAX), None));
    assert_eq!(opened(&sealed, "b", &whole, MAX), None, "of another key");
    let other = Envelope::new(Some([8; 32]), None).unwrap();
    assert_eq!(opened(&other, "a", &whole, MAX), None, "of another secret");
    assert_ne!(other.suffix(), sealed.suffix());
}

#[test]
fn the_secret_is_shown_nowhere() {
    let sealed = Envelope::new(Some(*b"a secret that must not be leaked"), Some(2)).unwrap();
    let shown = format!("{sealed:?} {sealed:#?} {}", sealed.suffix());
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
    assert_eq!(decompress(&zeros, 1 << 16).as_deref(), Some(&[0; 1 << 16][..]));
    assert_eq!(decompress(&zeros, (1 << 16) - 1), None);
    let mut hostile = zeros;
    let place = hostile.len() - 5;
    hostile[place..place + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decompress(&hostile, MAX), None);
}

#[test]
fn elements_of_another_size_are_refused() {
    let error = Envelope::new(None, Some(3)).unwrap_err();
    assert_eq!(error.to_string(), "elementBytes is 3, expected 1, 2 or 4");
}

#[test]
fn sealed_and_compressed_together_come_out_as_they_were() {
    for (secret, element_bytes) in [(None, None), (Some([1; 32]), Some(1)), (Some([1; 32]), Some(4)), (None, Some(2))] {
        let envelope = Envelope::new(secret, element_bytes).unwrap();
        for value in [Vec::new(), vec![5; 1001], (0..=255).collect()] {
            let bytes = envelope.close("x", value.clone()).unwrap();
            assert!(bytes.len() <= envelope.bytes_max(value.len()));
            assert_eq!(opened(&envelope, "x", &bytes, value.len()), Some(value));
        }
    }
}

proptest! {
    #[test]
    fn any_value_comes_out_as_it_was(value in prop::collection::vec(0u8..9, 0..300), element_bytes in prop::sample::select(vec![1usize, 2, 4])) {
        let bytes = compress(&value, element_bytes).unwrap();
        prop_assert!(bytes.len() <= value.len() + 5);
        let again = decompress(&bytes, value.len());
        prop_assert_eq!(again.as_deref(), Some(&value[..]));
    }

    #[test]
    fn any_bytes_are_a_value_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300), method in 0u8..6, length in 0u32..2000) {
        let mut bytes = bytes;
        bytes.extend(length.to_le_bytes());
        bytes.push(method);
        if let Some(value) = decompress(&bytes, 1000) {
            prop_assert_eq!(value.len(), length as usize);
            prop_assert!(value.len() <= 1000);
        }
    }
}
