//! Each finding on a host made for it, and on hosts that were recorded.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::host::tests::made::{GIB, Made};

fn examined(made: &Made) -> Vec<Finding> {
    examine(made.root(), &made.read(), &Config::default()).unwrap()
}

fn find(made: &Made, id: &str) -> Option<Finding> {
    examined(made).into_iter().find(|finding| finding.id == id)
}

fn found(made: &Made, id: &str) -> Finding {
    find(made, id).unwrap_or_else(|| panic!("no {id} among {:#?}", examined(made)))
}

fn status(rss_kib: u64, allowed: &str) -> String {
    format!("Name:\ttrain\nUid:\t0\t0\t0\t0\nVmRSS:\t  {rss_kib} kB\nMems_allowed_list:\t{allowed}\n")
}

/// A sparse host (node 2 is the slow one) with a process of 1 GiB.
fn process(allowed: &str, numa_maps: &str) -> Made {
    Made::sparse().put("proc/77/status", &status(1 << 20, allowed)).put("proc/77/numa_maps", numa_maps)
}

fn own_status(user: u32, capabilities: &str, seccomp: u32) -> Made {
    let text = format!("Name:\ttt\nUid:\t0\t{user}\t0\t0\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\n");
    Made::sparse().put("proc/self/status", &text)
}

#[test]
fn a_job_under_numactl_p_of_the_slow_node_is_named() {
    // 1 GiB in huge pages, as DeepSpeed's --bind_cores_to_rank leaves it.
    let made = process("0,2", "7f0000000000 prefer:2 anon=262144 N2=262144 kernelpagesize_kB=4\n");
    let said = found(&made, "job-prefers-slow");
    assert!(said.what.contains("process 77 (train) prefers node 2 for 1.0 GiB"), "{said:?}");
    assert!(said.fix_command.unwrap().contains("--preferred (-p)"));
    assert!(find(&made, "job-bound-to-slow").is_none() && find(&made, "cuda-membind").is_none());
}

#[test]
fn a_binding_to_either_tier_is_named_with_what_it_costs() {
    let bound =
        |nodes| process("0,2", &format!("7f0000000000 bind:{nodes} anon=262144 N0=262144 kernelpagesize_kB=4\n"));
    assert!(found(&bound("2"), "job-bound-to-slow").consequence.contains("hot pages stay"));
    assert!(found(&bound("0"), "job-barred-from-slow").consequence.contains("cold pages stay"));
    let both = examined(&bound("0,2"));
    assert!(!both.iter().any(|finding| finding.id.starts_with("job-")), "{both:#?}");
    // A small part of a job under a policy is the job's business.
    let part = process("0,2", "7f0000000000 bind:2 anon=1024 N2=1024 kernelpagesize_kB=4\n");
    assert!(find(&part, "job-bound-to-slow").is_none());
}

#[test]
fn a_cpuset_that_leaves_out_a_tier_is_named_with_the_file() {
    let said = found(&process("0", ""), "job-barred-from-slow");
    assert!(said.what.contains("cpuset") && said.fix_command.unwrap().contains("write 0,2 to cpuset.mems"));
    assert!(found(&process("2", ""), "job-bound-to-slow").consequence.contains("hot pages cannot"));
    assert!(find(&process("0,2", ""), "job-barred-from-slow").is_none());
    // Where there is one tier there is nothing to be barred from.
    let one = Made::new().node(0, "0-3", GIB, "10").put("proc/77/status", &status(1 << 20, "0"));
    assert!(!examined(&one).iter().any(|finding| finding.id.starts_with("job-")));
}

#[test]
fn cuda_under_a_membind_without_cpus_is_an_error_and_elsewhere_is_not() {
    let maps = "7f00-7f01 r-xp 0 00:00 1 /usr/lib/x86_64-linux-gnu/libcuda.so.570.124\n";
    let bound = "7f0000000000 bind:2 anon=262144 N2=262144 kernelpagesize_kB=4\n";
    let made = process("0,2", bound).put("proc/77/maps", maps);
    let said = found(&made, "cuda-membind");
    assert_eq!(said.severity, Severity::Error);
    assert!(said.what.contains("node 2") && stops(&examined(&made)));
    assert!(find(&process("0,2", bound), "cuda-membind").is_none(), "no CUDA");
    assert!(find(&process("2", "").put("proc/77/maps", maps), "cuda-membind").is_some(), "by its cpuset");
    let elsewhere = bound.replace("bind:2", "bind:0");
    assert!(find(&process("0,2", &elsewhere).put("proc/77/maps", maps), "cuda-membind").is_none());
}

/// NCCL allocates its host memory by node (cuMemCreate); a rank that cannot leaves the others with another idea of it.
#[test]
fn of_two_ranks_the_one_bound_to_cxl_is_named_with_what_helps_nccl() {
    let line = |node| format!("7f0000000000 bind:{node} anon=262144 N{node}=262144 kernelpagesize_kB=4\n");
    let maps = "7f00-7f01 r-xp 0 00:00 1 /usr/lib/x86_64-linux-gnu/libcuda.so.1\n";
    let made = process("0,2", &line(2)).put("proc/77/maps", maps);
    let made = made.put("proc/78/status", &status(1 << 20, "0,2")).put("proc/78/numa_maps", &line(0));
    let all = examined(&made.put("proc/78/maps", maps));
    let cuda: Vec<_> = all.iter().filter(|finding| finding.id == "cuda-membind").collect();
    assert_eq!(cuda.iter().map(|finding| finding.subject.as_str()).collect::<Vec<_>>(), ["process 77 (train)"]);
    assert!(cuda[0].fix_command.as_ref().unwrap().contains("NCCL_CUMEM_HOST_ENABLE=0"), "{cuda:?}");
}

