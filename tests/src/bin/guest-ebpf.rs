//! The eBPF sources that need two nodes or a DAMON of their own; run by the guest test.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    process::Command,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tensortier::{
    migrate::{Executor, Params},
    policy::{Move, Plan, Reason},
    source::{
        damon::{Damon, Intervals, Target},
        damon_events::DamonRegion,
        ebpf::{Options, Programs},
        migrations::Migrated,
    },
    sys::Process,
    units::{BLOCK, NodeId, PAGE, Pid, Range},
};
use tensortier_core::AccessedPages;
use tensortier_tests::arena::{Arena, PageSize};

/// What the kernel calls the reason of move_pages(2).
const OURS: &str = "syscall_or_cpuset";

fn main() -> Result<()> {
    ensure!(fs::read_to_string("/proc/cmdline")?.contains("tensortier.run="), "this is not a guest of scripts/vm");
    match env::args().nth(1).as_deref() {
        Some("move") => return moved(PageSize::Base).map(|moved| println!("{moved}")),
        Some(other) => bail!("no argument {other:?}"),
        None => {}
    }
    fs::write("/proc/sys/kernel/numa_balancing", "0")?;
    for raw in [true, false] {
        migrations(raw).with_context(|| format!("migrations, raw tracepoint: {raw}"))?;
    }
    damon().context("DAMON events")?;
    pages().context("accessed bits of single pages")?;
    println!("all events as counted");
    Ok(())
}

/// Moves 8 MiB of this process to node 1 and gives the pages moved.
fn moved(size: PageSize) -> Result<u64> {
    let mut arena = Arena::new(4 * BLOCK, size)?;
    let range = arena.range();
    arena.fill(range);
    let asked = Move {
        pid: this(),
        range,
        from: NodeId(0),
        to: NodeId(1),
        bytes: range.bytes(),
        reason: Reason::Hot,
        heat: 1.0,
    };
    let plan = Plan { id: 1, moves: vec![asked], ..Plan::default() };
    let outcome = Executor::new(Params::default()).run(&plan, &AtomicBool::new(false)).remove(0);
    ensure!(outcome.moved == range.pages(), "{outcome:?}");
    Ok(outcome.moved)
}

fn this() -> Pid {
    Pid(std::process::id())
}

/// Page sums by reason, the agent's own apart from another process's.
fn migrations(raw: bool) -> Result<()> {
    let mut programs = Programs::load(&Options { raw, ..Options::default() })?;
    let form = programs.attachments().iter().find(|one| one.program == "mm_migrate_pages").context("no program")?;
    ensure!(form.missing.is_none() && form.raw == raw, "{form:?}");
    ensure!(programs.migrations.reasons().iter().any(|reason| reason == OURS), "{:?}", programs.migrations.reasons());
    let pick =
        |sums: Vec<Migrated>, by_agent| sums.into_iter().find(|sum| sum.reason == OURS && sum.by_agent == by_agent);

    let base = moved(PageSize::Base)?;
    let sum = pick(programs.migrations.drain()?, true).context("no event of our own move")?;
    println!("own, base pages: {sum:?}");
    ensure!(sum.succeeded == base && sum.failed == 0 && sum.thp_succeeded == 0, "{base} pages moved");

    let huge = moved(PageSize::Huge)?;
    let sum = pick(programs.migrations.drain()?, true).context("no event of our own move")?;
    println!("own, huge pages: {sum:?}");
    ensure!(sum.succeeded == huge && sum.thp_succeeded == huge / 512, "{huge} pages moved");

    let output = Command::new(env::current_exe()?).arg("move").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let others: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
    let sums = programs.migrations.drain()?;
    ensure!(pick(sums.clone(), true).is_none(), "another process's move counted as ours: {sums:?}");
    ensure!(pick(sums.clone(), false).is_some_and(|sum| sum.succeeded == others), "{others} pages moved: {sums:?}");
    let total = programs.migrations.totals()?;
    ensure!(pick(total.clone(), true).is_some_and(|sum| sum.succeeded == base + huge), "{total:?}");
    ensure!(programs.migrations.lost() == 0, "reasons beyond the slots");
    Ok(())
}

