//! Builds the C programs and their skeleton; where clang is missing, leaves them out and keeps the reason.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;

/// Names of the programs, `src/bpf/NAME.bpf.c`.
const PROGRAMS: [&str; 2] = ["vma_iter", "pages"];

fn main() -> Result<()> {
    println!("cargo::rustc-check-cfg=cfg(without_bpf)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/bpf");
    for variable in ["TENSORTIER_EBPF", "CI", "CLANG", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let clang = if env::var_os("TENSORTIER_EBPF").is_some_and(|choice| choice == "off") {
        Err("TENSORTIER_EBPF=off")
    } else {
        clang().ok_or("no clang")
    };
    println!("cargo::rustc-env=TENSORTIER_CORE_MISSING={}", clang.as_ref().err().unwrap_or(&""));
    let clang = match clang {
        Ok(clang) => clang,
        Err(reason) if env::var_os("CI").is_some_and(|ci| ci == "true") => {
            bail!("built without eBPF ({reason}); run scripts/setup");
        }
        Err(reason) => {
            println!("cargo::rustc-cfg=without_bpf");
            println!("cargo::warning=built without eBPF ({reason}); run scripts/setup and rebuild");
            return Ok(());
        }
    };
    let folder = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    for name in PROGRAMS {
        let source = format!("src/bpf/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(["-Wall", "-Werror", "-O2", "-g"])
            .build_and_generate(folder.join(format!("{name}.skel.rs")))
            .with_context(|| format!("{source} does not build with {clang}"))?;
    }
    Ok(())
}

/// `$CLANG`, `clang`, or the newest of Debian's versioned ones, whichever runs first.
fn clang() -> Option<String> {
    let versioned = (14..=22).rev().map(|version| format!("clang-{version}"));
    let candidates = env::var("CLANG").ok().into_iter().chain(["clang".to_owned()]).chain(versioned);
    let runs = |clang: &String| Command::new(clang).arg("--version").output().is_ok_and(|out| out.status.success());
    candidates.into_iter().find(runs)
}
