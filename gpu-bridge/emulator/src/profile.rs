//! The figures of the emulated device.

use serde::Deserialize;

/// Environment variable that names a profile's file.
pub const VARIABLE: &str = "TENSORTIER_EMULATOR";

/// What the emulated GPU does.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device's name; it says that there is no GPU.
    pub name: String,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Host to device, bytes per second.
    pub h2d: f64,
    /// Device to host, bytes per second.
    pub d2h: f64,
    /// Fixed time of a copy.
    pub latency_ns: u64,
    /// Rate from pageable memory, as a share of `h2d`.
    pub pageable_h2d: f64,
    /// Rate to pageable memory, as a share of `d2h`.
    pub pageable_d2h: f64,
    /// Where the figures are from.
    pub source: String,
}

impl Profile {
    /// The profile that comes with the library.
    ///
    /// # Errors
    /// What is wrong with it: a test loads it.
    pub fn builtin() -> Result<Self, String> {
        Self::parse(include_str!("../profile.toml"), "built in")
    }

    /// The one that [`VARIABLE`] names, or else the built-in one.
    ///
    /// # Errors
    /// What is wrong with the file, by its name.
    pub fn chosen() -> Result<Self, String> {
        let Some(path) = std::env::var_os(VARIABLE) else { return Self::builtin() };
        let path = std::path::Path::new(&path);
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, path: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text).map_err(|error| format!("{path}: {error}"))?;
        let rates = [("h2d", profile.h2d), ("d2h", profile.d2h)].map(|(name, value)| (name, value, 1e6, 1e13));
        let shares = [("pageable_h2d", profile.pageable_h2d), ("pageable_d2h", profile.pageable_d2h)]
            .map(|(name, value)| (name, value, 0.001, 1.0));
        for (name, value, least, most) in rates.into_iter().chain(shares) {
            if !(least..=most).contains(&value) {
                return Err(format!("{path}: {name} is {value}, must be within {least:e} and {most:e}"));
            }
        }
        if !(1 << 20..=1 << 40).contains(&profile.memory_bytes) {
            return Err(format!("{path}: memory_bytes is {}, must be 1 MiB to 1 TiB", profile.memory_bytes));
        }
        if profile.latency_ns > 1_000_000_000 {
            return Err(format!("{path}: latency_ns is {}, must be at most a second", profile.latency_ns));
        }
        if !profile.name.contains("emulator") {
            return Err(format!("{path}: the name must say `emulator`, so that nobody takes it for a GPU"));
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_profile_loads_and_bad_figures_are_named() {
        let good = include_str!("../profile.toml");
        Profile::builtin().expect("valid");
        for (from, to, name) in [
            ("h2d = 2.0e9", "h2d = nan", "h2d"),
            ("pageable_d2h = 0.314", "pageable_d2h = 1.5", "pageable_d2h"),
            ("latency_ns = 10000", "latency_ns = 9000000000", "latency_ns"),
            ("memory_bytes = 4_294_967_296", "memory_bytes = 5", "memory_bytes"),
            ("tensortier emulator", "H200", "emulator"),
        ] {
            let error = Profile::parse(&good.replace(from, to), "f.toml").expect_err("out of range");
            assert!(error.contains("f.toml") && error.contains(name), "{error}");
        }
    }
}