#[test]
fn small_processes_kernel_threads_and_torn_files_are_passed_over() {
    let made = process("2", "")
        .put("proc/78/status", &status(1024, "2"))
        .put("proc/79/status", "Name:\tkthreadd\nMems_allowed_list:\t2\n")
        .put("proc/80/status", "VmRSS:\tmany kB\nMems_allowed_list:\t2\n")
        .put("proc/81/status", &status(1 << 20, "2-"))
        .put("proc/82/status", &status(u64::MAX, "2"))
        .put("proc/83/status", &status(1 << 20, "0,2"))
        .put("proc/83/numa_maps", "garbage\n");
    let subjects: Vec<_> =
        examined(&made).into_iter().filter(|finding| finding.id.starts_with("job-")).map(|f| f.subject).collect();
    assert_eq!(subjects, ["process 77 (train)"]);
}

#[test]
fn missing_capabilities_are_named_with_what_is_lost() {
    let said = found(&own_status(1000, "0000000000000000", 0), "capabilities");
    assert_eq!(said.severity, Severity::Error);
    assert!(said.what.contains("CAP_BPF") && said.consequence.contains("do not move"), "{said:?}");
    assert_eq!(said.fix_command.as_deref(), Some("sudo tensortier …"));
    // Docker's default set has neither of the four.
    let fix = found(&own_status(0, "00000000a80425fb", 0), "capabilities").fix_command.unwrap();
    assert!(fix.contains("--cap-add SYS_NICE") && fix.contains("--privileged"), "{fix}");
    assert!(find(&own_status(0, "000001ffffffffff", 0), "capabilities").is_none());
    // CAP_SYS_ADMIN, CAP_SYS_NICE and CAP_SYS_PTRACE, as root had it before CAP_BPF.
    assert!(find(&own_status(0, "0000000000a80000", 0), "capabilities").is_none());
    assert!(examine(own_status(0, "all", 0).root(), &Made::sparse().read(), &Config::default()).is_err());
}

#[test]
fn a_seccomp_filter_is_named() {
    assert!(found(&own_status(0, "000001ffffffffff", 2), "seccomp").consequence.contains("move_pages"));
    assert!(find(&own_status(0, "000001ffffffffff", 0), "seccomp").is_none());
}

#[test]
fn what_a_kernel_lacks_is_named_with_the_release_that_has_it() {
    let old = Made::sparse().put("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
    for (id, floor) in
        [("floor-memory-tiers", "6.1"), ("floor-weighted-interleave", "6.9"), ("floor-damos-migrate", "6.11")]
    {
        assert!(found(&old, id).what.contains(floor), "{id}");
    }
    let new = Made::sparse()
        .put("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0,2\n")
        .put("sys/kernel/mm/mempolicy/weighted_interleave/node0", "1\n")
        .kdamond("off\n", "-1\n", &[("contexts/0/schemes/0/target_nid", "-1\n")]);
    assert!(!examined(&new).iter().any(|finding| finding.id.starts_with("floor-")), "{:#?}", examined(&new));
    // The kernel shows tiers, and files the slow node with the fast one.
    assert_eq!(found(&new, "tiers-unseen").subject, "node 2");
    assert!(find(&old, "tiers-unseen").is_none());
}

#[test]
fn huge_pages_and_control_groups_are_told() {
    let set = |thp: &str, mounts: &str| {
        Made::sparse().put("sys/kernel/mm/transparent_hugepage/enabled", thp).put("proc/self/mounts", mounts)
    };
    let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
    assert!(found(&set("[always] madvise never\n", v2), "huge-pages").consequence.contains("moves whole"));
    assert!(found(&set("always madvise [never]\n", v2), "huge-pages").consequence.contains("4 KiB"));
    assert!(find(&set("always [madvise] never\n", v2), "huge-pages").is_none());
    assert!(find(&set("always [madvise] never\n", v2), "cgroup-version").is_none());
    let hybrid = format!("{v2}cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n");
    assert!(found(&set("always [madvise] never\n", &hybrid), "cgroup-version").what.contains("mixed"));
    assert!(found(&set("always [madvise] never\n", ""), "cgroup-version").what.contains("no control groups"));
}

#[test]
fn a_kdamond_is_ours_by_the_journal_of_this_boot_alone() {
    let host = |boot: &str, kdamond: u32| {
        let journal = format!(
            "{{\"boot\":\"{boot}\",\"agent\":[90,5],\"most\":1,\"kdamonds\":{{\"0\":{kdamond}}},\"starting\":null}}"
        );
        Made::sparse()
            .kdamond("on\n", "91\n", &[])
            .put("proc/sys/kernel/random/boot_id", "b\n")
            .put("run/tensortier/damon.json", &journal)
    };
    let alive = host("b", 91).put("proc/90/comm", "tensortier\n");
    assert!(found(&alive, "damon-ours").what.contains("pid 90") && find(&alive, "damon-occupied").is_none());
    assert!(found(&host("b", 91), "damon-left-behind").fix_command.is_some());
    for stranger in [host("a", 91), host("b", 92), host("b", 91).put("run/tensortier/damon.json", "{")] {
        assert!(find(&stranger, "damon-occupied").is_some() && find(&stranger, "damon-ours").is_none());
    }
}

#[test]
fn one_tier_stops_and_two_do_not() {
    assert!(stops(&examined(&Made::new().node(0, "0-3", GIB, "10"))));
    for recorded in ["numa-6.12", "cxl-6.12", "sparse-7.3", "cxl-7.3"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/host").join(recorded);
        let all = examine(&root, &Host::read(&root).unwrap(), &Config::default()).unwrap();
        assert!(!stops(&all), "{recorded}: {all:#?}");
        assert!(all.is_sorted_by(|a, b| a.severity >= b.severity));
    }
}
