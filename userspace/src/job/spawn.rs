//! Fork, wait at a barrier, become the user, exec. The child is parted from this process by `fork` alone, so everything
//! it needs is made before, and between `fork` and `execve` it only makes system calls.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, RawFd},
    ptr,
};

use nix::{
    fcntl::OFlag,
    libc::{self, c_char, c_int},
    sys::signal::SigSet,
    unistd::{Pid, pipe2},
};

/// What a child does before it becomes the command.
pub(super) struct Recipe {
    /// Paths to try in turn, as `execvp` would.
    pub candidates: Vec<CString>,
    /// The arguments, the first being the command's name.
    pub argv: Vec<CString>,
    /// `NAME=value` each.
    pub envp: Vec<CString>,
    /// User, group and supplementary groups to take on.
    pub ids: Option<(u32, u32, Vec<u32>)>,
    /// The file mode mask.
    pub umask: Option<u32>,
    /// What `set_mempolicy(2)` takes: mode, node mask and its size in bits.
    pub mempolicy: Option<(c_int, Vec<u64>, usize)>,
    /// The signal mask to restore.
    pub mask: SigSet,
    /// Descriptors above stderr that the command inherits; all others are closed on exec.
    pub keep: Vec<RawFd>,
    /// Whether SIGCHLD was ignored when this process started.
    pub ignore_child: bool,
}

/// Which step a child failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Groups,
    Group,
    User,
    Mempolicy,
    Exec,
}

/// A child that waits before its `execve`.
pub(super) struct Child {
    pub pid: Pid,
    go: File,
    failure: File,
}

impl Child {
    /// Lets the child go on; returns once it runs the command, or with the step that failed.
    pub fn release(mut self) -> io::Result<Result<(), (Step, io::Error)>> {
        self.go.write_all(&[1])?;
        let mut report = [0; 5];
        match self.failure.read_exact(&mut report) {
            // The pipe closes without a word when `execve` succeeds.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Ok(())),
            Err(error) => Err(error),
            Ok(()) => {
                let [step, errno @ ..] = report;
                let step = match step {
                    0 => Step::Groups,
                    1 => Step::Group,
                    2 => Step::User,
                    3 => Step::Mempolicy,
                    _ => Step::Exec,
                };
                Ok(Err((step, io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))))
            }
        }
    }
}

/// Starts a child that waits. Dropping it without a release ends it before the command runs.
pub(super) fn spawn(recipe: &Recipe) -> io::Result<Child> {
    let (go_read, go_write) = pipe2(OFlag::O_CLOEXEC)?;
    let (failure_read, failure_write) = pipe2(OFlag::O_CLOEXEC)?;
    let mut argv = pointers(&recipe.argv);
    let envp = pointers(&recipe.envp);
    // execvp's way with a file that is no binary and names no interpreter: the shell reads it.
    let shell = c"/bin/sh";
    let mut shell_argv = vec![shell.as_ptr(), ptr::null()];
    shell_argv.extend(&argv[1..]);
    let gaps = gaps(&recipe.keep);

    // SAFETY: the child only makes system calls on memory prepared above, and never returns.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let child = InChild { recipe, failure: failure_write.as_raw_fd() };
            // SAFETY: this is the child; all pointers are to live, null-terminated arrays.
            unsafe {
                // With its own copy of the writing end open, the child would never see its parent's death.
                libc::close(go_write.as_raw_fd());
                child.wait(go_read.as_raw_fd());
                child.prepare(&gaps);
                child.exec(&mut argv, &mut shell_argv, &envp)
            }
        }
        pid => Ok(Child { pid: Pid::from_raw(pid), go: go_write.into(), failure: failure_read.into() }),
    }
}

struct InChild<'a> {
    recipe: &'a Recipe,
    failure: RawFd,
}