/// Whole aggregations of the kdamond that is watched, and none of one that is not.
fn damon() -> Result<()> {
    let mut programs = Programs::load(&Options::default())?;
    ensure!(programs.runs("damon_aggregated"), "{:?}", programs.attachments());
    let mut arena = Arena::new(16 * BLOCK, PageSize::Base)?;
    let range = arena.range();
    arena.fill(range);
    let hot = Range::new(range.start, range.start + 4 * BLOCK);

    let mut damon = Damon::take(None, 200, &[])?;
    let intervals = Intervals { sampling: Duration::from_millis(20), aggregation: Duration::from_millis(400) };
    damon.watch(vec![Target { pid: Some(this()), ranges: vec![range] }], intervals);
    let generation = loop {
        match damon.poll() {
            Some(generation) => break generation?,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    use_for(&mut arena, hot, Duration::from_secs(2));
    ensure!(programs.damon.drain()?.is_empty(), "events of a kdamond that is not watched");

    programs.damon.watch(Pid(generation.kdamond))?;
    let began = Instant::now();
    use_for(&mut arena, hot, Duration::from_secs(8));
    let regions = programs.damon.drain()?;
    let took = began.elapsed();
    ensure!(programs.damon.lost() == 0, "{} lost", programs.damon.lost());

    let mut aggregations: Vec<Vec<DamonRegion>> = Vec::new();
    for region in regions {
        // Regions come in order of addresses: a lower one begins the next aggregation.
        match aggregations.last_mut() {
            Some(last) if last[last.len() - 1].range.start < region.range.start => last.push(region),
            _ => aggregations.push(vec![region]),
        }
    }
    println!("{} aggregations in {took:?}, regions {:?}", aggregations.len(), aggregations.last().map(Vec::len));
    ensure!(aggregations.len() >= 5, "{aggregations:?}");
    let mut seen: BTreeMap<bool, (u64, u64)> = BTreeMap::new();
    // The first may have begun before it was watched.
    for aggregation in &aggregations[1..aggregations.len() - 1] {
        for region in aggregation {
            ensure!(region.kdamond.0 == generation.kdamond && region.target == 0, "{region:?}");
            ensure!(region.range.start >= range.start && region.range.end <= range.end, "{region:?} of {range}");
            ensure!(region.nr_regions as usize == aggregation.len(), "{} events: {region:?}", aggregation.len());
            ensure!(region.at >= began && region.at <= began + took, "{region:?}");
            let (accesses, count) = seen.entry(hot.intersect(&region.range).is_some()).or_default();
            *accesses += u64::from(region.nr_accesses);
            *count += 1;
        }
    }
    println!("accesses and events, cold and hot: {seen:?}");
    let mean = |hot| seen.get(&hot).map_or(0.0, |(accesses, count)| *accesses as f64 / *count as f64);
    ensure!(mean(true) > 2.0 * mean(false), "the range in use is not hotter: {seen:?}");

    programs.damon.unwatch(Pid(generation.kdamond));
    programs.damon.drain()?;
    use_for(&mut arena, hot, Duration::from_secs(1));
    ensure!(programs.damon.drain()?.is_empty(), "events after the watch ended");
    Ok(())
}

/// After accessed bits were taken away exactly those pages have theirs that were read or written since.
fn pages() -> Result<()> {
    // Pages that another CPU is about to put on its lists keep their bits.
    let pinned = Command::new("taskset").args(["-pc", "0", &this().to_string()]).output()?;
    ensure!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    let mut reader = AccessedPages::new()?;
    let mut arena = Arena::new(500 * BLOCK, PageSize::Base)?;
    let whole = arena.range();
    let used = [(0, 0), (1, 511), (1, 64), (447, 7), (448, 1), (499, 300)];
    let page = |(block, page): (u64, u64)| {
        let start = whole.start + block * BLOCK + page * PAGE;
        Range::new(start, start + PAGE)
    };
    let (written, read) = used.split_at(3);
    let neighbours = used.iter().map(|(block, _)| *block).collect::<BTreeSet<_>>();
    for block in &neighbours {
        arena.fill(Range::new(whole.start + block * BLOCK, whole.start + (block + 1) * BLOCK));
    }
    let process = Process::open(this())?;
    process.cool(whole)?;
    let look = |reader: &mut AccessedPages| -> Result<BTreeMap<u64, u32>> {
        let mut found = BTreeMap::new();
        reader.read(this().0, whole.blocks(), &mut found)?;
        let count = |bits: &[u64; 8]| bits.iter().map(|word| word.count_ones()).sum();
        Ok(found.iter().map(|(block, bits)| (block - whole.start / BLOCK, count(bits))).collect())
    };
    ensure!(look(&mut reader)?.is_empty(), "accessed bits are left");
    written.iter().for_each(|at| arena.fill(page(*at)));
    ensure!(read.iter().all(|at| arena.intact(page(*at))), "contents changed");
    let mut found = BTreeMap::new();
    reader.read(this().0, whole.blocks(), &mut found)?;
    let mut expected: BTreeMap<u64, [u64; 8]> = BTreeMap::new();
    for (block, page) in used {
        expected.entry(whole.start / BLOCK + block).or_default()[page as usize / 64] |= 1 << (page % 64);
    }
    ensure!(found == expected, "{found:x?} in the place of {expected:x?}");
    process.cool(whole)?;
    ensure!(look(&mut reader)?.is_empty(), "accessed bits are left");
    println!("{} pages accessed, and no other", used.len());
    Ok(())
}

fn use_for(arena: &mut Arena, range: Range, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        arena.fill(range);
        // A system call, in which `pti=on` flushes the TLB: the emulator's would hide later accesses from DAMON.
        thread::sleep(Duration::from_millis(1));
    }
}
