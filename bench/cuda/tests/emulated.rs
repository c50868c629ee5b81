//! Tests of the whole program: with small sizes on the CPU that emulates a GPU, and without either.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtide-bench-cuda")).args(arguments).output().expect("the program runs")
}

fn out(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn report(arguments: &[&str], name: &str) -> (Output, Value) {
    let file = out(name);
    let _ = std::fs::remove_file(&file);
    let output = run(&[arguments, &["--out", file.to_str().unwrap()]].concat());
    let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{output:?}"));
    (output, serde_json::from_str(&text).unwrap())
}

#[test]
fn what_it_does_not_know_is_refused_by_name() {
    for (arguments, said) in [
        (&["--often"][..], "--often: expected --only"),
        (&["--rounds", "none"][..], "failed to parse 'none'"),
        (&["--rounds", "0"][..], "failed to parse '0'"),
        (&["--out"][..], "'--out' option doesn't have an associated value"),
    ] {
        let output = run(arguments);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
    }
}

/// Returns every workload of the report, by name, if there is no device to run them.
#[cfg(not(any(feature = "cuda", feature = "emulate")))]
#[test]
fn without_a_device_every_workload_is_skipped_by_name() {
    for (arguments, reason) in
        [(&[][..], "this build has no CUDA support"), (&["--emulated"][..], "--features emulate")]
    {
        let (output, report) = report(arguments, "skipped.json");
        assert!(output.status.success() && report["rounds"] == 11);
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("SKIPPED: "));
        assert_eq!(report["workloads"].as_array().unwrap().len(), 0);
        let skipped = report["skipped"].as_array().unwrap();
        assert!(skipped.iter().any(|of| of["id"] == "decode"));
        assert!(skipped.iter().all(|of| of["skipped"].as_str().unwrap().contains(reason)), "{skipped:?}");
    }
}

#[cfg(feature = "emulate")]
#[test]
fn every_workload_answers_what_it_should_and_has_its_rounds() {
    let (output, report) = report(&["--emulated", "--rounds", "2"], "emulated.json");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!((workloads.len(), report["failed"].as_array().unwrap().len()), (18, 0));
    for workload in workloads {
        let lanes = workload["lanes"].as_array().unwrap();
        assert!(lanes.iter().any(|lane| lane["role"] == "ours") && lanes.iter().any(|lane| lane["role"] == "limit"));
        for lane in lanes {
            assert!(lane["nanoseconds"].as_array().unwrap().len() == 2 && lane["host"].as_array().unwrap().len() == 2);
            assert!(lane["bytes"].is_f64() != lane["flops"].is_f64(), "{lane}");
        }
    }
}
