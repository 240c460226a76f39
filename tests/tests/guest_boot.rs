//! The guests are what the other guest tests take them for: nodes, tiers, CXL, exit codes, files, and an exerciser that
//! knows where its bytes are.

use std::path::Path;

use tempfile::TempDir;
use tensortier::units::Range;
use tensortier_tests::{
    exerciser::{Kind, Report, report::Sample},
    guest::{Guest, Profile, Ran},
};

const MIB: u64 = 1 << 20;

/// Prints `KEY VALUE` lines about the memory of the guest.
const FACTS: &str = r#"(
cd /sys/devices
echo "release $(uname -r)"
for f in online has_cpu has_memory; do echo "$f $(cat system/node/$f)"; done
for t in virtual/memory_tiering/memory_tier*; do
    for n in $(sed 's/,/ /g' "$t/nodelist"); do echo "tier$n ${t##*memory_tier}"; done
done
for n in system/node/node*; do
    echo "${n##*/} $(awk '/MemTotal/ { print int($4 / 1024) }' "$n/meminfo")"
    echo "${n##*/}_latency $(cat "$n/access0/initiators/read_latency" 2>/dev/null || echo none)"
done
for d in /sys/bus/dax/devices/dax*; do [ -e "$d" ] && echo "dax $(cat "$d/target_node") $(cat "$d/size")"; done
for r in /sys/bus/cxl/devices/region*; do [ -e "$r" ] && echo "region $(cat "$r/commit") $(cat "$r/size")"; done
echo "mounts $(awk '{ printf "%s:%s ", $2, $3 }' /proc/mounts)"
echo "lo $(cat /sys/class/net/lo/flags)"
echo "clock $(date +%s)"
)"#;

fn fact<'a>(ran: &'a Ran, key: &str) -> &'a str {
    let line = ran.stdout.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {key} in {}", ran.stdout))
}

fn number(ran: &Ran, key: &str) -> u64 {
    fact(ran, key).parse().unwrap_or_else(|_| panic!("{key} is {:?}", fact(ran, key)))
}

fn exerciser() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_exerciser"))
}

#[test]
fn numa_has_two_tiers_and_brings_back_output_files_and_exit_code() {
    let out = TempDir::new().unwrap();
    let guest = Guest::new(Profile::Numa, "6.12", out.path()).dram("1G").slow("512M");
    let script = format!("{FACTS}\necho words >&2\necho kept >$TENSORTIER_OUT/file\necho lost >/root/lost\nexit 7");
    let ran = guest.run(["bash", "-c", &script]).unwrap();
    assert_eq!(ran.code, 7);
    assert!(ran.stderr.lines().any(|line| line == "words"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("words"));
    assert_eq!(std::fs::read_to_string(out.path().join("file")).unwrap(), "kept\n");
    assert!(!Path::new("/root/lost").exists(), "a file written in the guest reached the host");

    assert!(fact(&ran, "release").starts_with("6.12."));
    assert_eq!((fact(&ran, "online"), fact(&ran, "has_cpu")), ("0-1", "0"));
    assert!(number(&ran, "tier0") < number(&ran, "tier1"), "node 0 must be in the faster tier");
    assert_eq!((number(&ran, "node0_latency"), number(&ran, "node1_latency")), (100, 250));
    // The kernel keeps some 140 MiB of node 0 from the start.
    let sizes = (number(&ran, "node0"), number(&ran, "node1"));
    assert!((850..=1024).contains(&sizes.0) && (480..=512).contains(&sizes.1), "{sizes:?} MiB");
    for mount in ["/dev/pts:devpts", "/dev/shm:tmpfs", "/sys/fs/cgroup:cgroup2", "/sys/fs/bpf:bpf", "/out:9p"] {
        assert!(fact(&ran, "mounts").split(' ').any(|each| each == mount), "{mount} is missing");
    }
    assert!(fact(&ran, "mounts").contains("/sys/kernel/tracing:tracefs"));
    let up = u32::from_str_radix(fact(&ran, "lo").trim_start_matches("0x"), 16).unwrap() & 1;
    assert_eq!(up, 1, "lo is down");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(number(&ran, "clock")) < 120, "the guest's clock is off");
    let log = ran.kernel_log().unwrap();
    assert!(log.contains("Linux version 6.12.") && log.contains("pti=on nokaslr damon_stat.enabled=0"));
}

