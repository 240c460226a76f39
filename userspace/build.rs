//! Builds the eBPF programs and embeds them; where their toolchain is missing, embeds nothing and the reason.
//!
//! `TENSORTIER_EBPF=off` leaves them out on purpose. With `CI=true` a missing toolchain is an error.

use std::{env, fs, path::Path, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use aya_build::{Package, Toolchain};

fn main() -> Result<()> {
    // Who installs with `cargo install` has no .cargo/config.toml; perf needs the layout that GNU ld writes (see there).
    println!("cargo::rustc-link-arg-bins=-fuse-ld=bfd");
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["TENSORTIER_EBPF", "CI", "RUSTUP_TOOLCHAIN", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?).join("tensortier-ebpf");
    let missing = missing();
    println!("cargo::rustc-env=TENSORTIER_EBPF_OBJECT={}", out.display());
    println!("cargo::rustc-env=TENSORTIER_EBPF_MISSING={}", missing.as_deref().unwrap_or_default());
    let Some(reason) = missing else { return build() };
    if env::var_os("CI").is_some_and(|ci| ci == "true") {
        bail!("built without eBPF ({reason}); run scripts/setup");
    }
    println!("cargo::warning=built without eBPF ({reason}); run scripts/setup and rebuild");
    fs::write(&out, []).with_context(|| format!("cannot write {}", out.display()))
}

/// Why the programs cannot be built here.
fn missing() -> Option<String> {
    if env::var_os("TENSORTIER_EBPF").is_some_and(|choice| choice == "off") {
        return Some("TENSORTIER_EBPF=off".to_owned());
    }
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if output("bpf-linker", &["--version"]).is_none() {
        return Some("no bpf-linker".to_owned());
    }
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let Some(sysroot) = output(&rustc, &["--print", "sysroot"]) else {
        return Some("rustc does not tell its sysroot".to_owned());
    };
    let sources = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core");
    (!sources.exists()).then(|| "no rust-src".to_owned())
}

#[allow(unsafe_code)]
fn build() -> Result<()> {
    // Set for this script alone, whose one child is the build of the programs: `-Z build-std` on a stable compiler, and
    // no progress lines, which would all come out as warnings.
    // SAFETY: the script has one thread.
    unsafe {
        env::set_var("RUSTC_BOOTSTRAP", "1");
        env::set_var("CARGO_TERM_QUIET", "true");
    }
    let log = env::var_os("CARGO_FEATURE_EBPF_LOG").is_some();
    let package = Package {
        name: "tensortier-ebpf",
        root_dir: "../kernel-ebpf",
        no_default_features: false,
        features: if log { &["log"] } else { &[] },
    };
    let toolchain = env::var("RUSTUP_TOOLCHAIN").unwrap_or_else(|_| "stable".to_owned());
    aya_build::build_ebpf([package], Toolchain::Custom(&toolchain)).context(
        "the eBPF programs do not build; scripts/setup mends the toolchain, TENSORTIER_EBPF=off leaves them out",
    )
}
