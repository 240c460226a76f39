#![allow(clippy::unwrap_used)]
use super::*;

fn known(took: Duration, changing: bool, read: Instant) -> Known {
    let process = Process::open(Pid(std::process::id())).unwrap();
    let (vmas, movable, residents) = (Vec::new(), Movable::default(), Vec::new());
    let (size, stale) = (resident_pages(&process), BTreeSet::new());
    Known {
        process,
        vmas,
        movable,
        residents,
        read: Some(read),
        took,
        changing,
        same: false,
        stale,
        blocks_due: None,
        size,
    }
}

#[test]
fn a_scan_is_due_by_its_cost_and_by_what_changes() {
    let read = Instant::now();
    let due = |took, changing, after| known(took, changing, read).due(read + Duration::from_millis(after));
    let (cheap, dear) = (Duration::from_millis(1), Duration::from_millis(80));
    assert!(!due(cheap, true, 900) && due(cheap, true, 1000));
    assert!(!due(dear, true, 7900) && due(dear, true, 8000));
    assert!(!due(cheap, false, 29_000) && due(cheap, false, 30_000));
    let mut same = known(cheap, false, read);
    same.same = true;
    assert!(!same.due(read + Duration::from_secs(59)) && same.due(read + Duration::from_secs(60)));
}

#[test]
fn a_process_that_grew_is_due_ten_times_sooner() {
    let read = Instant::now();
    let mut known = known(Duration::from_millis(400), true, read);
    known.size /= 2;
    assert!(!known.due(read + Duration::from_millis(3900)) && known.due(read + Duration::from_secs(4)));
    known.changing = false;
    assert!(!known.due(read + Duration::from_secs(29)), "without a fault it cannot have grown");
    known.size = 800;
    assert!(!known.grown(900) && known.grown(901) && known.grown(699));
}

#[test]
fn this_process_is_read_and_a_gone_one_dropped() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (me, other) = (Pid(std::process::id()), Pid(child.id()));
    let nodes: NodeSet = "0".parse().unwrap();
    let mut memory = Memory::new(nodes, false);
    memory.add(me).unwrap();
    memory.add(other).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (read, gone) = memory.refresh(Instant::now());
    assert_eq!((read, gone), (vec![me], vec![other]));
    let arena = std::hint::black_box(vec![1u8; 8 << 20]);
    let all = |memory: &Memory| memory.residents().flat_map(|one| one.on.values()).sum::<u64>();
    memory.changing(me, Range::new(0, BLOCK));
    memory.refresh(Instant::now() + LATEST);
    assert!(all(&memory) >= arena.len() as u64, "{}", all(&memory));
}

#[test]
fn processes_that_are_due_at_once_are_read_in_turn() {
    let mut children: Vec<_> = (0..3).map(|_| std::process::Command::new("sleep").arg("60").spawn().unwrap()).collect();
    let mut pids: Vec<Pid> = children.iter().map(|child| Pid(child.id())).collect();
    pids.sort();
    let mut memory = Memory::new("0".parse().unwrap(), false);
    pids.iter().for_each(|pid| memory.add(*pid).unwrap());
    let (start, mut all) = (Instant::now(), BTreeSet::new());
    assert_eq!(memory.refresh(start).0, pids, "what was never read does not wait");
    memory.patience = Duration::ZERO;
    for turn in 1..=3 {
        let (read, gone) = memory.refresh(start + LATEST);
        assert_eq!((read.len(), gone.len()), (1, 0), "turn {turn}");
        all.extend(read);
    }
    assert!(all.into_iter().eq(pids) && memory.refresh(start + LATEST).0.is_empty());
    children.iter_mut().for_each(|child| child.kill().and_then(|()| child.wait()).map(drop).unwrap());
}

#[test]
fn what_fills_up_under_a_policy_is_counted_though_the_mappings_stay() {
    let me = Pid(std::process::id());
    let mut arena: Vec<u8> = Vec::with_capacity(64 << 20);
    let start = (arena.as_ptr() as u64).next_multiple_of(BLOCK);
    let range = Range::new(start, start + (32 << 20));
    crate::sys::MemPolicy::Preferred(crate::units::NodeId(0)).set_for_range(range).unwrap();
    let mut memory = Memory::new("0".parse().unwrap(), false);
    memory.add(me).unwrap();
    let begin = Instant::now();
    memory.refresh(begin);
    let preferred = |memory: &Memory| memory.policies(me).find(|(name, _)| *name == "prefer:0").map(|(_, on)| on);
    assert!(preferred(&memory).is_some_and(|bytes| bytes < 1 << 20), "{:?}", preferred(&memory));
    std::hint::black_box(&mut arena).resize(48 << 20, 1);
    memory.refresh(begin + LATEST);
    assert_eq!(preferred(&memory), Some(32 << 20));
}

#[test]
fn blocks_that_faulted_are_read_alone() {
    let me = Pid(std::process::id());
    let mut arena: Vec<u8> = Vec::with_capacity(64 << 20);
    let mut memory = Memory::new("0".parse().unwrap(), false);
    memory.add(me).unwrap();
    let start = Instant::now();
    memory.refresh(start);
    let range = Range::new(arena.as_ptr() as u64, arena.as_ptr() as u64 + (64 << 20));
    let inside = |memory: &Memory| {
        let parts = memory.residents().filter(|one| one.range.intersect(&range).is_some());
        parts.flat_map(|one| one.on.values()).sum::<u64>()
    };
    let before = inside(&memory);
    std::hint::black_box(&mut arena).resize(8 << 20, 1);
    memory.changing(me, Range::new(range.start, range.start + (8 << 20)));
    let (read, _) = memory.refresh(start);
    assert_eq!(read, [me]);
    assert!(inside(&memory) >= before + (7 << 20), "{before} before, {} after", inside(&memory));
    memory.changing(me, range);
    assert!(memory.refresh(start + SOONEST / 2).0.is_empty(), "not again at once");
    memory.moved(me, range);
    assert_eq!(memory.refresh(start + SOONEST / 2).0, [me], "but what was moved is looked at");
}
