//! Counters of `/proc/vmstat` and of each node's `vmstat`, by name: their set differs between kernels.

use std::{collections::BTreeMap, fs, path::Path};

use super::{Counter, Missing, Unit, Values, Whose};
use crate::units::NodeId;

/// A field, and how to read it.
pub(super) struct Field {
    pub name: &'static str,
    pub whose: Whose,
    pub unit: Unit,
    /// Whether each node has one of its own.
    pub by_node: bool,
    pub meaning: &'static str,
    /// The kernel or option that brings it.
    pub floor: &'static str,
}

const fn field(
    name: &'static str,
    whose: Whose,
    unit: Unit,
    by_node: bool,
    meaning: &'static str,
    floor: &'static str,
) -> Field {
    Field { name, whose, unit, by_node, meaning, floor }
}

use Unit::{Events, Pages};
use Whose::{Demotion, Kernel, NumaBalancing};

/// Those that say something of migration.
pub(super) const FIELDS: [Field; 17] = [
    field("pgmigrate_success", Kernel, Pages, false, "pages migrated, for whatever reason", "CONFIG_MIGRATION"),
    field("pgmigrate_fail", Kernel, Pages, false, "pages that could not be migrated", "CONFIG_MIGRATION"),
    field("thp_migration_success", Kernel, Events, false, "huge pages migrated whole", "CONFIG_TRANSPARENT_HUGEPAGE"),
    field("thp_migration_fail", Kernel, Events, false, "huge pages not migrated", "CONFIG_TRANSPARENT_HUGEPAGE"),
    field("thp_migration_split", Kernel, Events, false, "huge pages split to migrate", "CONFIG_TRANSPARENT_HUGEPAGE"),
    field("compact_migrate_scanned", Kernel, Pages, false, "pages that compaction looked at", "CONFIG_COMPACTION"),
    field("numa_pte_updates", NumaBalancing, Pages, false, "pages marked for hint faults", "CONFIG_NUMA_BALANCING"),
    field("numa_hint_faults", NumaBalancing, Events, false, "hint faults taken", "CONFIG_NUMA_BALANCING"),
    field("numa_hint_faults_local", NumaBalancing, Events, false, "of them on the own node", "CONFIG_NUMA_BALANCING"),
    field("numa_pages_migrated", NumaBalancing, Pages, false, "pages it migrated", "CONFIG_NUMA_BALANCING"),
    field("pgpromote_success", NumaBalancing, Pages, true, "pages promoted to this node", "Linux 5.18"),
    field("pgpromote_candidate", NumaBalancing, Pages, true, "pages hot enough to promote to it", "Linux 6.1"),
    field("pgpromote_candidate_nrl", NumaBalancing, Pages, true, "of them beyond the rate limit's reach", "Linux 6.17"),
    field("pgdemote_kswapd", Demotion, Pages, true, "pages demoted from this node by kswapd", "Linux 5.18"),
    field("pgdemote_direct", Demotion, Pages, true, "pages demoted from it by allocations", "Linux 5.18"),
    field("pgdemote_khugepaged", Demotion, Pages, true, "pages demoted from it by khugepaged", "Linux 6.5"),
    field("pgdemote_proactive", Demotion, Pages, true, "pages demoted from it on request", "Linux 6.16"),
];

/// The value of every field that the kernel under `root` has.
pub(super) fn read(root: &Path) -> Values {
    let global = table(&root.join("proc/vmstat"));
    let nodes = node_tables(root);
    let mut values = Values::new();
    for field in &FIELDS {
        let mut put = |node, value| {
            let detail = field.by_node || field.whose != Kernel || field.name.starts_with("thp");
            let Field { whose, unit, .. } = *field;
            values.insert(Counter { whose, event: field.name.to_owned(), node, unit, detail }, value);
        };
        let on_nodes: Vec<_> =
            nodes.iter().filter_map(|(node, table)| Some((*node, *table.get(field.name)?))).collect();
        match field.by_node && !on_nodes.is_empty() {
            true => on_nodes.into_iter().for_each(|(node, value)| put(Some(node), value)),
            // Kernels that have the field and not by node.
            false => global.get(field.name).into_iter().for_each(|value| put(None, *value)),
        }
    }
    values
}

/// The fields that the kernel under `root` lacks.
pub(super) fn missing(root: &Path) -> Vec<Missing> {
    let has: Vec<String> = read(root).into_keys().map(|counter| counter.event).collect();
    FIELDS
        .iter()
        .filter(|field| !has.iter().any(|name| name == field.name))
        .map(|field| Missing {
            event: field.name.to_owned(),
            why: format!("this kernel has no such counter; it comes with {}", field.floor),
        })
        .collect()
}

fn node_tables(root: &Path) -> BTreeMap<NodeId, BTreeMap<String, u64>> {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return BTreeMap::new() };
    let node = |name: &str| name.strip_prefix("node")?.parse().ok().map(NodeId);
    entries
        .flatten()
        .filter_map(|entry| Some((node(entry.file_name().to_str()?)?, table(&entry.path().join("vmstat")))))
        .collect()
}

/// `name value` a line; a file that is not there is an empty table.
fn table(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pair =
        |line: &str| line.split_once(' ').and_then(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)));
    text.lines().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn promotions_and_demotions_are_read_by_node_and_the_rest_once() {
        let root = tempfile::tempdir().unwrap();
        let global =
            "pgmigrate_success 7\npgmigrate_successor 8\npgpromote_success 5\npgdemote_kswapd 6\nnuma_hint_faults x\n";
        put(root.path(), "proc/vmstat", global);
        put(root.path(), "sys/devices/system/node/node0/vmstat", "pgpromote_success 2\n");
        put(root.path(), "sys/devices/system/node/node2/vmstat", "pgpromote_success 3\n");
        let read = read(root.path());
        let shown: Vec<_> = read
            .iter()
            .map(|(counter, value)| (counter.event.as_str(), counter.node.map(|node| node.0), *value))
            .collect();
        assert_eq!(
            shown,
            [
                ("pgpromote_success", Some(0), 2),
                ("pgpromote_success", Some(2), 3),
                ("pgdemote_kswapd", None, 6),
                ("pgmigrate_success", None, 7),
            ]
        );
        let missing = missing(root.path());
        assert!(missing.iter().any(|one| one.event == "pgdemote_khugepaged" && one.why.contains("6.5")));
        assert_eq!(missing.len() + 3, FIELDS.len());
    }

    #[test]
    fn this_kernel_counts_migrations() {
        assert!(read(Path::new("/")).keys().any(|counter| counter.event == "pgmigrate_success"));
    }
}
