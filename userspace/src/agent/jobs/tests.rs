#![allow(clippy::unwrap_used)]
use super::*;

fn add(jobs: &mut Jobs) -> Option<(u64, JobId)> {
    add_of(jobs, 0)
}

fn add_of(jobs: &mut Jobs, user: u32) -> Option<(u64, JobId)> {
    let asked = Ask {
        pids: Vec::new(),
        name: "a".into(),
        user,
        origin: Origin::Run,
        mode: Mode::Watch,
        actuator: Actuator::MovePages,
        policy: None,
        limits: Limits::default(),
    };
    let job =
        jobs.add(asked, Rules::default(), Before::default(), std::time::Duration::from_secs(1), Instant::now())?;
    Some((job.id, job.slot))
}

#[test]
fn numbers_are_never_given_twice_and_slots_not_at_once() {
    let mut jobs = Jobs::default();
    let (first, slot) = add(&mut jobs).unwrap();
    jobs.remove(first);
    let (second, other) = add(&mut jobs).unwrap();
    assert!(second > first && slot != other);
    for _ in 1..MAX_JOBS {
        assert!(add(&mut jobs).is_some());
    }
    assert_eq!(add(&mut jobs), None, "the kernel's table is full");
    jobs.remove(second);
    assert_eq!(add(&mut jobs).unwrap().1, other, "the only free one");
}

#[test]
fn no_user_fills_the_table() {
    let mut jobs = Jobs::default();
    for _ in 0..OF_A_USER {
        assert_eq!(jobs.room_for(7), Ok(()));
        add_of(&mut jobs, 7).unwrap();
    }
    assert!(jobs.room_for(7).unwrap_err().contains("user 7"));
    assert_eq!(jobs.room_for(8), Ok(()));
    for user in 8.. {
        if jobs.room_for(user).is_err() {
            break;
        }
        add_of(&mut jobs, user).unwrap();
    }
    assert_eq!(jobs.iter().count() + OF_ROOT, MAX_JOBS as usize);
}

#[test]
fn a_users_job_has_no_process_of_another_user() {
    let mut jobs = Jobs::default();
    let facts =
        |user| Facts { name: "a".into(), parent: Pid(1), user, nodes: NodeSet::default(), cpus: vec![], empty: false };
    for (owner, fits) in [(7, [true, false, false]), (0, [true, true, true])] {
        let id = add_of(&mut jobs, owner).unwrap().0;
        let job = jobs.get(id).unwrap();
        assert_eq!([Some(7), Some(0), None].map(|user| job.may_have(&facts(user))), fits);
    }
}

#[test]
fn a_process_that_ended_is_still_its_jobs_until_another_has_its_number() {
    let mut jobs = Jobs::default();
    let (one, two) = (add(&mut jobs).unwrap().0, add(&mut jobs).unwrap().0);
    jobs.join(Pid(7), one);
    jobs.leave(Pid(7));
    assert!(jobs.get(one).unwrap().processes.is_empty());
    assert_eq!(jobs.of_mut(Pid(7)).unwrap().id, one);
    jobs.join(Pid(7), two);
    assert_eq!(jobs.of_mut(Pid(7)).unwrap().id, two);
    jobs.remove(two);
    assert!(jobs.of_mut(Pid(7)).is_none());
}

#[test]
fn a_job_is_named_by_name_number_or_living_process() {
    let mut jobs = Jobs::default();
    let (one, two) = (add(&mut jobs).unwrap().0, add(&mut jobs).unwrap().0);
    jobs.join(Pid(700), two);
    let found = |word: &str| jobs.find(word).map(|job| job.id);
    assert_eq!((found("a"), found("a-2"), found("1"), found("700")), (Some(one), Some(two), Some(one), Some(two)));
    assert_eq!((found("701"), found("b"), found("")), (None, None, None));
    jobs.leave(Pid(700));
    assert!(jobs.find("700").is_none());
}