#[test]
fn cxl_device_becomes_node_1_by_the_kernels_own_drivers() {
    let out = TempDir::new().unwrap();
    let guest = Guest::new(Profile::Cxl, "6.12", out.path()).dram("1G").slow("512M");
    let exercise = format!(
        "{FACTS}\n{} --hot 4M --cold 4M --hot-node 1 --cold-node 0 --thp never --seconds 3 --report $TENSORTIER_OUT/r.json",
        exerciser().display()
    );
    let ran = guest.script(&exercise).unwrap();
    assert_eq!(fact(&ran, "region"), format!("1 {:#x}", 512 * MIB));
    assert_eq!(fact(&ran, "dax"), format!("1 {}", 512 * MIB));
    assert_eq!((fact(&ran, "online"), fact(&ran, "has_cpu"), fact(&ran, "node1")), ("0-1", "0", "512"));
    assert!(number(&ran, "tier0") < number(&ran, "tier1"));
    assert!(ran.kernel_log().unwrap().contains("Demotion targets for Node 0: preferred: 1"));

    let report = Report::read(&out.path().join("r.json")).unwrap();
    assert!(report.checksum_ok);
    assert_eq!((report.start.bytes(Kind::Hot, 1), report.start.bytes(Kind::Cold, 0)), (4 * MIB, 4 * MIB));
    let last = report.samples.last().unwrap();
    assert_eq!((last.hot_dram, last.access_dram), (0.0, 0.0), "nobody moves pages here");
}

#[test]
fn sparse_has_nodes_0_and_2_and_the_exerciser_knows_where_its_bytes_are() {
    let out = TempDir::new().unwrap();
    let guest = Guest::new(Profile::Sparse, "7.3", out.path()).dram("1G").slow("512M");
    let ran = guest
        .script(&format!(
            "{FACTS}
            echo 0 >/proc/sys/kernel/numa_balancing
            left=$(scripts/guest/balloon 300M 0)
            echo \"left $left\"
            {exerciser} --hot 32M --warm 8M --cold 64M --hot-node 2 --warm-node 0 --cold-node 0 --thp always \
                --seconds 4 --report $TENSORTIER_OUT/huge.json
            {exerciser} --hot 16M --cold 48M --hot-node 0 --cold-node 2 --thp never --phase-seconds 2 --seconds 8 \
                --threads 2 --report $TENSORTIER_OUT/phases.json
            ! {exerciser} --hot 16M --cold 400M --hot-node 0 --cold-node 0 --seconds 1",
            exerciser = exerciser().display()
        ))
        .unwrap();
    assert!(fact(&ran, "release").starts_with("7.3."));
    assert_eq!((fact(&ran, "online"), fact(&ran, "has_memory"), fact(&ran, "has_cpu")), ("0,2", "0,2", "0"));
    assert!(number(&ran, "tier0") < number(&ran, "tier2"));
    assert!(number(&ran, "left").abs_diff(300 * MIB) <= 4 * MIB);
    assert!(ran.stderr.contains("400"), "the memory that does not fit its node is named: {}", ran.stderr);

    let huge = Report::read(&out.path().join("huge.json")).unwrap();
    assert!(huge.checksum_ok && huge.words == 104 * MIB / 64);
    assert_eq!(huge.start.bytes(Kind::Hot, 2), 32 * MIB);
    assert_eq!((huge.start.bytes(Kind::Warm, 0), huge.start.bytes(Kind::Cold, 0)), (8 * MIB, 64 * MIB));
    assert!(huge.start_huge_bytes >= 96 * MIB, "{} bytes in huge pages", huge.start_huge_bytes);
    for sample in &huge.samples {
        assert_eq!(sample.hot_dram, 0.0);
        // One touch of each warm stripe to ten of each hot one, on a quarter of the bytes.
        assert!((0.0..0.1).contains(&sample.access_dram), "{sample:?}");
    }
    let touched: u64 = huge.blocks.iter().map(|block| block.accesses).sum();
    assert!(touched > 0 && huge.blocks.len() == 20, "hot and warm are 20 blocks: {}", huge.blocks.len());

    let phases = Report::read(&out.path().join("phases.json")).unwrap();
    assert!(phases.checksum_ok && phases.start_huge_bytes == 0);
    // A loop that a busy host holds up may pass over a phase.
    assert!((2..=8).contains(&phases.phases.len()), "{:?}", phases.phases);
    // Threads change windows one after the other, so a sample may hold touches of the window before or after.
    let hot = |window: &Range| {
        phases.pieces.iter().any(|piece| piece.kind == Kind::Hot && piece.range.intersect(window) == Some(*window))
    };
    let window = |sample: &&Sample| &phases.windows[(sample.phase % phases.windows.len() as u64) as usize];
    let (near, far): (Vec<_>, Vec<_>) = phases.samples.iter().partition(|sample| hot(window(sample)));
    assert!(!near.is_empty() && near.iter().all(|sample| sample.hot_dram == 1.0), "hot is on node 0: {near:?}");
    assert!(far.iter().all(|sample| sample.hot_dram == 0.0), "cold is on node 2: {far:?}");
    assert!(far.iter().any(|sample| sample.access_dram < 0.1), "{far:?}");
    assert!(phases.stalls_ns.p50 > 0 && phases.stalls_ns.p99 <= phases.stalls_ns.max);
}
