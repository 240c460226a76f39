//! Who is connected: no user can keep the others, or root, out.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::net::UnixStream;

use super::{Answer, access::Peer};
use crate::units::Pid;

/// Connections at a time.
const ALL: usize = 256;
/// Of one user other than root.
const OF_A_USER: usize = 64;
/// Kept for root.
const OF_ROOT: usize = 32;

/// Connections by user.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Arc<Mutex<BTreeMap<u32, usize>>>);

/// One connection, as long as it lives.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    user: u32,
}

impl Seats {
    /// Who connected, and a seat for it.
    ///
    /// # Errors
    /// As [`Seats::take`], or the kernel does not say who it is.
    pub fn admit(&self, stream: &UnixStream) -> Result<(Peer, Seat), String> {
        let credentials =
            stream.peer_cred().map_err(|error| format!("the kernel does not name the client: {error}"))?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
        let peer = Peer { user: credentials.uid(), group: credentials.gid(), pid: pid.map(Pid) };
        Ok((peer, self.take(peer.user)?))
    }

    /// A seat for a client.
    ///
    /// # Errors
    /// There is none for this user, in words for that user.
    fn take(&self, user: u32) -> Result<Seat, String> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(&user).copied().unwrap_or(0);
        if user != 0 && own >= OF_A_USER {
            return Err(format!("user {user} has {OF_A_USER} connections to the agent, the most of one user"));
        }
        let most = if user == 0 { ALL } else { ALL - OF_ROOT };
        if all >= most {
            return Err(format!("{all} clients are connected to the agent; try again when some have ended"));
        }
        taken.insert(user, own + 1);
        drop(taken);
        Ok(Seat { seats: self.clone(), user })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.user) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

/// Says why, without waiting, and closes.
pub(super) fn turn_away(stream: UnixStream, why: String) {
    if let (Ok(mut stream), Ok(mut line)) = (stream.into_std(), serde_json::to_vec(&Answer::Refused { why })) {
        line.push(b'\n');
        // A new connection has room for a line; a client that has gone needs none.
        let _ = stream.write_all(&line);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_user_has_a_share_and_all_users_leave_some_for_root() {
        let seats = Seats::default();
        let mut held: Vec<Seat> = (0..OF_A_USER).map(|_| seats.take(7).unwrap()).collect();
        assert!(seats.take(7).unwrap_err().contains("user 7"));
        for user in 8.. {
            let Ok(seat) = seats.take(user) else { break };
            held.push(seat);
        }
        assert_eq!(held.len(), ALL - OF_ROOT);
        let root: Vec<Seat> = (0..OF_ROOT).map(|_| seats.take(0).unwrap()).collect();
        assert!(seats.take(0).is_err());
        drop((held, root));
        drop(seats.take(7).unwrap());
        assert!(seats.0.lock().unwrap().is_empty(), "all are given back");
    }
}
