//! Gives the library the soname of the driver's. Its file keeps a name of its own, so that no program finds it by chance
//! where cargo puts it: `scripts/emulator` links it into a folder as `libcuda.so.1`.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rerun-if-changed=build.rs");
}
