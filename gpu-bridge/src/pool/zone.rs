//! Which nodes hold `ZONE_MOVABLE` memory.

use std::collections::BTreeSet;

/// Nodes with pages in `ZONE_MOVABLE`, from the text of `/proc/zoneinfo`: there a long-term pin first moves the page
/// away (memory-hotplug.rst). A node that has such pages beside others counts, since the kernel fills it from them.
pub fn movable_nodes(zoneinfo: &str) -> BTreeSet<u32> {
    let mut nodes = BTreeSet::new();
    let mut movable = None;
    for line in zoneinfo.lines().map(str::trim) {
        if let Some((node, zone)) = line.strip_prefix("Node ").and_then(|rest| rest.split_once(", zone ")) {
            movable = node.trim().parse().ok().filter(|_| zone.trim() == "Movable");
        } else if let (Some(node), Some(present)) = (movable, line.strip_prefix("present "))
            && present.trim() != "0"
        {
            nodes.insert(node);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_with_movable_pages() {
        let text = "Node 0, zone   Normal\n  pages free 5\n        present  100\nNode 0, zone  Movable\n  pages free 0\n\
                    \x20       present  0\nNode 2, zone  Movable\n        spanned  64\n        present  64\n\
                    Node 3, zone Normal\n        present  64\n";
        assert_eq!(movable_nodes(text), BTreeSet::from([2]));
    }
}
