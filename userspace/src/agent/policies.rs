//! What a job's own memory policies mean for it: a launcher may have set them without the user's knowing. DeepSpeed starts
//! ranks under `numactl -p` with a node without CPUs, or under `numactl -m` without it, where it takes CXL for HBM.

use std::collections::BTreeMap;

use crate::units::{NodeSet, show_bytes};

/// A note for each policy that draws the job's memory to the slow tier or keeps it from one of the two. `policies` are
/// those of numa_maps (`prefer:2`) with the bytes under each.
pub(super) fn notes(policies: &BTreeMap<String, u64>, top: &NodeSet, lower: &NodeSet) -> Vec<String> {
    policies
        .iter()
        .filter(|(_, bytes)| **bytes > 0)
        .filter_map(|(name, bytes)| note(name, *bytes, top, lower))
        .collect()
}

fn note(name: &str, bytes: u64, top: &NodeSet, lower: &NodeSet) -> Option<String> {
    let (mode, nodes) = name.split_once(':')?;
    let nodes: NodeSet = nodes.parse().ok()?;
    let (slow, fast) = (nodes.0.is_disjoint(&top.0), nodes.0.is_disjoint(&lower.0));
    let bytes = show_bytes(bytes);
    let (what, consequence, option) = match mode {
        _ if slow == fast => return None,
        "prefer" | "prefer (many)" if slow => {
            ("prefers the slow tier for", "new memory begins there and comes up only once it is hot", "-p")
        }
        "bind" if slow => (
            "binds to the slow tier",
            "hot pages stay there, since a binding is left alone",
            "-m (`run --offload-activations` binds what it stores)",
        ),
        "bind" => ("keeps from the slow tier", "cold pages stay in DRAM, since a binding is left alone", "-m"),
        _ => return None,
    };
    Some(format!("the job {what} {bytes} ({name}): {consequence}; start it without numactl {option}"))
}

/// What to say of a job that uses GPUs and interleaves most of what is under policies of its own: chunks of a copy then come
/// from nodes that are far from the GPU, and pinned memory stays so.
pub(super) fn interleaved(policies: &BTreeMap<String, u64>) -> Option<String> {
    let interleaves = |name: &str| {
        let nodes = name.strip_prefix("weighted ").unwrap_or(name).strip_prefix("interleave:")?;
        nodes.parse::<NodeSet>().ok().filter(|nodes| nodes.0.len() > 1)
    };
    let (name, bytes) =
        policies.iter().filter(|(name, _)| interleaves(name).is_some()).max_by_key(|(_, bytes)| **bytes)?;
    (*bytes > 0).then(|| {
        format!(
            "the job uses GPUs and interleaves {} ({name}): copies of such memory were seen to be ten times slower \
             (colibri issue 82), and what is pinned cannot move; start it without numactl --interleave",
            show_bytes(*bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Nodes 0 and 1 are DRAM, 2 and 3 are CXL.
    fn said(policy: &str) -> Vec<String> {
        let policies = [(policy.to_owned(), 1 << 30)].into();
        notes(&policies, &"0-1".parse().unwrap(), &"2-3".parse().unwrap())
    }

    #[test]
    fn what_a_launcher_set_is_named_with_what_it_costs_and_what_mends_it() {
        for (policy, parts) in [
            ("prefer:2", ["prefers the slow tier for 1.0 GiB (prefer:2)", "only once it is hot", "without numactl -p"]),
            ("prefer (many):2-3", ["prefers the slow tier", "begins there", "-p"]),
            ("bind:3", ["binds to the slow tier 1.0 GiB (bind:3)", "hot pages stay", "without numactl -m"]),
            ("bind:0", ["keeps from the slow tier 1.0 GiB (bind:0)", "cold pages stay", "without numactl -m"]),
        ] {
            let said = said(policy);
            assert!(said.len() == 1 && parts.iter().all(|part| said[0].contains(part)), "{policy}: {said:?}");
        }
    }

    #[test]
    fn policies_that_leave_both_tiers_open_or_prefer_dram_are_the_jobs_business() {
        for policy in ["bind:0,2", "prefer:0", "interleave:0-3", "weighted interleave:2-3", "interleave:2", "torn"] {
            assert_eq!(said(policy), Vec::<String>::new(), "{policy}");
        }
        assert!(notes(&[("prefer:2".into(), 0)].into(), &"0".parse().unwrap(), &"2".parse().unwrap()).is_empty());
    }

    #[test]
    fn interleaving_under_a_gpu_is_named() {
        let all = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let said = interleaved(&all(&[("interleave:0-3", 2 << 30), ("weighted interleave:0,2", 4096)])).unwrap();
        assert!(said.contains("2.0 GiB (interleave:0-3)") && said.contains("numactl --interleave"), "{said}");
        assert!(interleaved(&all(&[("weighted interleave:0,2", 4096)])).unwrap().contains("4.0 KiB"));
        for none in ["interleave:2", "prefer:0", "bind:0-1", "interleave:x"] {
            assert_eq!(interleaved(&all(&[(none, 1 << 30)])), None, "{none}");
        }
        assert_eq!(interleaved(&all(&[("interleave:0-3", 0)])), None);
    }
}