impl InChild<'_> {
    /// Waits for the word to go on; ends where the parent is gone.
    unsafe fn wait(&self, go: RawFd) {
        let mut word = 0u8;
        loop {
            // SAFETY: reads one byte into a live variable.
            match unsafe { libc::read(go, (&raw mut word).cast(), 1) } {
                1 => return,
                // SAFETY: a plain system call.
                -1 if unsafe { *libc::__errno_location() } == libc::EINTR => {}
                // SAFETY: a plain system call.
                _ => unsafe { libc::_exit(125) },
            }
        }
    }

    unsafe fn prepare(&self, gaps: &[(u32, u32)]) {
        let recipe = self.recipe;
        // SAFETY: system calls on memory that outlives them.
        unsafe {
            if let Some(umask) = recipe.umask {
                libc::umask(umask);
            }
            if let Some((mode, nodes, bits)) = &recipe.mempolicy
                && libc::syscall(libc::SYS_set_mempolicy, *mode, nodes.as_ptr(), *bits) != 0
            {
                self.fail(Step::Mempolicy);
            }
            if let Some((user, group, groups)) = &recipe.ids {
                // Raw calls: glibc's wrappers signal every thread of the process, of which the child has no copy.
                if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) != 0 {
                    self.fail(Step::Groups);
                }
                if libc::syscall(libc::SYS_setresgid, *group, *group, *group) != 0 {
                    self.fail(Step::Group);
                }
                if libc::syscall(libc::SYS_setresuid, *user, *user, *user) != 0 {
                    self.fail(Step::User);
                }
            }
            for (first, last) in gaps {
                // Every descriptor of ours has CLOEXEC already; this holds for what a library may forget. Kernels
                // before 5.11 refuse, which loses nothing.
                libc::syscall(libc::SYS_close_range, *first, *last, libc::CLOSE_RANGE_CLOEXEC);
            }
            // Rust ignores SIGPIPE at start, and exec keeps what is ignored.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            if recipe.ignore_child {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::sigprocmask(libc::SIG_SETMASK, recipe.mask.as_ref(), ptr::null_mut());
        }
    }

    unsafe fn exec(&self, argv: &mut [*const c_char], shell_argv: &mut [*const c_char], envp: &[*const c_char]) -> ! {
        let mut denied = false;
        for candidate in &self.recipe.candidates {
            // SAFETY: null-terminated arrays of live strings, as the caller promises.
            let errno = unsafe {
                libc::execve(candidate.as_ptr(), argv.as_ptr(), envp.as_ptr());
                if *libc::__errno_location() == libc::ENOEXEC {
                    shell_argv[1] = candidate.as_ptr();
                    libc::execve(shell_argv[0], shell_argv.as_ptr(), envp.as_ptr());
                }
                *libc::__errno_location()
            };
            match errno {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => denied = true,
                // SAFETY: as above.
                _ => unsafe { self.fail(Step::Exec) },
            }
        }
        // SAFETY: sets this thread's errno, then system calls.
        unsafe {
            *libc::__errno_location() = if denied { libc::EACCES } else { libc::ENOENT };
            self.fail(Step::Exec)
        }
    }

    /// Tells the parent which step failed with the errno of now, and ends.
    unsafe fn fail(&self, step: Step) -> ! {
        // SAFETY: writes a live array of five bytes, which a pipe takes whole.
        unsafe {
            let errno = (*libc::__errno_location()).to_ne_bytes();
            let report = [step as u8, errno[0], errno[1], errno[2], errno[3]];
            libc::write(self.failure, report.as_ptr().cast(), report.len());
            libc::_exit(125)
        }
    }
}

/// Takes SIGCHLD back where the parent had it ignored: the kernel would reap the job and its exit code would be lost.
/// Returns whether it was.
pub(super) fn take_child_signal() -> bool {
    // SAFETY: SIG_DFL is a valid disposition and runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The stretches of descriptor numbers above stderr that `keep` leaves out, both ends included.
fn gaps(keep: &[RawFd]) -> Vec<(u32, u32)> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = 3;
    for fd in keep {
        if fd > next {
            gaps.push((next, fd - 1));
        }
        next = fd + 1;
    }
    gaps.push((next, u32::MAX));
    gaps
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn gaps_leave_out_what_is_kept() {
        assert_eq!(gaps(&[]), [(3, u32::MAX)]);
        assert_eq!(gaps(&[3, 0, 7, 8]), [(4, 6), (9, u32::MAX)]);
    }
}
