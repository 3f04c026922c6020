// SPDX-License-Identifier: GPL-2.0-only
//! QEMU as a process: it inherits the other ends of our sockets, threads read its output, and it
//! never outlives this process.
//!
//! Owns: the child, its death with this process, the bounds on the output that is kept.
//! Does not: decide when QEMU has run long enough.
//!
//! The kernel kills QEMU when the thread that started it ends (`PR_SET_PDEATHSIG`), however that
//! happens; dropping QEMU's handle kills it too. QEMU has its own process group, so that Ctrl-C
//! reaches only this process.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getppid};

use crate::error::{Console, VmError};
use crate::initramfs::Initramfs;
use crate::protocol::{self, Frame, FrameError};

/// Number of bytes kept of a console, from its end.
const CONSOLE_BYTES_MAX: usize = 16 << 20;
/// Number of bytes kept of QEMU's own messages, from their end.
const STDERR_BYTES_MAX: usize = 8 << 10;
const EXIT_POLL: Duration = Duration::from_millis(10);

/// Both ends of the sockets between this process and QEMU, and the initramfs, before QEMU is
/// started.
#[derive(Debug)]
pub(crate) struct Launch {
    initramfs: Arc<File>,
    console: (UnixStream, UnixStream),
    /// This process's end, and QEMU's.
    pub result: (UnixStream, UnixStream),
}

/// A running QEMU.
pub(crate) struct Qemu {
    child: KillOnDrop,
    connection: Connection,
}

/// Readers of the streams of a QEMU.
#[derive(Debug)]
pub(crate) struct Connection {
    frames: Receiver<Result<Frame, FrameError>>,
    console: OutputReader,
    stderr: OutputReader,
}

/// Result of waiting for the guest's next message, which is a frame as in `protocol.rs`.
pub(crate) enum Message {
    Nothing,
    Frame(Frame),
    Broken(FrameError),
}

impl Launch {
    pub fn new(initramfs: &Initramfs) -> Result<Launch, VmError> {
        let pair = || UnixStream::pair().map_err(host("making a socket"));
        let initramfs = Arc::clone(&initramfs.file);
        Ok(Launch { initramfs, console: pair()?, result: pair()? })
    }

    pub fn initramfs_fd(&self) -> RawFd {
        self.initramfs.as_raw_fd()
    }

    pub fn console_fd(&self) -> RawFd {
        self.console.1.as_raw_fd()
    }

    pub fn result_fd(&self) -> RawFd {
        self.result.1.as_raw_fd()
    }

    pub fn start(self, program: &Path, args: &[String]) -> Result<Qemu, VmError> {
        let inherited = [self.initramfs_fd(), self.console_fd(), self.result_fd()];
        let (child, stderr) = spawn(program, args, inherited)?;
        Ok(Qemu { child: KillOnDrop(child), connection: self.connect(stderr) })
    }

    /// Begins to read QEMU's streams. Drops this process's copies of QEMU's ends, so that the
    /// streams end with QEMU.
    pub fn connect(self, stderr: impl Read + Send + 'static) -> Connection {
        let Launch { console: (console, _), result: (mut result, _), .. } = self;
        let (sender, frames) = channel();
        let receive = move || {
            loop {
                let frame = protocol::receive(&mut result);
                let is_last = frame.is_err();
                if sender.send(frame).is_err() || is_last {
                    return;
                }
            }
        };
        std::thread::spawn(receive);
        Connection {
            frames,
            console: OutputReader::start(console, CONSOLE_BYTES_MAX),
            stderr: OutputReader::start(stderr, STDERR_BYTES_MAX),
        }
    }
}

impl Connection {
    /// Returns the guest's next message (a frame as in `protocol.rs`), if it comes within
    /// `patience`.
    pub fn next(&mut self, patience: Duration) -> Message {
        match self.frames.recv_timeout(patience) {
            Ok(Ok(frame)) => Message::Frame(frame),
            Ok(Err(why)) => Message::Broken(why),
            Err(RecvTimeoutError::Timeout) => Message::Nothing,
            Err(RecvTimeoutError::Disconnected) => Message::Broken(FrameError::End),
        }
    }

    /// Returns the console so far.
    pub fn console_so_far(&self) -> Console {
        Console::new(&self.console.so_far())
    }

    /// Returns the console once QEMU has closed it, or after `patience`.
    pub fn last_console(&self, patience: Duration) -> Console {
        self.console.wait_end(patience);
        self.console_so_far()
    }

