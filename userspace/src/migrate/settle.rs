//! Reading what `move_pages` says, and leaves unsaid.
//!
//! The kernel queues pages one by one, writes an error to `status[]` for each that it cannot queue, and migrates what is
//! queued so far at each such page and at the end (do_pages_move, mm/migrate.c). If any page of such a segment does not
//! migrate, the call ends at once: it returns how many pages were not migrated, names none of them, leaves the segment's
//! `status[]` unwritten, the moved pages' too, and has not looked at the pages after it. So the segment in which it
//! stopped is what lies between the first unwritten entry and the next written one, and only a query tells which pages
//! of it moved.

use super::Cause;
use crate::{
    sys::{SysError, UNWRITTEN},
    units::NodeId,
};

/// What a call says of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is on the wanted node.
    There,
    /// It cannot be moved, and asking again would give the same answer.
    Failed(Cause),
    /// It was tried; it may have moved, and a query tells. EBUSY is here: tail pages of a large folio that moved get it.
    Tried,
    /// The call ended before its turn.
    Untried,
}

/// Reads a call's return value and `status[]`.
pub fn read(returned: &Result<u64, SysError>, status: &[i32], to: NodeId) -> Vec<Said> {
    let unwritten = |from: usize, is: bool| {
        status[from..].iter().position(|s| (*s == UNWRITTEN) == is).map_or(status.len(), |i| i + from)
    };
    let first = unwritten(0, true);
    let segment = first..if first < status.len() { unwritten(first, false) } else { first };
    let whole_call = returned.as_ref().err().and_then(for_all);
    let said = |(i, status): (usize, &i32)| match (*status, whole_call) {
        (UNWRITTEN, Some(cause)) => Said::Failed(cause),
        // A call that returns 0 has written every entry; one that has not is treated as if it had tried.
        (UNWRITTEN, None) if matches!(returned, Ok(0)) || segment.contains(&i) => Said::Tried,
        (UNWRITTEN, None) => Said::Untried,
        (node, _) if node == to.0 as i32 => Said::There,
        (node, _) if node >= 0 => Said::Tried,
        (errno, _) => match -errno {
            libc::ENOENT | libc::EFAULT => Said::Failed(Cause::Absent),
            libc::EACCES | libc::EPERM => Said::Failed(Cause::Shared),
            libc::ENOMEM => Said::Failed(Cause::NoMemory),
            _ => Said::Tried,
        },
    };
    status.iter().enumerate().map(said).collect()
}

/// The cause that an error of the whole call means for every page it has not spoken of; `None` where it is worth asking
/// again.
pub fn for_all(error: &SysError) -> Option<Cause> {
    match error.errno() {
        // EINVAL: it has no memory (find_mm_struct, mm/migrate.c); an ending process gives that up before its pidfd says so.
        libc::ESRCH | libc::EINVAL => Some(Cause::ProcessGone),
        libc::ENOMEM => Some(Cause::NoMemory),
        libc::EACCES | libc::EPERM | libc::ENODEV => Some(Cause::Forbidden),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::units::{Pid, Range};

    const TO: NodeId = NodeId(1);

    fn error(errno: i32) -> SysError {
        let source = io::Error::from_raw_os_error(errno);
        SysError::Call { call: "move_pages", pid: Pid(1), range: Range::new(0, 1), source }
    }

    #[test]
    fn a_positive_return_names_the_segment_it_stopped_in() {
        // Moved, absent, tried, tried, shared (which ended the segment), never looked at.
        let status = [1, -libc::ENOENT, UNWRITTEN, UNWRITTEN, -libc::EACCES, UNWRITTEN];
        let expected = [
            Said::There,
            Said::Failed(Cause::Absent),
            Said::Tried,
            Said::Tried,
            Said::Failed(Cause::Shared),
            Said::Untried,
        ];
        assert_eq!(read(&Ok(3), &status, TO), expected);
        assert_eq!(read(&Ok(2), &[UNWRITTEN; 2], TO), [Said::Tried; 2], "to the end of the call");
    }

    #[test]
    fn busy_tails_and_odd_statuses_are_asked_about_again() {
        assert_eq!(read(&Ok(0), &[1, -libc::EBUSY, 7, UNWRITTEN], TO)[1..], [Said::Tried; 3]);
    }

    #[test]
    fn an_error_of_the_call_is_for_the_pages_it_left_unsaid() {
        for (errno, cause) in [
            (libc::ESRCH, Cause::ProcessGone),
            (libc::EINVAL, Cause::ProcessGone),
            (libc::ENOMEM, Cause::NoMemory),
            (libc::EACCES, Cause::Forbidden),
            (libc::ENODEV, Cause::Forbidden),
        ] {
            let said = read(&Err(error(errno)), &[1, UNWRITTEN, UNWRITTEN], TO);
            assert_eq!(said, [Said::There, Said::Failed(cause), Said::Failed(cause)]);
        }
        assert_eq!(read(&Err(error(libc::EINTR)), &[UNWRITTEN], TO), [Said::Tried]);
    }
}
