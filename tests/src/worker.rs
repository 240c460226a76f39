//! A process that does exact things to its memory when told, and says what the kernel charged it for them: what the host
//! tests and `faultcost` count against. One command a line on its input, one [`Reply`] a line on its output.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    ptr,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// What a command did and cost.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Who did it: the worker, or the process that it ran.
    pub pid: u32,
    /// First address of the memory used; unmapped by now.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Time of the accesses alone.
    pub ns: u64,
    /// Minor and major faults that getrusage(2) or wait4(2) charges.
    pub faults: u64,
}

/// A worker, seen from the process that started it. It ends when this is dropped.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts `program worker`; `program` is a binary that calls [`serve`] for it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        let child = command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {} worker", program.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("the worker's output is a pipe")?);
        let mut worker = Self { child, input, output };
        // Past its own start: what it faults from here on is what it is asked for.
        worker.ask("touch 1")?;
        Ok(worker)
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it carry out one command and gives its reply.
    ///
    /// # Errors
    /// It ended, or does not know the command.
    pub fn ask(&mut self, command: &str) -> Result<Reply> {
        let input = self.input.as_mut().context("the worker is told things until it is dropped")?;
        writeln!(input, "{command}").context("the worker is gone")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("worker, asked {command:?}, said {line:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input ends it; a worker that is gone already is as good.
        drop(self.input.take());
        let _status = self.child.wait();
    }
}

/// The worker itself: carries out commands until its input ends.
///
/// - `touch PAGES`: writes one byte to each of so many fresh 4 KiB pages
/// - `spread BLOCKS`: writes one byte to each of so many fresh 2 MiB blocks
/// - `read PAGES`: has read(2) fill so many fresh pages
/// - `threads N`: starts and joins so many threads
/// - `run PROGRAM ARGS…`: runs it to its end; the reply is about that process. Arguments are split at blanks, and `_`
///   stands for one.
///
/// # Errors
/// A command that is not known, or that the system refuses.
pub fn serve() -> Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<usize>().with_context(|| format!("{text:?} is not a number"));
        let reply = match words.as_slice() {
            ["touch", pages] => {
                measured(number(pages)? * PAGE, |memory| memory.iter_mut().step_by(PAGE).for_each(write))?
            }
            ["spread", blocks] => {
                measured(number(blocks)? * BLOCK, |memory| memory.iter_mut().step_by(BLOCK).for_each(write))?
            }
            ["read", pages] => {
                let mut zero = File::open("/dev/zero")?;
                let mut result = Ok(());
                let reply = measured(number(pages)? * PAGE, |memory| result = zero.read_exact(memory))?;
                result.context("cannot read /dev/zero")?;
                reply
            }
            ["threads", threads] => {
                let threads = number(threads)?;
                measured(PAGE, |_| {
                    for _ in 0..threads {
                        // A thread that cannot start shows as missing faults and a panic in the output.
                        std::thread::spawn(|| ()).join().unwrap_or_default();
                    }
                })?
            }
            ["run", program, args @ ..] => run(program, args)?,
            _ => bail!("not a command: {line:?}"),
        };
        println!("{}", serde_json::to_string(&reply)?);
        io::stdout().flush()?;
    }
    Ok(())
}

fn write(byte: &mut u8) {
    // SAFETY: a live reference; volatile, so that the write is made.
    unsafe { ptr::write_volatile(byte, 1) };
}

/// Maps fresh memory of small pages, runs `work` on it, unmaps it, and says what it cost.
fn measured(bytes: usize, work: impl FnOnce(&mut [u8])) -> Result<Reply> {
    // SAFETY: a new private mapping, checked below.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).with_context(|| format!("cannot map {bytes} bytes"));
    }
    // A fault a page, whatever the machine's setting. Kernels without huge pages refuse the advice, which suits as well.
    // SAFETY: advice about the mapping just made.
    unsafe { libc::madvise(address, bytes, libc::MADV_NOHUGEPAGE) };
    // SAFETY: `bytes` mapped, zeroed, writable bytes that nobody else knows, until the munmap below.
    let memory = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), bytes) };
    let before = faults(libc::RUSAGE_SELF)?;
    let begin = Instant::now();
    work(memory);
    let ns = begin.elapsed().as_nanos() as u64;
    let faults = faults(libc::RUSAGE_SELF)? - before;
    // SAFETY: the mapping made above, whose slice is not used any more.
    unsafe { libc::munmap(address, bytes) };
    let start = address as u64;
    Ok(Reply { pid: std::process::id(), start, end: start + bytes as u64, ns, faults })
}

fn faults(who: libc::c_int) -> Result<u64> {
    // SAFETY: all zeros is a valid rusage, and the call fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::getrusage(who, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error()).context("getrusage");
    }
    Ok((usage.ru_minflt + usage.ru_majflt) as u64)
}

fn run(program: &str, args: &[&str]) -> Result<Reply> {
    let args = args.iter().map(|arg| arg.replace('_', " "));
    let before = faults(libc::RUSAGE_CHILDREN)?;
    let begin = Instant::now();
    let child = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = child.with_context(|| format!("cannot start {program}"))?;
    let pid = child.id();
    let status = child.wait()?;
    if !status.success() {
        bail!("{program} failed: {status}");
    }
    let ns = begin.elapsed().as_nanos() as u64;
    // The only child that was waited for in between, and its own children.
    Ok(Reply { pid, ns, faults: faults(libc::RUSAGE_CHILDREN)? - before, ..Reply::default() })
}
