//! A GPU with its link and backing tiers: what an operator and a copy cost.

use crate::{Bytes, GpuProfile, LinkProfile, Nanos, ProfileError, Profiles, TierProfile};

/// One backing tier with the room a plan may use in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tier {
    /// Speed of the tier.
    pub profile: TierProfile,
    /// Bytes that a plan may keep there.
    pub capacity: Bytes,
}

/// GPU memory in front, tiers behind one link.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The processor and its memory speed.
    pub gpu: GpuProfile,
    /// Bytes of GPU memory that a plan may use.
    pub hbm: Bytes,
    /// The link that every copy crosses.
    pub link: LinkProfile,
    /// Backing tiers, fastest first.
    pub tiers: Vec<Tier>,
}

impl Machine {
    /// A machine of named profiles; `tiers` are (profile name, capacity) pairs.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] names the profile that does not exist and those that do.
    pub fn new(
        profiles: &Profiles,
        gpu: &str,
        hbm: Bytes,
        link: &str,
        tiers: &[(&str, Bytes)],
    ) -> Result<Self, ProfileError> {
        Ok(Self {
            gpu: profiles.gpu(gpu)?.clone(),
            hbm,
            link: profiles.link(link)?.clone(),
            tiers: tiers
                .iter()
                .map(|&(name, capacity)| Ok(Tier { profile: profiles.tier(name)?.clone(), capacity }))
                .collect::<Result<_, ProfileError>>()?,
        })
    }

    /// Time to copy `bytes` from tier `tier` to the GPU: the slower of link and tier, plus latency.
    ///
    /// # Panics
    /// If `tier` is not an index of [`Machine::tiers`].
    pub fn h2d(&self, bytes: Bytes, tier: usize) -> Nanos {
        let t = &self.tiers[tier].profile;
        copy_time(bytes, self.link.h2d.min(t.read), self.link.latency_ns + t.latency_ns)
    }

    /// Time to copy `bytes` from the GPU to tier `tier`.
    ///
    /// # Panics
    /// If `tier` is not an index of [`Machine::tiers`].
    pub fn d2h(&self, bytes: Bytes, tier: usize) -> Nanos {
        let t = &self.tiers[tier].profile;
        copy_time(bytes, self.link.d2h.min(t.write), self.link.latency_ns + t.latency_ns)
    }
}

fn copy_time(bytes: Bytes, rate: f64, latency: Nanos) -> Nanos {
    (bytes as f64 * 1e9 / rate).ceil() as Nanos + latency
}

impl GpuProfile {
    /// Roofline time of an operator: `max(flops / (efficiency * peak), bytes / bandwidth) + overhead`.
    /// The form is ours; see each profile's source for its figures.
    pub fn op_time(&self, flops: f64, bytes: Bytes) -> Nanos {
        let compute = flops / (self.flops * self.efficiency);
        let memory = bytes as f64 / self.memory_bandwidth;
        (compute.max(memory) * 1e9).ceil() as Nanos + self.op_overhead_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roofline_takes_the_slower_side() {
        let profiles = Profiles::builtin();
        let gpu = profiles.gpu("a100-40g").expect("built in");
        assert_eq!(gpu.op_time(0.0, 1_555_000), 1_000 + 5_000);
        assert_eq!(gpu.op_time(78e9, 0), 1_000_000 + 5_000);
        assert_eq!(gpu.op_time(78e9, 1_555_000), 1_000_000 + 5_000);
    }

    #[test]
    fn a_copy_runs_at_the_slower_of_link_and_tier() {
        let machine = Machine::new(
            &Profiles::builtin(),
            "a100-40g",
            1 << 30,
            "pcie4-x16",
            &[("dram", 1 << 30), ("cxl-asic", 1 << 30)],
        )
        .expect("built in");
        assert_eq!(machine.h2d(25_000, 0), 1_000 + 10_100);
        assert_eq!(machine.h2d(22_000, 1), 1_000 + 10_250);
        assert_eq!(machine.d2h(20_000, 1), 1_000 + 10_250);
    }

    #[test]
    fn an_unknown_profile_is_named_with_the_known_ones() {
        let error = Machine::new(&Profiles::builtin(), "a1000", 1, "pcie4-x16", &[]).expect_err("unknown");
        let text = error.to_string();
        assert!(text.contains("a1000") && text.contains("a100-40g"), "{text}");
    }
}
