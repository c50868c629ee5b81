//! How a buffer's capacity grows: by doubling, up to a bound.

/// The capacity for `needed` slots: `present` doubled until it fits, at most `limit`. `needed` is at most `limit`.
pub(crate) fn doubled(present: u32, needed: u32, limit: u32) -> u32 {
    if needed <= present {
        return present;
    }
    let mut capacity = u64::from(present.max(1));
    while capacity < u64::from(needed) {
        capacity *= 2;
    }
    u32::try_from(capacity).unwrap_or(u32::MAX).min(limit)
}

#[cfg(test)]
mod tests {
    use super::doubled;

    #[test]
    fn doubles_from_what_is_there_up_to_the_limit() {
        assert_eq!(doubled(64, 65, 2048), 128);
        assert_eq!(doubled(4, 5, 2048), 8);
        assert_eq!(doubled(4, 4, 2048), 4);
        assert_eq!(doubled(6, 7, 8), 8);
        assert_eq!(doubled(0, 5, 2048), 8);
        assert_eq!(doubled(0, 1, 2048), 1);
        assert_eq!(doubled(1 << 30, i32::MAX as u32, i32::MAX as u32), i32::MAX as u32);
    }
}
