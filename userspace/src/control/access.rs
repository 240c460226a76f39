//! Who may ask what. The kernel says who is at the other end of the socket (`SO_PEERCRED`); nothing that a client says
//! of itself counts.

use nix::unistd::{Gid, Uid, User, getgrouplist};

use crate::{policy::Limits, units::Pid};

/// The process at the other end, as the kernel named it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its number in the agent's pid namespace; `None` where it is in none of those below.
    pub pid: Option<Pid>,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// The whole state is not for everyone.
    #[error(
        "user {0} may not read the agent's state: that is for root and for the group that `agent.group` names in the config"
    )]
    Read(u32),
    /// Somebody else's job.
    #[error("user {user} may not change a job of user {owner}")]
    Other {
        /// Who asked.
        user: u32,
        /// Whose it is.
        owner: u32,
    },
    /// Only root.
    #[error("user {0} may not do this: it concerns more than one user's jobs and is for root")]
    Root(u32),
    /// A priority above what a user may have.
    #[error("user {0} may not raise a priority above 0; that is for root")]
    Priority(u32),
}

impl Peer {
    fn root(&self) -> bool {
        self.user == 0
    }

    /// May it see everything? `readers` is the group that may.
    ///
    /// # Errors
    /// [`Refused::Read`].
    pub fn may_read(&self, readers: Option<u32>) -> Result<(), Refused> {
        let allowed = self.root() || readers.is_some_and(|readers| self.group == readers || self.is_member(readers));
        if allowed { Ok(()) } else { Err(Refused::Read(self.user)) }
    }

    /// May it change what belongs to `owner`?
    ///
    /// # Errors
    /// [`Refused::Other`].
    pub fn may_change(&self, owner: u32) -> Result<(), Refused> {
        if self.root() || self.user == owner { Ok(()) } else { Err(Refused::Other { user: self.user, owner }) }
    }

    /// May it change what concerns everybody?
    ///
    /// # Errors
    /// [`Refused::Root`].
    pub fn may_administer(&self) -> Result<(), Refused> {
        if self.root() { Ok(()) } else { Err(Refused::Root(self.user)) }
    }

    /// May it ask for these limits? Budgets only bound a job; a priority takes from others.
    ///
    /// # Errors
    /// [`Refused::Priority`].
    pub fn may_have(&self, limits: &Limits) -> Result<(), Refused> {
        if self.root() || limits.priority <= 0 { Ok(()) } else { Err(Refused::Priority(self.user)) }
    }

    /// By the account database: what `/proc/PID/status` says could be another process's by now.
    fn is_member(&self, group: u32) -> bool {
        let Ok(Some(account)) = User::from_uid(Uid::from_raw(self.user)) else { return false };
        let Ok(name) = std::ffi::CString::new(account.name) else { return false };
        getgrouplist(&name, account.gid).is_ok_and(|groups| groups.contains(&Gid::from_raw(group)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(user: u32, group: u32) -> Peer {
        Peer { user, group, pid: None }
    }

    #[test]
    fn root_may_everything() {
        let root = peer(0, 0);
        assert_eq!(root.may_read(None), Ok(()));
        assert_eq!(root.may_change(1000), Ok(()));
        assert_eq!(root.may_administer(), Ok(()));
        assert_eq!(root.may_have(&Limits { priority: 20, ..Limits::default() }), Ok(()));
    }

    #[test]
    fn a_user_may_change_what_is_theirs_alone() {
        let user = peer(4242, 4242);
        assert_eq!(user.may_change(4242), Ok(()));
        assert_eq!(user.may_change(4243), Err(Refused::Other { user: 4242, owner: 4243 }));
        assert_eq!(user.may_change(0), Err(Refused::Other { user: 4242, owner: 0 }));
        assert_eq!(user.may_administer(), Err(Refused::Root(4242)));
        assert_eq!(user.may_have(&Limits { priority: 1, ..Limits::default() }), Err(Refused::Priority(4242)));
        assert_eq!(user.may_have(&Limits { priority: -1, dram_bytes: Some(1), ..Limits::default() }), Ok(()));
    }

    #[test]
    fn the_state_is_for_the_named_group() {
        assert_eq!(peer(4242, 7).may_read(Some(7)), Ok(()));
        assert_eq!(peer(4242, 8).may_read(Some(7)), Err(Refused::Read(4242)));
        assert_eq!(peer(4242, 0).may_read(None), Err(Refused::Read(4242)), "root's group is not root");
    }
}