    /// Returns QEMU's own messages, on one line, once QEMU has ended, or after `patience`.
    pub fn last_stderr(&self, patience: Duration) -> String {
        self.stderr.wait_end(patience);
        one_line(&self.stderr.so_far())
    }
}

impl Qemu {
    /// Returns the guest's next message, if it comes within `patience`.
    pub fn next(&mut self, patience: Duration) -> Message {
        self.connection.next(patience)
    }

    /// Returns QEMU's exit status, if it exits within `patience`.
    pub fn wait_exit(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.child.wait_exit_or(patience, || false)
    }

    /// Ends QEMU and returns the guest's console.
    pub fn kill(&mut self) -> Console {
        self.child.end();
        Console::new(&self.connection.console.finish())
    }

    /// Returns the end of QEMU's own messages, on one line. QEMU must have ended.
    pub fn stderr(&mut self) -> String {
        one_line(&self.connection.stderr.finish())
    }
}

/// Runs QEMU for a moment, with `data` as a file whose descriptor is passed to `args`. Returns the
/// exit status, if QEMU exited by itself, and its messages. Stops waiting as soon as the messages
/// contain `last_words`.
pub(crate) fn run_briefly(
    program: &Path,
    data: &[u8],
    args: impl Fn(RawFd) -> Vec<String>,
    last_words: &str,
    patience: Duration,
) -> Result<(Option<ExitStatus>, String), VmError> {
    let file = in_memory(data).map_err(host("storing a file in memory"))?;
    let fd = file.as_raw_fd();
    let (child, stderr) = spawn(program, &args(fd), [fd])?;
    let mut child = KillOnDrop(child);
    let mut stderr = OutputReader::start(stderr, STDERR_BYTES_MAX);
    let has_given_up = || String::from_utf8_lossy(&stderr.so_far()).contains(last_words);
    let status = child.wait_exit_or(patience, has_given_up);
    child.end();
    Ok((status, one_line(&stderr.finish())))
}

/// A child process that is killed when this handle is dropped.
struct KillOnDrop(Child);

impl KillOnDrop {
    /// Waits for the child's exit; returns None after `patience`, or as soon as `stop` returns
    /// true.
    fn wait_exit_or(&mut self, patience: Duration, stop: impl Fn() -> bool) -> Option<ExitStatus> {
        let started = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if started.elapsed() < patience && !stop() => {
                    std::thread::sleep(EXIT_POLL)
                }
                _ => return None,
            }
        }
    }

    fn end(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // The group id is the child's pid, which is not reused until the child is waited for.
            let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
            let _ = self.0.wait();
        }
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a program that inherits the descriptors `inherited`. Standard input and output are
/// /dev/null, and the caller reads the standard error.
fn spawn<const N: usize>(
    program: &Path,
    args: &[String],
    inherited: [RawFd; N],
) -> Result<(Child, ChildStderr), VmError> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: runs between fork and exec, and makes system calls only: no allocation, no lock.
    unsafe { command.pre_exec(move || prepare_child(&inherited, parent)) };
    let mut child = command.spawn().map_err(host("starting QEMU"))?;
    let stderr = child.stderr.take().expect("it was piped");
    Ok((child, stderr))
}

fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("; ") }
}

/// Reads a stream in the background and keeps its last bytes.
#[derive(Debug)]
struct OutputReader {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl OutputReader {
    fn start(mut from: impl Read + Send + 'static, bytes_max: usize) -> OutputReader {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let read = move || {
            let mut buffer = [0; 4096];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(n) => keep_end(&mut lock(&into), &buffer[..n], bytes_max),
                    Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        };
        OutputReader { bytes, thread: Some(std::thread::spawn(read)) }
    }

    fn so_far(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }

    /// Waits until the writer is gone, at most for `patience`.
    fn wait_end(&self, patience: Duration) {
        let started = Instant::now();
        let is_over = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        while !is_over() && started.elapsed() < patience {
            std::thread::sleep(EXIT_POLL);
        }
    }

    /// Returns the collected bytes, once the writer is gone.
    fn finish(&mut self) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            // The thread ends with the stream, and has no reason to panic.
            let _ = thread.join();
        }
        self.so_far()
    }
}

