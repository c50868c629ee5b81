//! What the machine is, as far as it says so itself. No name of it, and no path on it.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// The machine that a report is from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    pub cpu: String,
    /// Vector instructions that matter here.
    pub features: Vec<String>,
    pub cores: usize,
    /// Of the first core, from the nearest on: `L2 1024K`.
    pub caches: Vec<String>,
    pub memory: String,
    /// Whether large allocations get large pages unasked.
    pub huge_pages: String,
    pub kernel: String,
    pub rustc: String,
    /// Processes that wanted to run, on average over the minute before the run began.
    pub load: String,
}

impl Machine {
    /// This one. What it does not say is `unknown`.
    pub fn here() -> Self {
        let cpu = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        let kibibytes = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        let rustc = Command::new("rustc").arg("--version").output();
        let load = read("/proc/loadavg");
        Machine {
            cpu: field(&cpu, "model name").map_or_else(|| std::env::consts::ARCH.to_owned(), str::to_owned),
            features: features(field(&cpu, "flags").unwrap_or_default()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            caches: caches(),
            memory: kibibytes.map_or_else(unknown, |size| format!("{:.1} GiB", size / f64::from(1 << 20))),
            huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            kernel: format!("{} {}", std::env::consts::OS, read("/proc/sys/kernel/osrelease").trim()).trim().to_owned(),
            rustc: rustc.map_or_else(|_| unknown(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            load: load.split(' ').next().filter(|load| !load.is_empty()).map_or_else(unknown, str::to_owned),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first value of `name : value` lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

fn features(flags: &str) -> Vec<String> {
    let matter = ["avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "asimd"];
    flags.split(' ').filter(|flag| matter.contains(flag)).map(str::to_owned).collect()
}

/// Bytes of the last cache before memory; 32 MiB where the machine does not say.
pub fn last_cache_bytes() -> usize {
    caches().last().and_then(|cache| kibibytes(cache.split(' ').nth(1)?)).map_or(32 << 20, |size| size << 10)
}

/// The number of `1024K`.
fn kibibytes(size: &str) -> Option<usize> {
    match size.strip_suffix('M') {
        Some(size) => Some(size.parse::<usize>().ok()? << 10),
        None => size.trim_end_matches('K').parse().ok(),
    }
}

fn caches() -> Vec<String> {
    let index = |index: usize| {
        let of =
            |what: &str| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}")).trim().to_owned();
        let (level, kind, size) = (of("level"), of("type"), of("size"));
        (!size.is_empty() && kind != "Instruction").then(|| format!("L{level} {size}"))
    };
    (0..8).filter_map(index).collect()
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or_else(unknown, |(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_name() {
        let text = "processor\t: 0\nmodel name\t: A Processor: fast\nflags\t\t: sse avx2 f16c\n";
        assert_eq!(field(text, "model name"), Some("A Processor: fast"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(features(field(text, "flags").unwrap()), ["avx2", "f16c"]);
    }

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!([kibibytes("1024K"), kibibytes("2M"), kibibytes("large")], [Some(1024), Some(2048), None]);
        assert!(last_cache_bytes() >= 1 << 18);
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "unknown");
    }
}
