//! Random streams, valid and damaged, in random pieces: the decoder returns what a naive one returns for all bytes at
//! once, and its memory is bounded by the bytes that it received.

use std::io;

use bytes::Bytes;

use super::super::command::{COMMAND, LONG, MORE, write_head};
use super::{Decoder, Limits, READ_BYTES, Received};
use crate::zmtp::COMMAND_BYTES_MAX;

#[path = "../support/mod.rs"]
mod support;

use support::{Numbers, seed};

const LIMITS: Limits = Limits { parts: 4, bytes: 2000 };

/// Decodes a stream up to its end or its first error, naively. The flag is true if there was an error.
fn naive(mut bytes: &[u8], limits: Limits) -> (Vec<Received>, bool) {
    let (mut received, mut parts): (Vec<Received>, Vec<Bytes>) = (Vec::new(), Vec::new());
    loop {
        let (is_command, has_more) = match bytes {
            [] => return (received, false),
            [0 | 2, ..] => (false, false),
            [1 | 3, ..] => (false, true),
            [4 | 6, ..] => (true, false),
            _ => return (received, true),
        };
        let head = if bytes[0] & LONG == 0 { 2 } else { 9 };
        if bytes.len() < head {
            return (received, false);
        }
        let size = bytes[1..head].iter().fold(0u128, |size, &byte| size << 8 | u128::from(byte));
        let before: usize = parts.iter().map(Bytes::len).sum();
        let most = if is_command { COMMAND_BYTES_MAX } else { limits.bytes - before };
        if size > most as u128 || (!is_command && parts.len() == limits.parts) {
            return (received, true);
        }
        let end = head + size as usize;
        if bytes.len() < end {
            return (received, false);
        }
        let frame = Bytes::copy_from_slice(&bytes[head..end]);
        bytes = &bytes[end..];
        if is_command {
            received.push(Received::Command(frame));
        } else {
            parts.push(frame);
            if !has_more {
                received.push(Received::Message(std::mem::take(&mut parts)));
            }
        }
    }
}

/// Decodes the same stream with the decoder under test, in pieces of random lengths.
fn decoded(bytes: &[u8], limits: Limits, numbers: &mut Numbers) -> (Vec<Received>, bool) {
    let mut decoder = Decoder::new(limits);
    let mut received = Vec::new();
    let mut given = 0;
    loop {
        match decoder.next() {
            Ok(Some(one)) => received.push(one),
            Ok(None) if given == bytes.len() => return (received, false),
            Ok(None) => {
                let count = (1 + numbers.below(600) as usize).min(bytes.len() - given);
                decoder.room().extend_from_slice(&bytes[given..given + count]);
                given += count;
                assert!(
                    decoder.buffer.capacity() <= 2 * (given + READ_BYTES),
                    "{} for {given}",
                    decoder.buffer.capacity()
                );
                let kept: usize = decoder.parts.iter().map(Bytes::len).sum();
                assert!(kept <= limits.bytes && decoder.parts.len() <= limits.parts);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                return (received, true);
            }
        }
    }
}

fn stream(numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..numbers.below(12) {
        let frames = 1 + numbers.below(5);
        for frame in 1..=frames {
            let size = match numbers.below(4) {
                0 => 0,
                1 => numbers.below(20),
                2 => 250 + numbers.below(12),
                _ => numbers.below(800),
            };
            let flags = match numbers.below(6) {
                0 => COMMAND,
                _ if frame < frames => MORE,
                _ => 0,
            };
            if numbers.below(3) == 0 {
                bytes.push(flags | LONG);
                bytes.extend(size.to_be_bytes());
            } else {
                write_head(&mut bytes, flags, size as usize);
            }
            bytes.extend((0..size).map(|at| at as u8));
        }
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..numbers.below(4) {
        let at = numbers.below(bytes.len() as u64 + 1) as usize;
        match numbers.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, numbers.next() as u8),
            2 => drop(bytes.splice(at..at, [LONG, 0, 0, 0, 16, 0, 0, 0, 0].map(|byte| byte | numbers.below(2) as u8))),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << numbers.below(8);
                }
            }
        }
    }
}

#[test]
fn streams_in_pieces_are_what_they_are_at_once() {
    let seed = seed();
    println!("KVTIDE_SEED={seed}");
    let mut numbers = Numbers(seed);
    let (mut faults, mut messages) = (0, 0);
    for case in 0..4000 {
        let mut bytes = stream(&mut numbers);
        if case % 2 == 1 {
            damage(&mut bytes, &mut numbers);
        }
        let expected = naive(&bytes, LIMITS);
        faults += u32::from(expected.1);
        messages += expected.0.len();
        assert_eq!(decoded(&bytes, LIMITS, &mut numbers), expected, "case {case}, KVTIDE_SEED={seed}");
    }
    assert!(faults > 500 && messages > 5000, "{faults} faults, {messages} messages");
}

#[test]
fn a_size_that_is_claimed_is_compared_and_never_reserved() {
    for flags in [LONG, LONG | MORE, LONG | COMMAND] {
        let most = if flags & COMMAND == 0 { LIMITS.bytes } else { COMMAND_BYTES_MAX } as u64;
        for size in [most + 1, 1 << 31, 1 << 32, 1 << 36, i64::MAX as u64, 1 << 63, u64::MAX] {
            let mut decoder = Decoder::new(LIMITS);
            decoder.room().extend([&[flags][..], &size.to_be_bytes()].concat());
            assert!(decoder.next().unwrap_err().to_string().contains(&format!("{size} bytes")));
        }
        let mut decoder = Decoder::new(LIMITS);
        decoder.room().extend([&[flags][..], &most.to_be_bytes()].concat());
        assert_eq!(decoder.next().unwrap(), None);
        assert!(decoder.buffer.capacity() <= 2 * READ_BYTES);
    }
}

#[test]
fn a_long_message_leaves_a_short_buffer_behind() {
    let mut decoder = Decoder::new(Limits { parts: 1, bytes: 1 << 20 });
    let mut bytes = Vec::new();
    write_head(&mut bytes, 0, 1 << 20);
    bytes.resize(bytes.len() + (1 << 20), 7);
    decoder.room().extend(bytes);
    assert!(matches!(decoder.next(), Ok(Some(Received::Message(parts))) if parts[0].len() == 1 << 20));
    assert!(decoder.room().capacity() <= 2 * READ_BYTES);
}
