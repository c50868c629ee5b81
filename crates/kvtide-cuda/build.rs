//! Compiles the kernels: to PTX with `nvcc` for the feature `cuda`, for the CPU with a C++ compiler for `emulate`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of kernels, each a module of its own.
const MODULES: [&str; 5] = ["boxes", "insert", "pieces", "shift", "strips"];

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names the folder for what is built"));
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        for module in MODULES {
            compile_ptx(module, &out);
        }
    }
    #[cfg(feature = "emulate")]
    emulate(&out);
}

/// The oldest architecture that runs them: drivers compile PTX for the one they find.
fn compile_ptx(module: &str, out: &Path) {
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    let nvcc = env::var_os("CUDA_HOME").map_or_else(|| "nvcc".into(), |home| PathBuf::from(home).join("bin/nvcc"));
    let status = Command::new(&nvcc)
        .args(["--ptx", "-O3", "-std=c++17", "-fmad=false", "-arch", "compute_80", "-o"])
        .arg(out.join(format!("{module}.ptx")))
        .arg(format!("kernels/{module}.cu"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{} failed on kernels/{module}.cu: {status}", nvcc.display()),
        Err(error) => panic!("{} does not run: {error}; set CUDA_HOME, or see docs/cuda.md", nvcc.display()),
    }
}

/// All kernels in one file, so that they share the grid's state.
#[cfg(feature = "emulate")]
fn emulate(out: &Path) {
    let all = out.join("emulated.cpp");
    let includes: String = MODULES.iter().map(|module| format!("#include \"{module}.cu\"\n")).collect();
    std::fs::write(&all, includes).expect("the folder for what is built can be written");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .include("kernels")
        .file(&all)
        // Floats as a GPU without contraction has them.
        .flag_if_supported("-ffp-contract=off")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-clobbered")
        .compile("kvtide_emulated");
}
