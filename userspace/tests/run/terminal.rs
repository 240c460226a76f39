//! A terminal between the user and the job, made by `script(1)`.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
};

use crate::{config, socket, wait_for};

struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(command: &str) -> Self {
        let mut child = Command::new("script")
            .args(["-qefc", command, "/dev/null"])
            .env("TENSORTIER_CONFIG", config())
            .env("TENSORTIER_SOCKET", socket())
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { keys: child.stdin.take().unwrap(), child, screen }
    }

    fn shown(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    fn wait_for(&self, text: &str) {
        wait_for(&format!("{text:?} on the terminal"), || self.shown().contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn end(mut self) -> (i32, String) {
        let mut code = None;
        wait_for("the end of the terminal's command", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        let code = code.unwrap().code().unwrap();
        let screen = Arc::clone(&self.screen);
        drop(self);
        wait_for("the end of the terminal", || Arc::strong_count(&screen) == 1);
        let shown = screen.lock().unwrap().clone();
        (code, shown)
    }
}

const TENSORTIER: &str = env!("CARGO_BIN_EXE_tensortier");

#[test]
fn interrupt_reaches_the_job_once_and_the_summary_comes_after_it() {
    let job = "trap \"echo one interrupt\" INT; echo up; n=0; while [ $n -lt 25 ]; do sleep 0.02; n=$((n+1)); done; \
               echo job done; exit 5";
    let mut terminal = Terminal::start(&format!("exec {TENSORTIER} run -- bash -c '{job}'"));
    terminal.wait_for("up\r\n");
    terminal.press("\x03");
    let (code, shown) = terminal.end();
    assert_eq!(code, 5, "{shown}");
    assert_eq!(shown.matches("one interrupt\r\n").count(), 1, "{shown}");
    let (done, summary) = (shown.find("job done").unwrap(), shown.find("exit code 5").unwrap());
    assert!(done < summary, "{shown}");
}

#[test]
fn the_job_has_the_terminal() {
    let job = "test -t 0 && test -t 1 && test -t 2 && echo groups $(cut -d\" \" -f5,8 /proc/self/stat); \
               read word; echo got $word";
    let mut terminal = Terminal::start(&format!("exec {TENSORTIER} run -- sh -c '{job}'"));
    terminal.wait_for("groups ");
    terminal.press("hello\n");
    let (code, shown) = terminal.end();
    assert_eq!(code, 0);
    // Its process group is the terminal's foreground group. What is typed is echoed at any time, before the word too.
    let groups = shown.split_once("groups ").unwrap().1.lines().next().unwrap().trim().split_once(' ').unwrap();
    assert_eq!(groups.0, groups.1, "{shown}");
    assert!(shown.contains("got hello\r\n"), "{shown}");
}

#[test]
fn the_shell_can_stop_and_continue_it() {
    let mut terminal = Terminal::start("bash --norc --noprofile -i");
    // Words are split by quotes where the terminal echoes them, so that only the job's own are found. The job puts
    // itself to sleep first, as editors and debuggers do.
    let job = "trap \"echo contin\"\"ued\" CONT; echo u\"\"p; kill -TSTP $$; while :; do sleep 0.02; done";
    terminal.press(&format!("{TENSORTIER} run -- bash -c '{job}'\n"));
    terminal.wait_for("up\r\n");
    terminal.wait_for("Stopped");
    terminal.press("fg\n");
    terminal.wait_for("continued\r\n");
    terminal.press("\x1a");
    wait_for("a second stop", || terminal.shown().matches("Stopped").count() == 2);
    let continued = terminal.shown().matches("continued\r\n").count();
    terminal.press("fg\n");
    wait_for("the job to go on", || terminal.shown().matches("continued\r\n").count() > continued);
    terminal.press("\x03");
    terminal.wait_for("ended by SIGINT");
    terminal.press("echo code=$?; exit\n");
    let (_, shown) = terminal.end();
    assert!(shown.contains("code=130"), "{shown}");
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the terminal showed:\n{}", self.shown());
        }
        // The terminal hangs up, which ends what a failed test left on it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
