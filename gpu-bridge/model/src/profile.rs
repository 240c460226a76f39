//! Named profiles of GPUs, links and tiers, built in or read from a TOML file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos};

/// What can be wrong with profile data.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML of the documented form.
    #[error("{path}: {source}")]
    Parse {
        /// The file, or `built in`.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A figure that no machine can have.
    #[error("{path}: {profile}: {field} is {value}, must be {must}")]
    Value {
        /// The file, or `built in`.
        path: PathBuf,
        /// The profile's name.
        profile: String,
        /// The field.
        field: &'static str,
        /// What it was.
        value: f64,
        /// What it has to be.
        must: &'static str,
    },
    /// No profile of that name.
    #[error("no {kind} profile `{name}`; there are: {known}")]
    Unknown {
        /// gpu, link or tier.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
}

/// What a GPU computes and reads per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuProfile {
    /// Name used on the command line.
    pub name: String,
    /// Memory on the board, bytes.
    pub memory_bytes: Bytes,
    /// Peak floating-point operations per second of the mode used for GEMMs.
    pub flops: f64,
    /// Share of the peak that training GEMMs reach, 0 to 1.
    pub efficiency: f64,
    /// Memory bandwidth, bytes per second.
    pub memory_bandwidth: f64,
    /// Fixed cost of each operator, nanoseconds.
    pub op_overhead_ns: Nanos,
    /// Where the figures are from.
    pub source: String,
}

/// The link between GPU and host; both directions run at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// Name used on the command line.
    pub name: String,
    /// Host to device, bytes per second.
    pub h2d: f64,
    /// Device to host, bytes per second.
    pub d2h: f64,
    /// Fixed cost of each copy, nanoseconds.
    pub latency_ns: Nanos,
    /// Where the figures are from.
    pub source: String,
}

/// What a backing tier is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierKind {
    /// The host's own memory.
    Dram,
    /// Memory behind CXL.
    Cxl,
    /// Flash, for comparison with systems that use it.
    Ssd,
}

/// A backing tier as a copy engine sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierProfile {
    /// Name used on the command line.
    pub name: String,
    /// What it is made of.
    pub kind: TierKind,
    /// Towards the GPU, bytes per second.
    pub read: f64,
    /// From the GPU, bytes per second.
    pub write: f64,
    /// Added to each copy, nanoseconds.
    pub latency_ns: Nanos,
    /// Serves one direction at a time.
    #[serde(default)]
    pub half_duplex: bool,
    /// Where the figures are from.
    pub source: String,
}

/// A set of profiles, looked up by name.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profiles {
    /// GPUs.
    #[serde(default, rename = "gpu")]
    pub gpus: Vec<GpuProfile>,
    /// Links.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkProfile>,
    /// Tiers.
    #[serde(default, rename = "tier")]
    pub tiers: Vec<TierProfile>,
}

impl Profiles {
    /// The profiles that come with the crate.
    pub fn builtin() -> Self {
        let mut all = Self::default();
        for text in [
            include_str!("../profiles/gpu.toml"),
            include_str!("../profiles/link.toml"),
            include_str!("../profiles/tier.toml"),
        ] {
            match Self::parse(text, Path::new("built in")) {
                Ok(some) => all.extend(some),
                Err(error) => unreachable!("a test loads every built-in profile: {error}"),
            }
        }
        all
    }

    /// Profiles from TOML text with `[[gpu]]`, `[[link]]` and `[[tier]]` tables; `path` is for messages.
    ///
    /// # Errors
    /// Text that does not parse, unknown fields, figures out of range.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        let profiles: Self = toml::from_str(text)
            .map_err(|source| ProfileError::Parse { path: path.into(), source: Box::new(source) })?;
        profiles.check(path)?;
        Ok(profiles)
    }

    /// Adds the profiles of a file; a name that exists is replaced.
    ///
    /// # Errors
    /// As [`Profiles::parse`], or the file cannot be read.
    pub fn extend_from_file(&mut self, path: &Path) -> Result<(), ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|source| ProfileError::Read { path: path.into(), source })?;
        self.extend(Self::parse(&text, path)?);
        Ok(())
    }

    fn extend(&mut self, other: Self) {
        put(&mut self.gpus, other.gpus, |p| &p.name);
        put(&mut self.links, other.links, |p| &p.name);
        put(&mut self.tiers, other.tiers, |p| &p.name);
    }

    /// The GPU of that name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn gpu(&self, name: &str) -> Result<&GpuProfile, ProfileError> {
        find(&self.gpus, name, "gpu", |p| &p.name)
    }

    /// The link of that name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn link(&self, name: &str) -> Result<&LinkProfile, ProfileError> {
        find(&self.links, name, "link", |p| &p.name)
    }

    /// The tier of that name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn tier(&self, name: &str) -> Result<&TierProfile, ProfileError> {
        find(&self.tiers, name, "tier", |p| &p.name)
    }

    fn check(&self, path: &Path) -> Result<(), ProfileError> {
        for g in &self.gpus {
            rate(path, &g.name, "flops", g.flops)?;
            rate(path, &g.name, "memory_bandwidth", g.memory_bandwidth)?;
            within(path, &g.name, "efficiency", g.efficiency, 0.001, 1.0, "within 0.001 and 1")?;
            latency(path, &g.name, "op_overhead_ns", g.op_overhead_ns)?;
        }
        for l in &self.links {
            rate(path, &l.name, "h2d", l.h2d)?;
            rate(path, &l.name, "d2h", l.d2h)?;
            latency(path, &l.name, "latency_ns", l.latency_ns)?;
        }
        for t in &self.tiers {
            rate(path, &t.name, "read", t.read)?;
            rate(path, &t.name, "write", t.write)?;
            latency(path, &t.name, "latency_ns", t.latency_ns)?;
        }
        Ok(())
    }
}

