//! Runs a command in a guest with two memory tiers: `scripts/vm` for tests and benches.
//!
//! `scripts/vm` lets one guest run at a time on a host, so callers may run side by side.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};

/// Exit code of `scripts/vm` where the guest could not run the command.
const NO_GUEST: i32 = 125;
/// Exit code where the time ran out.
const TIMED_OUT: i32 = 124;

/// What the slow node of the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Node 1, slow by HMAT.
    Numa,
    /// Node 1, an emulated CXL type-3 device behind the real drivers.
    Cxl,
    /// Node 2, slow by HMAT; there is no node 1.
    Sparse,
}

/// A guest to be started.
#[derive(Clone, Debug)]
pub struct Guest {
    out: PathBuf,
    options: Vec<OsString>,
}

/// What a command in the guest left.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The command's exit code.
    pub code: i32,
    /// What it wrote.
    pub stdout: String,
    /// What it wrote to stderr, with the words of `scripts/vm` among it.
    pub stderr: String,
    /// The folder that the guest saw as `$TENSORTIER_OUT`, with `kernel.log` in it.
    pub out: PathBuf,
}

impl Guest {
    /// A guest with the given profile and cached kernel (`6.12`, `7.3`), whose `$TENSORTIER_OUT` is `out` on this host.
    pub fn new(profile: Profile, kernel: &str, out: &Path) -> Self {
        let profile = match profile {
            Profile::Numa => "numa",
            Profile::Cxl => "cxl",
            Profile::Sparse => "sparse",
        };
        Self { out: out.to_owned(), options: Vec::new() }.option("--profile", profile).option("--kernel", kernel)
    }

    /// Memory of node 0, like `1280M`.
    #[must_use]
    pub fn dram(self, size: &str) -> Self {
        self.option("--dram", size)
    }

    /// Memory of the slow node, like `2G`.
    #[must_use]
    pub fn slow(self, size: &str) -> Self {
        self.option("--slow", size)
    }

    /// More kernel arguments.
    #[must_use]
    pub fn append(self, arguments: &str) -> Self {
        self.option("--append", arguments)
    }

    /// Limit of the whole run in seconds (default: 900).
    #[must_use]
    pub fn timeout(self, seconds: u32) -> Self {
        self.option("--timeout", &seconds.to_string())
    }

    fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Runs a command in the root of the tree, as root, and waits for it. Its stderr is shown while it runs.
    ///
    /// # Errors
    /// The guest could not run the command or the time ran out, with what was said last. A command that fails is no
    /// error: see [`Ran::code`].
    pub fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, command: I) -> Result<Ran> {
        let mut child = Command::new(root().join("scripts/vm"))
            .current_dir(root())
            .args(&self.options)
            .arg("--out")
            .arg(&self.out)
            .arg("--")
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start scripts/vm")?;
        let pipes = child.stdout.take().zip(child.stderr.take());
        let (mut stdout, stderr) = pipes.context("scripts/vm has no pipes")?;
        let words = thread::spawn(move || {
            let mut all = String::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("{line}");
                all.push_str(&line);
                all.push('\n');
            }
            all
        });
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).context("cannot read what the guest wrote")?;
        let status = child.wait().context("cannot wait for scripts/vm")?;
        let stderr = words.join().unwrap_or_default();
        let stdout = String::from_utf8_lossy(&bytes).into_owned();
        let code = status.code().with_context(|| format!("scripts/vm ended by {status}"))?;
        let ours = stderr.lines().last().is_some_and(|line| line.starts_with("vm: "));
        ensure!(!(ours && (code == NO_GUEST || code == TIMED_OUT)), "no run in the guest: {stderr}");
        Ok(Ran { code, stdout, stderr, out: self.out.clone() })
    }

    /// Runs a script with bash, which ends at the first command that fails.
    ///
    /// # Errors
    /// As [`Guest::run`], and where the script fails.
    pub fn script(&self, script: &str) -> Result<Ran> {
        let ran = self.run(["bash", "-euo", "pipefail", "-c", script])?;
        ensure!(ran.code == 0, "the script ended with {}:\n{}{}", ran.code, ran.stdout, ran.stderr);
        Ok(ran)
    }
}

impl Ran {
    /// The kernel's messages.
    ///
    /// # Errors
    /// The log's path, where it cannot be read.
    pub fn kernel_log(&self) -> Result<String> {
        let path = self.out.join("kernel.log");
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Root of the source tree, which the guest sees under the same path.
///
/// # Panics
/// Never: the tests' folder lies in the tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the tree")
}

/// A program of this build, from a test: `cargo test --workspace` builds all of them before it runs one.
///
/// # Panics
/// It has not been built.
pub fn built(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap_or_default();
    // Tests lie in deps/, beside which the programs are.
    let path = test.ancestors().nth(2).unwrap_or(Path::new("/")).join(name);
    assert!(path.exists(), "{} is missing: cargo build -p tensortier", path.display());
    path
}
