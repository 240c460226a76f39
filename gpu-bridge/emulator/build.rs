//! Gives the library the soname of the driver's. Its file keeps a name of its own, so that no program finds it by chance
//! where cargo puts it: `scripts/emulator` links it into a folder as `libcuda.so.1`.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As the driver's own, its functions are what its tables name, whatever a program has of the same name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=build.rs");
}
