//! Moves real pages between nodes 0 and 1 and checks every count against /proc/PID/numa_maps; run by the guest test.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tensortier::{
    job::{
        numa_maps,
        residency::{Residency, Sampling},
    },
    migrate::{Cause, Executor, Outcome, Params},
    policy::{Move, Plan, Reason},
    sys::{MemPolicy, Process},
    units::{BLOCK, NodeId, PAGE, Pid, Range},
};
use tensortier_tests::arena::{Arena, PageSize};

fn main() -> Result<()> {
    ensure!(fs::read_to_string("/proc/cmdline")?.contains("tensortier.run="), "this is not a guest of scripts/vm");
    match env::args().nth(1).as_deref() {
        Some("hold") => return hold(),
        Some(other) => bail!("no argument {other:?}"),
        None => {}
    }
    fs::write("/proc/sys/kernel/numa_balancing", "0")?;
    moves(PageSize::Base).context("base pages")?;
    moves(PageSize::Huge).context("huge pages")?;
    pinned().context("pinned pages")?;
    full().context("a full node")?;
    killed().context("a killed process")?;
    println!("all moved as counted");
    Ok(())
}

fn this() -> Pid {
    Pid(std::process::id())
}

fn run(pid: Pid, range: Range, from: u32, to: u32, params: Params, stop: &AtomicBool) -> Outcome {
    let asked =
        Move { pid, range, from: NodeId(from), to: NodeId(to), bytes: range.bytes(), reason: Reason::Hot, heat: 1.0 };
    Executor::new(params).run(&Plan { id: 1, moves: vec![asked], ..Plan::default() }, stop).remove(0)
}

/// What the kernel's own table says of the mapping that starts where the arena's does, or holds it.
fn pages_on(pid: Pid, range: Range, node: u32) -> Result<u64> {
    let lines = numa_maps::of_process(pid)?;
    let line = lines.iter().rfind(|line| line.start <= range.start).context("no mapping")?;
    Ok(line.on.get(&NodeId(node)).copied().unwrap_or(0) / PAGE)
}

fn moves(size: PageSize) -> Result<()> {
    let mut arena = Arena::new(8 << 20, size)?;
    let range = arena.range();
    // The last quarter stays empty.
    let filled = Range::new(range.start, range.end - BLOCK);
    arena.fill(filled);
    let start = pages_on(this(), range, 0)?;
    ensure!(start == filled.pages(), "{start} pages at the start");
    for (from, to) in [(0, 1), (1, 0)] {
        let outcome = run(this(), range, from, to, Params::default(), &AtomicBool::new(false));
        println!(
            "{size:?} {from} to {to}: {} moved in {} calls, failed {:?}",
            outcome.moved, outcome.calls, outcome.failed
        );
        ensure!(
            outcome.moved == filled.pages() && outcome.failed == [(Cause::Absent, BLOCK / PAGE)].into(),
            "{outcome:?}"
        );
        ensure!(
            (pages_on(this(), range, to)?, pages_on(this(), range, from)?) == (filled.pages(), 0),
            "numa_maps differs"
        );
        let process = Process::open(this())?;
        let extents = process.populated(range)?;
        ensure!(size == PageSize::Base || extents.iter().all(|e| e.huge), "a huge page was split: {extents:?}");
        for sampling in [Sampling::Exact, Sampling::Every(64)] {
            let scan = Residency::scan(&process, &extents, sampling)?;
            let on: u64 = scan.blocks.iter().filter_map(|block| block.on.get(&NodeId(to))).sum();
            ensure!(on == filled.bytes(), "{sampling:?} finds {on} bytes on node {to}");
        }
        ensure!(arena.intact(filled), "contents changed");
    }
    Ok(())
}

fn pinned() -> Result<()> {
    let mut arena = Arena::new(4 << 20, PageSize::Base)?;
    let range = arena.range();
    arena.fill(range);
    let pinned = Range::new(range.start + 100 * PAGE, range.start + 103 * PAGE);
    let pin = arena.pin(pinned)?;
    let outcome = run(this(), range, 0, 1, Params::default(), &AtomicBool::new(false));
    println!("pinned: {} moved, stuck {:?}", outcome.moved, outcome.stuck);
    ensure!(outcome.moved == range.pages() - 3 && outcome.failed == [(Cause::Busy, 3)].into(), "{outcome:?}");
    ensure!(outcome.stuck == [pinned], "{:?}", outcome.stuck);
    ensure!(pages_on(this(), range, 0)? == 3, "numa_maps differs");
    drop(pin);
    let again = run(this(), pinned, 0, 1, Params::default(), &AtomicBool::new(false));
    ensure!(again.moved == 3, "still stuck after the pin was dropped: {again:?}");
    ensure!(arena.intact(range), "contents changed");
    Ok(())
}

/// More than node 1 holds.
fn full() -> Result<()> {
    let mut arena = Arena::new(640 << 20, PageSize::Base)?;
    let range = arena.range();
    MemPolicy::Bind([NodeId(0)].into_iter().collect()).set_for_range(range)?;
    arena.fill(range);
    let outcome = run(this(), range, 0, 1, Params::default(), &AtomicBool::new(false));
    println!("full: {} moved in {} calls, failed {:?}", outcome.moved, outcome.calls, outcome.failed);
    ensure!(outcome.failed.get(&Cause::NoMemory).is_some_and(|pages| *pages > 0), "{outcome:?}");
    ensure!(outcome.moved == pages_on(this(), range, 1)?, "numa_maps differs");
    ensure!(outcome.moved + outcome.failed.values().sum::<u64>() == range.pages(), "{outcome:?}");
    Ok(())
}

/// The process whose memory [`killed`] moves.
fn hold() -> Result<()> {
    let mut arena = Arena::new(64 << 20, PageSize::Base)?;
    arena.fill(arena.range());
    println!("{} {}", arena.range().start, arena.range().end);
    thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn killed() -> Result<()> {
    let mut child = Command::new(env::current_exe()?).arg("hold").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut line)?;
    let (start, end) = line.trim().split_once(' ').context("no range")?;
    let (pid, range) = (Pid(child.id()), Range::new(start.parse()?, end.parse()?));
    let stop = AtomicBool::new(false);
    // Slow enough that the end comes in the middle.
    let params = Params { rate_bytes_per_sec: Some(16 << 20), burst_bytes: 1 << 20, ..Params::default() };
    let outcome = thread::scope(|scope| {
        let mover = scope.spawn(|| run(pid, range, 0, 1, params, &stop));
        while pages_on(pid, range, 1).unwrap_or(0) == 0 && !mover.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        child.kill()?;
        child.wait()?;
        // A mover that did not notice would go on for seconds; it ends here and the counts below tell.
        thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        mover.join().map_err(|_| anyhow::anyhow!("the executor panicked"))
    })?;
    println!("killed: {} moved, failed {:?}", outcome.moved, outcome.failed);
    ensure!(outcome.moved > 0 && outcome.failed.keys().eq([&Cause::ProcessGone]), "{outcome:?}");
    ensure!(outcome.moved + outcome.failed[&Cause::ProcessGone] == range.pages(), "{outcome:?}");
    Ok(())
}