/// Locks the bytes that the background thread has read. They are usable even if that thread
/// panicked.
fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends `more` to `bytes`. Drops all but the last `bytes_max` bytes only once there are more
/// than twice as many, so that drops are rare.
fn keep_end(bytes: &mut Vec<u8>, more: &[u8], bytes_max: usize) {
    bytes.extend_from_slice(more);
    if bytes.len() > 2 * bytes_max {
        bytes.drain(..bytes.len() - bytes_max);
    }
}

/// Runs in the child: makes the child die with its parent, and keeps the descriptors open that
/// QEMU's arguments name.
fn prepare_child(inherited: &[RawFd], parent: u32) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // Give up if the parent died before the call of `set_pdeathsig`, which then has no effect.
    if getppid().as_raw() as u32 != parent {
        return Err(io::ErrorKind::Interrupted.into());
    }
    for &fd in inherited {
        // SAFETY: the descriptors are open in the parent until `spawn` returns, so they are open
        // here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    Ok(())
}

/// Creates a file in memory with these contents.
pub(crate) fn in_memory(data: &[u8]) -> io::Result<File> {
    let fd = memfd_create(c"scxlab-initramfs", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(data)?;
    file.rewind()?;
    Ok(file)
}

pub(crate) fn host(what: &'static str) -> impl Fn(io::Error) -> VmError {
    move |why| VmError::Host { what, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell in QEMU's place, which plays the guest. The shell is bash, because some
    /// versions of sh allow only single-digit descriptors.
    fn shell(script: &str) -> Qemu {
        let launch = Launch::new(&Initramfs::new(b"archive").unwrap()).unwrap();
        let fds = [launch.initramfs_fd(), launch.console_fd(), launch.result_fd()];
        let args: Vec<String> = ["-c".to_owned(), script.to_owned(), "sh".to_owned()]
            .into_iter()
            .chain(fds.iter().map(i32::to_string))
            .collect();
        launch.start(Path::new("/bin/bash"), &args).unwrap()
    }

    /// Time limit that only a hang reaches.
    const PATIENCE: Duration = Duration::from_secs(900);

    #[test]
    fn the_end_of_the_process_is_the_end_of_the_frames() {
        let mut qemu = shell("echo hello >&$2; echo oops >&2; exit 3");
        assert!(matches!(qemu.next(PATIENCE), Message::Broken(FrameError::End)));
        assert_eq!(qemu.wait_exit(PATIENCE).unwrap().code(), Some(3));
        assert_eq!(qemu.kill().text(), "hello\n");
        assert_eq!(qemu.stderr(), "oops");
    }

    #[test]
    fn the_archive_can_be_opened_by_name() {
        let mut qemu = shell("cat /proc/self/fd/$1 >&$2");
        assert!(matches!(qemu.next(PATIENCE), Message::Broken(FrameError::End)));
        assert_eq!(qemu.kill().text(), "archive");
    }

    #[test]
    fn noise_on_the_result_port_is_damage() {
        let mut qemu = shell("echo this is no frame but long enough >&$3; exec sleep 2000");
        let message = qemu.next(PATIENCE);
        assert!(matches!(message, Message::Broken(FrameError::Damaged { .. })));
    }

    #[test]
    fn a_cut_frame_is_no_result() {
        let mut qemu = shell("printf 'sxv1\\001' >&$3");
        let message = qemu.next(PATIENCE);
        assert!(matches!(message, Message::Broken(FrameError::Truncated { got: 5, .. })));
    }

    #[test]
    fn dropping_kills() {
        let qemu = shell("exec sleep 1000");
        let pid = qemu.child.0.id();
        drop(qemu);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn the_thread_that_started_it_takes_it_along() {
        let start = || {
            let qemu = shell("exec sleep 1000");
            let pid = qemu.child.0.id();
            std::mem::forget(qemu);
            pid
        };
        let pid = std::thread::spawn(start).join().unwrap();
        let stat = format!("/proc/{pid}/stat");
        let is_dead = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        let started = Instant::now();
        while !is_dead() {
            assert!(started.elapsed() < PATIENCE, "process {pid} lives on");
            std::thread::sleep(EXIT_POLL);
        }
    }

    #[test]
    fn output_is_bounded() {
        let mut bytes = Vec::new();
        for n in 0..100u8 {
            keep_end(&mut bytes, &[n; 10], 50);
            assert!(bytes.len() <= 100);
        }
        assert_eq!(bytes.last(), Some(&99));
        assert!(bytes.len() >= 50);
    }
}
