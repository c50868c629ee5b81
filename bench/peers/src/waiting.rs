//! How long a thread has waited for a processor that others had.
//!
//! On a machine that does other things too, that is noise of milliseconds, and none of it is the lane's. The system counts it
//! for each thread; where it does not, nothing is known and nothing is taken off.

use std::fs;
use std::time::Duration;

/// The time that this thread was ready to run and did not, since it began.
pub fn waited() -> Duration {
    fs::read_to_string("/proc/thread-self/schedstat").map_or(Duration::ZERO, |text| read(&text))
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
        assert_eq!(read("1234 567 8\n"), Duration::from_nanos(567));
        assert_eq!([read(""), read("none of it")], [Duration::ZERO; 2]);
    }

    #[test]
    fn waiting_never_goes_back() {
        let before = waited();
        std::thread::yield_now();
        assert!(waited() >= before);
    }
}