fn put<T>(to: &mut Vec<T>, from: Vec<T>, name: impl Fn(&T) -> &String) {
    for new in from {
        match to.iter_mut().find(|old| name(old) == name(&new)) {
            Some(old) => *old = new,
            None => to.push(new),
        }
    }
}

fn find<'a, T>(
    all: &'a [T],
    name: &str,
    kind: &'static str,
    of: impl Fn(&T) -> &String,
) -> Result<&'a T, ProfileError> {
    all.iter().find(|p| of(p) == name).ok_or_else(|| ProfileError::Unknown {
        kind,
        name: name.into(),
        known: all.iter().map(|p| of(p).as_str()).collect::<Vec<_>>().join(", "),
    })
}

fn rate(path: &Path, profile: &str, field: &'static str, value: f64) -> Result<(), ProfileError> {
    within(path, profile, field, value, 1e6, 1e18, "a rate within 1e6 and 1e18 per second")
}

fn latency(path: &Path, profile: &str, field: &'static str, value: Nanos) -> Result<(), ProfileError> {
    within(path, profile, field, value as f64, 0.0, 1e9, "at most one second")
}

fn within(
    path: &Path,
    profile: &str,
    field: &'static str,
    value: f64,
    least: f64,
    most: f64,
    must: &'static str,
) -> Result<(), ProfileError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(ProfileError::Value { path: path.into(), profile: profile.into(), field, value, must })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_loads_and_has_a_source() {
        let all = Profiles::builtin();
        assert!(all.gpus.len() >= 5 && all.links.len() >= 4 && all.tiers.len() >= 4);
        assert!(all.gpus.iter().all(|p| !p.source.is_empty()));
        assert!(all.links.iter().all(|p| !p.source.is_empty()));
        assert!(all.tiers.iter().all(|p| !p.source.is_empty()));
    }

    #[test]
    fn a_file_replaces_by_name() {
        let dir = std::env::temp_dir().join(format!("tensortier-model-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary folder");
        let path = dir.join("mine.toml");
        let text = "[[tier]]\nname='dram'\nkind='dram'\nread=1e9\nwrite=2e9\nlatency_ns=7\nsource='measured'\n";
        std::fs::write(&path, text).expect("write");
        let mut all = Profiles::builtin();
        let before = all.tiers.len();
        all.extend_from_file(&path).expect("valid");
        assert_eq!(all.tiers.len(), before);
        assert_eq!(all.tier("dram").expect("there").write, 2e9);
        std::fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn bad_figures_are_named() {
        for (line, field) in [("h2d=0.0", "h2d"), ("h2d=nan", "h2d"), ("h2d=-1.0", "h2d"), ("h2d=inf", "h2d")] {
            let text = format!("[[link]]\nname='x'\n{line}\nd2h=1e9\nlatency_ns=0\nsource='s'\n");
            let error = Profiles::parse(&text, Path::new("f.toml")).expect_err("out of range").to_string();
            assert!(error.contains("f.toml") && error.contains("x") && error.contains(field), "{error}");
        }
        let unknown = "[[link]]\nname='x'\nh2d=1e9\nd2h=1e9\nlatency_ns=0\nsource='s'\nspeed=1\n";
        assert!(Profiles::parse(unknown, Path::new("f.toml")).is_err());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Profiles::default().extend_from_file(Path::new("/nowhere/p.toml")).expect_err("missing");
        assert!(error.to_string().contains("/nowhere/p.toml"));
    }
}
