//! Programs that are expected to end by themselves: how they ended and what they said.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a program may take to refuse its start.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout and stderr.
    pub output: String,
}

impl Ended {
    /// Runs a program to its end. One that goes on is killed and fails the test.
    pub fn of(mut command: Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("output");
        let file = fs::File::create(&path).expect("a file for the output");
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle of the file"))
            .stderr(file);
        let mut child = command.spawn().expect("the program starts");
        let output = || String::from_utf8_lossy(&fs::read(&path).expect("the output")).into_owned();
        let until = Instant::now() + END_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait().expect("wait for a child") {
                return Self {
                    code: status.code(),
                    output: output(),
                };
            }
            if Instant::now() > until {
                child.kill().expect("kill a child");
                child.wait().expect("wait for a child");
                panic!("{command:?} did not end within {END_TIMEOUT:?}: {}", output());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Panics unless it ended with this code and said each of these.
    pub fn expect(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.output);
        for text in said {
            assert!(self.output.contains(text), "{text:?} is not said in: {}", self.output);
        }
    }
}
