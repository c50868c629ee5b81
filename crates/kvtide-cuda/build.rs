//! Compiles the kernels: to machine code and PTX with `nvcc` for the feature `cuda`, for the CPU with a C++ compiler for `emulate`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of kernels, each a module of its own.
const MODULES: [&str; 11] = [
    "attend_decode",
    "attend_floats",
    "attend_merge",
    "attend_prefill",
    "boxes",
    "holes",
    "insert",
    "pieces",
    "quantise",
    "shift",
    "strips",
];

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names the folder for what is built"));
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo::rerun-if-env-changed=CUDA_HOME");
        let nvcc = env::var_os("CUDA_HOME").map_or_else(|| "nvcc".into(), |home| PathBuf::from(home).join("bin/nvcc"));
        let known = known_gpus(&nvcc);
        for module in MODULES {
            compile(&nvcc, &known, module, &out);
        }
    }
    #[cfg(feature = "emulate")]
    emulate(&out);
}

/// Machine code for these, and PTX of the oldest, which drivers compile for every other one that is later. What the compiler does not
/// know is left out.
const CODE: [(&str, &str); 3] = [
    ("sm_80", "arch=compute_80,code=[compute_80,sm_80]"),
    ("sm_90", "arch=compute_90,code=sm_90"),
    ("sm_120", "arch=compute_120,code=sm_120"),
];

/// What has to leave the same bits as the CPU: products and sums are rounded one by one there. Attention is as exact with both in one.
const EXACT: [&str; 2] = ["holes", "quantise"];

/// The GPUs that this compiler makes machine code for.
fn known_gpus(nvcc: &Path) -> String {
    match Command::new(nvcc).arg("--list-gpu-code").output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(output) => panic!("{} --list-gpu-code failed: {}", nvcc.display(), output.status),
        Err(error) => panic!("{} does not run: {error}; set CUDA_HOME, or see docs/cuda.md", nvcc.display()),
    }
}

fn compile(nvcc: &Path, known: &str, module: &str, out: &Path) {
    let is_known = |gpu: &str| known.split_whitespace().any(|one| one == gpu);
    let status = Command::new(nvcc)
        .args(["--fatbin", "-O3", "-std=c++17"])
        .args(EXACT.contains(&module).then_some("-fmad=false"))
        .args(CODE.iter().filter(|(gpu, _)| is_known(gpu)).flat_map(|(_, code)| ["-gencode", code]))
        .arg("-o")
        .arg(out.join(format!("{module}.fatbin")))
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
