//! A process's number in the agent's pid namespace, from the number that a client in a namespace of its own gave.

use std::{fs, path::Path};

use crate::units::{Pid, read_text};

/// The process that `peer` calls `pid`; `None` where there is none such.
///
/// The two are in one namespace, as a client and the job that it starts are. Reads `/proc` as a whole where that is not
/// the agent's own namespace.
pub fn translate(proc: &Path, peer: Option<Pid>, pid: Pid) -> Option<Pid> {
    let namespace = |pid: &str| fs::read_link(proc.join(pid).join("ns/pid")).ok();
    let theirs = namespace(&peer?.to_string())?;
    if namespace("self")? == theirs {
        return Some(pid);
    }
    let processes = fs::read_dir(proc).ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .find(|number| {
            let status = read_text(proc.join(number.to_string()).join("status")).unwrap_or_default();
            innermost(&status) == Some(pid) && namespace(&number.to_string()).as_ref() == Some(&theirs)
        })
        .map(Pid)
}

/// The last number of the `NSpid` line: the process's own view of itself.
fn innermost(status: &str) -> Option<Pid> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok().map(Pid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, name: &str, namespace: &str, numbers: &str) {
        let folder = proc.join(name);
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(namespace, folder.join("ns/pid")).unwrap();
        fs::write(folder.join("status"), format!("Name:\tx\nNSpid:\t{numbers}\n")).unwrap();
    }

    #[test]
    fn a_number_is_the_one_of_the_clients_namespace() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, "self", "pid:[1]", "100");
        process(proc, "100", "pid:[1]", "100");
        process(proc, "200", "pid:[2]", "200\t5");
        process(proc, "201", "pid:[2]", "201\t6");
        process(proc, "301", "pid:[3]", "301\t6");
        assert_eq!(translate(proc, Some(Pid(100)), Pid(6)), Some(Pid(6)), "one namespace, one number");
        assert_eq!(translate(proc, Some(Pid(200)), Pid(6)), Some(Pid(201)), "not 301, which is elsewhere");
        assert_eq!(translate(proc, Some(Pid(200)), Pid(7)), None);
        assert_eq!(translate(proc, Some(Pid(999)), Pid(6)), None, "the client has gone");
        assert_eq!(translate(proc, None, Pid(6)), None);
    }
}
