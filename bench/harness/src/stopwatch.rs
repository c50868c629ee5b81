//! Measures the counted part of a round.
//!
//! On a shared machine, a thread waits milliseconds for a processor, and the lane is not to blame. The system counts
//! this time for each thread, and the stopwatch subtracts it. If the system doesn't count it, nothing is subtracted.
//! O(1).

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Stopwatch {
    elapsed: Duration,
}

impl Stopwatch {
    /// Runs `work` and counts its time, less the time that the thread waited for a processor. The caller drops the
    /// result, outside the counted time.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = waited();
        let (result, elapsed) = timed(work);
        self.add(elapsed.saturating_sub(waited().saturating_sub(before)));
        result
    }

    /// Counts time as [`time`](Self::time) does, for work of `threads` threads. If there are several, the time that
    /// this one waited is counted, because the others went on meanwhile.
    pub fn time_on<T>(&mut self, threads: usize, work: impl FnOnce() -> T) -> T {
        if threads == 1 {
            return self.time(work);
        }
        let (result, elapsed) = timed(work);
        self.add(elapsed);
        result
    }

    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Counts time that was measured elsewhere.
    pub fn add(&mut self, elapsed: Duration) {
        self.elapsed += elapsed;
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed();
    (std::hint::black_box(result), elapsed)
}

/// Returns the time that this thread was ready to run but had no processor, since it began; zero if the system does not
/// report it.
pub fn waited() -> Duration {
    std::fs::read_to_string("/proc/thread-self/schedstat").map_or(Duration::ZERO, |text| read(&text))
}

/// The second of three numbers: nanoseconds on a processor, nanoseconds of waiting, turns.
fn read(text: &str) -> Duration {
    let waiting = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(waiting.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_waiting() {
        assert_eq!(["1234 567 8\n", "", "none of it"].map(|text| read(text).as_nanos()), [567, 0, 0]);
    }

    #[test]
    fn waiting_never_goes_back() {
        let before = waited();
        std::thread::yield_now();
        assert!(waited() >= before);
    }
}
