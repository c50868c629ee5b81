//! Compiles the kernels: to machine code and PTX with `nvcc` for the feature `cuda`, and for the CPU with a C++ compiler for
//! `emulate`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel files, each compiled as a module.
const MODULES: [&str; 10] = [
    "attend_decode",
    "attend_floats",
    "attend_merge",
    "attend_prefill",
    "boxes",
    "holes",
    "pieces",
    "quantise",
    "shift",
    "strips",
];

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets the output folder"));
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

/// Machine code for these GPUs, and PTX for the oldest, which drivers compile for every later GPU. Targets that the compiler
/// does not know are left out.
const CODE: [(&str, &str); 3] = [
    ("sm_80", "arch=compute_80,code=[compute_80,sm_80]"),
    ("sm_90", "arch=compute_90,code=sm_90"),
    ("sm_120", "arch=compute_120,code=sm_120"),
];

/// Modules that must give the same bits as the CPU, where products and sums are rounded separately. Attention is equally
/// exact with fused multiply-adds.
const EXACT: [&str; 2] = ["holes", "quantise"];

/// The GPUs for which this compiler can generate machine code.
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
    std::fs::write(&all, includes).expect("the output folder is writable");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .include("kernels")
        .file(&all)
        // Rounds floats like a GPU without contraction.
        .flag_if_supported("-ffp-contract=off")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-clobbered")
        .compile("kvtide_emulated");
}
