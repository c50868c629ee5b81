//! The time of what counts in a round.
//!
//! On a machine that does other things too, a thread waits milliseconds for a processor, and none of that is the lane's. The system
//! counts it for each thread; where it does not, nothing is known and nothing is taken off. O(1).

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Stopwatch {
    elapsed: Duration,
}

impl Stopwatch {
    /// Runs `work` and counts its time, less what the thread waited for a processor. What it returns is dropped by the
    /// caller, after the time was taken.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = waited();
        let (result, elapsed) = timed(work);
        self.add(elapsed.saturating_sub(waited().saturating_sub(before)));
        result
    }

    /// As [`time`](Self::time), for work of so many threads. Where there are several, what this one waited is counted: the
    /// others went on meanwhile.
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

/// The time that this thread was ready to run and did not, since it began.
fn waited() -> Duration {
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
