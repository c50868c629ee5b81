//! The last batches of a publisher, for replays: limited in number and bytes. The oldest is dropped first; O(1) each.

use std::collections::VecDeque;

use bytes::Bytes;

/// Batches with consecutive numbers.
#[derive(Debug)]
pub(super) struct History {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    batches_max: usize,
    bytes_max: usize,
}

impl History {
    pub(super) fn new(batches_max: usize, bytes_max: usize) -> Self {
        History { batches: VecDeque::new(), bytes: 0, batches_max, bytes_max }
    }

    pub(super) fn push(&mut self, number: u64, batch: Bytes) {
        self.bytes += batch.len();
        self.batches.push_back((number, batch));
        while self.batches.len() > self.batches_max || self.bytes > self.bytes_max {
            let Some(oldest) = self.pop() else { return };
            drop(oldest);
        }
    }

    /// Removes the oldest batch.
    pub(super) fn pop(&mut self) -> Option<(u64, Bytes)> {
        let oldest = self.batches.pop_front()?;
        self.bytes -= oldest.1.len();
        Some(oldest)
    }

    /// The oldest batch from a number on. O(1), since numbers are consecutive.
    pub(super) fn from(&self, number: u64) -> Option<(u64, Bytes)> {
        let (oldest, _) = self.batches.front()?;
        let skip = usize::try_from(number.saturating_sub(*oldest)).ok()?;
        self.batches.get(skip).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(history: &History, mut from: u64) -> Vec<u64> {
        std::iter::from_fn(|| {
            let (number, _) = history.from(from)?;
            from = number + 1;
            Some(number)
        })
        .collect()
    }

    #[test]
    fn keeps_so_many_batches_and_so_many_bytes() {
        let mut history = History::new(4, 100);
        for number in 5..15 {
            history.push(number, Bytes::from(vec![0; 10]));
        }
        assert_eq!(numbers(&history, 0), [11, 12, 13, 14]);
        assert_eq!(numbers(&history, 13), [13, 14]);
        assert_eq!(numbers(&history, 15), [0u64; 0]);
        assert_eq!(numbers(&history, u64::MAX), [0u64; 0]);
        history.push(15, Bytes::from(vec![0; 75]));
        assert_eq!(numbers(&history, 0), [13, 14, 15]);
        history.push(16, Bytes::from(vec![0; 101]));
        assert_eq!(numbers(&history, 0), [0u64; 0]);
    }
}
