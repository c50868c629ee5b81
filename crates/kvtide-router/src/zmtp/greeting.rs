//! The first 64 bytes of each side: the protocol version, and the security mechanism NULL, which has no authentication.

use std::io;

use super::broken;

/// The length of a greeting in bytes.
pub(super) const BYTES: usize = 64;

/// The position of a mechanism's name.
const MECHANISM: std::ops::Range<usize> = 12..32;

/// The mechanism without authentication.
const NULL: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Our greeting. Minor version 0 makes peers send subscriptions as messages, which every peer supports.
pub(super) const OURS: [u8; BYTES] = {
    let mut bytes = [0; BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    let mut at = 0;
    while at < NULL.len() {
        bytes[MECHANISM.start + at] = NULL[at];
        at += 1;
    }
    bytes
};

/// Returns an error for another protocol, an older version or another mechanism.
pub(super) fn check(bytes: &[u8; BYTES]) -> io::Result<()> {
    if (bytes[0], bytes[9]) != (0xff, 0x7f) {
        return Err(broken("the peer does not speak ZMTP"));
    }
    if bytes[10] < 3 {
        return Err(broken(format!("the peer speaks ZMTP {}, expected 3 or later", bytes[10])));
    }
    if bytes[MECHANISM] != NULL {
        let name = String::from_utf8_lossy(&bytes[MECHANISM]).trim_end_matches('\0').escape_default().to_string();
        return Err(broken(format!("the peer asks for the mechanism {name}, expected NULL")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_version_3_without_a_mechanism_alone() {
        check(&OURS).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = OURS;
            bytes[at] = byte;
            check(&bytes)
        };
        for (at, byte) in [(11, 1), (10, 4), (3, 7), (63, 1)] {
            with(at, byte).unwrap();
        }
        for (at, byte) in [(0, 0), (9, 0), (10, 1), (12, b'P'), (16, b'X'), (31, 1)] {
            assert!(with(at, byte).is_err(), "{at}");
        }
    }
}
