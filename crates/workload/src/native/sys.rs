// SPDX-License-Identifier: GPL-2.0-only
//! The system calls of the native executor, as functions that return an error number.
//!
//! Owns: every raw call, and the C structures that `libc` lacks. No function here allocates unless
//! its comment says so, because the new process of a thread that forked may call it.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;

use scxlab_machine::id::Nanos;

use crate::program::cpus::MAX_CPUS;

/// An error number of the kernel.
pub type Errno = i32;

pub fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Turns the -1 of a failed system call into the error number.
pub fn checked(got: libc::c_long) -> Result<i64, Errno> {
    if got < 0 { Err(errno()) } else { Ok(got) }
}

fn clock(id: libc::clockid_t) -> Nanos {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is a valid timespec to write to.
    unsafe { libc::clock_gettime(id, &mut at) };
    at.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(at.tv_nsec.unsigned_abs())
}

/// Returns the time of CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    clock(libc::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu() -> Nanos {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn timespec(ns: Nanos) -> libc::timespec {
    // Seconds beyond the range of `tv_sec` become its maximum, which is after the end of any run.
    let secs = libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec: secs, tv_nsec: (ns % 1_000_000_000) as libc::c_long }
}

/// Sleeps until CLOCK_MONOTONIC reaches `at` or a signal arrives. Returns true if the time has
/// come.
pub fn sleep_until(at: Nanos) -> bool {
    let at = timespec(at);
    let (id, flags) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME);
    // SAFETY: `at` is valid; the remaining time is not wanted.
    unsafe { libc::clock_nanosleep(id, flags, &at, std::ptr::null_mut()) == 0 }
}

/// Sleeps while the word has this value: until a wake, a signal, or the end of `timeout`
/// (relative). May return early.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Nanos>) {
    let length = timeout.map(timespec);
    let length = length.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word lives in mapped memory and `length` is null or valid for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, length) };
}

/// Wakes up to `most` sleepers. The futex is not private, because sleepers may belong to other
/// processes.
pub fn futex_wake(word: &AtomicU32, most: i32) {
    // SAFETY: the kernel only looks the address up.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most) };
}

pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

pub fn getpid() -> i32 {
    // SAFETY: no arguments. The raw call is used because a cached value would be the parent's after
    // `clone_process`.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

/// Calls `clone` without sharing anything, like `fork`, and returns 0 in the child. With `sibling`
/// the child's parent is the caller's parent. No fork handlers of the C library run.
///
/// # Safety
/// The child may do only what is allowed after a `fork` in a process with threads.
pub unsafe fn clone_process(sibling: bool) -> Result<i32, Errno> {
    let flags = libc::SIGCHLD | if sibling { libc::CLONE_PARENT } else { 0 };
    // SAFETY: without CLONE_VM a null stack means a copy of the caller's. On every architecture
    // that the crate is built for, the flags are the first argument; the others are null.
    let got = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_long, 0, 0, 0, 0) };
    checked(got).map(|pid| pid as i32)
}

/// Ends the calling thread alone. The process lives as long as one of its threads does.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: never returns; nothing of this thread is used afterwards.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Sets the thread's name, which is cut to 15 bytes.
pub fn set_comm(comm: [u8; 16]) {
    // SAFETY: `comm` ends with a zero byte, because `plan::comm` makes it so.
    unsafe { libc::prctl(libc::PR_SET_NAME, comm.as_ptr()) };
}

/// Sets the signal that the calling process gets when its parent ends.
pub fn set_parent_death_signal(signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) };
}

/// Sets the timer slack of the calling thread to 1 ns, from the default of 50 us.
pub fn no_timer_slack() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// `struct sched_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedAttr {
    pub size: u32,
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    pub runtime: u64,
    pub deadline: u64,
    pub period: u64,
    pub util_min: u32,
    pub util_max: u32,
}

pub const SCHED_DEADLINE: u32 = 6;
pub const SCHED_EXT: u32 = 7;
pub const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// Sets the policy and its parameters for the calling thread.
pub fn sched_setattr(attr: SchedAttr) -> Result<(), Errno> {
    let attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..attr };
    // SAFETY: `attr` is as long as it says.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) }).map(drop)
}

/// Returns the policy and its parameters of the calling thread.
pub fn sched_getattr() -> Result<SchedAttr, Errno> {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>();
    // SAFETY: `attr` has room for `size` bytes.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) })?;
    Ok(attr)
}

/// Sets the nice value of the calling thread.
pub fn set_nice(nice: i8) -> Result<(), Errno> {
    set_nice_of(0, nice)
}

/// Sets the nice value of a thread; 0 is the calling thread.
pub fn set_nice_of(tid: i32, nice: i8) -> Result<(), Errno> {
    // SAFETY: no pointers. On Linux, nice is a property of a thread.
    let got = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, nice.into()) };
    checked(got.into()).map(drop)
}

/// Sets an extended attribute of a file.
pub fn set_xattr(path: &CStr, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: both names end in NUL, and `value` has the given length.
    let got = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    checked(got.into()).map(drop)
}

/// A CPU mask in the kernel's form.
pub type Mask = [u64; MAX_CPUS as usize / 64];

pub fn mask_of(cpus: impl Iterator<Item = u32>) -> Box<Mask> {
    let mut mask = Box::new([0; MAX_CPUS as usize / 64]);
    for cpu in cpus.filter(|c| *c < MAX_CPUS) {
        mask[cpu as usize / 64] |= 1 << (cpu % 64);
    }
    mask
}

/// Sets the affinity of the calling thread.
pub fn set_affinity(mask: &Mask) -> Result<(), Errno> {
    set_affinity_of(0, mask)
}

/// Sets the affinity of a thread; 0 is the calling thread.
pub fn set_affinity_of(tid: i32, mask: &Mask) -> Result<(), Errno> {
    let size = size_of::<Mask>();
    // SAFETY: `mask` has `size` bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size, mask.as_ptr()) };
    checked(got).map(drop)
}

/// Returns the CPUs that the calling thread may use. Allocates.
pub fn affinity() -> Result<Vec<u32>, Errno> {
    let mut mask = mask_of(std::iter::empty());
    let (size, at) = (size_of::<Mask>(), mask.as_mut_ptr());
    // SAFETY: `at` has room for `size` bytes.
    checked(unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size, at) })?;
    Ok((0..MAX_CPUS).filter(|c| mask[*c as usize / 64] >> (c % 64) & 1 == 1).collect())
}

/// Maps private zeroed memory and populates every page.
pub fn map_memory(bytes: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    map(bytes, flags, -1)
}

/// Maps a file's memory, shared.
pub fn map_shared(fd: i32, bytes: usize) -> Result<*mut u8, Errno> {
    map(bytes, libc::MAP_SHARED, fd)
}

/// Reserves address space without access.
pub fn reserve(bytes: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at.cast()) }
}

/// Maps zeroed memory at an address: a file's, shared, or private memory if `fd` is -1.
///
/// # Safety
/// Nothing uses the mappings that exist there.
pub unsafe fn map_at(at: *mut u8, bytes: usize, fd: i32) -> Result<(), Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = match fd {
        -1 => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        _ => libc::MAP_SHARED,
    };
    // SAFETY: the caller promises it.
    let got = unsafe { libc::mmap(at.cast(), bytes, access, flags | libc::MAP_FIXED, fd, 0) };
    if got == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
}

/// Unmaps memory.
///
/// # Safety
/// Nothing uses it any more.
pub unsafe fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the caller promises it.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// Makes a memory file, which all processes of the run inherit.
pub fn memory_fd(bytes: usize) -> Result<i32, Errno> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"scxlab-region".as_ptr(), 0) };
    checked(fd.into())?;
    let length = libc::off_t::try_from(bytes).map_err(|_| libc::ENOMEM)?;
    // SAFETY: `fd` is ours.
    checked(unsafe { libc::ftruncate(fd, length) }.into())?;
    Ok(fd)
}

/// Advises the kernel about a range of this process's memory. No advice that is used here changes
/// the contents.
pub fn advise(at: *mut u8, bytes: usize, advice: libc::c_int) -> Result<(), Errno> {
    loop {
        // SAFETY: the kernel checks the range.
        let got = checked(unsafe { libc::madvise(at.cast(), bytes, advice) }.into());
        match got {
            // A signal interrupts the population of pages.
            Err(libc::EINTR | libc::EAGAIN) => {}
            got => return got.map(drop),
        }
    }
}

/// Sets the memory policy of a range.
pub fn mbind(at: *mut u8, bytes: usize, mode: libc::c_int, nodes: u64) -> Result<(), Errno> {
    // The kernel takes one bit less than this number.
    const MAX_NODE: libc::c_ulong = 65;
    let (mask, max) = match mode {
        libc::MPOL_DEFAULT => (std::ptr::null(), 0),
        _ => (&raw const nodes, MAX_NODE),
    };
    // SAFETY: `mask` is null or has 64 bits; the kernel checks the range.
    let got = unsafe { libc::syscall(libc::SYS_mbind, at, bytes, mode, mask, max, 0) };
    checked(got).map(drop)
}

/// Asks for the node of each page; an error number, negative, for a page that is not present.
pub fn nodes_of(pages: &[u64], status: &mut [i32]) -> Result<(), Errno> {
    let count = pages.len().min(status.len());
    let no_nodes: *const i32 = std::ptr::null();
    // SAFETY: both arrays have `count` entries. The addresses are only looked up.
    let got = unsafe {
        let (pages, status) = (pages.as_ptr(), status.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, 0, count, pages, no_nodes, status, 0)
    };
    checked(got).map(drop)
}

/// Tells for each page of a file's mapping whether the file has it.
pub fn present(at: *mut u8, bytes: usize, pages: &mut [u8]) -> Result<(), Errno> {
    assert!(pages.len() * 4096 >= bytes, "one byte for each page");
    // SAFETY: `pages` has room for the range; the kernel checks the range.
    checked(unsafe { libc::mincore(at.cast(), bytes, pages.as_mut_ptr()) }.into()).map(drop)
}

/// Whether the kernel has memory policies.
pub fn has_policies() -> bool {
    let none: *mut libc::c_void = std::ptr::null_mut();
    // SAFETY: without pointers, the call only asks whether it exists.
    let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, none, none, 0, none, 0) };
    checked(got) != Err(libc::ENOSYS)
}

fn map(bytes: usize, flags: i32, fd: i32) -> Result<*mut u8, Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at.cast()) }
}

/// Reads up to `into.len()` bytes from the start of a file. `path` must end with a zero byte.
pub fn read_file(path: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
    if path.last() != Some(&0) {
        return Err(libc::EINVAL);
    }
    // SAFETY: `path` ends with a zero byte.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    checked(fd.into())?;
    let mut filled = 0;
    while filled < into.len() {
        let rest = &mut into[filled..];
        // SAFETY: `rest` has room for its length; `fd` is ours.
        let got = unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(got) {
            Ok(0) | Err(_) => break,
            Ok(n) => filled += n,
        }
    }
    // SAFETY: opened above, closed once.
    unsafe { libc::close(fd) };
    Ok(filled)
}

/// Does one write system call.
pub fn write(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: `bytes` is readable for its length.
    let got = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    checked(got as libc::c_long).map(|n| n as usize)
}

/// Does one read system call.
pub fn read(fd: i32, into: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
    // SAFETY: `into` is writable for its length.
    let got = unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) };
    checked(got as libc::c_long).map(|n| n as usize)
}

/// Makes the next `execve` close all descriptors above 2 but these.
pub fn inherit_only(fds: &[i32]) -> Result<(), Errno> {
    // SAFETY: takes numbers.
    let got = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    checked(got)?;
    for fd in fds {
        // SAFETY: takes numbers.
        checked(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) }.into())?;
    }
    Ok(())
}

/// The signal that interrupts a thread's sleep, so that the thread notices the end of the run.
pub const STOP_SIGNAL: i32 = libc::SIGUSR1;

extern "C" fn nothing(_signal: i32) {}

/// A set of signals.
pub fn signals(which: &[i32]) -> libc::sigset_t {
    // SAFETY: the initialisation overwrites the zeroes; each call gets a valid set.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in which {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks exactly these signals in the calling thread.
pub fn set_blocked(which: &[i32]) {
    let set = signals(which);
    // SAFETY: a valid set; the old one is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Blocks or unblocks the stop signal in the calling thread.
pub fn block_stop_signal(block: bool) {
    let set = signals(&[STOP_SIGNAL]);
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: a valid set; the old one is not wanted.
    unsafe { libc::pthread_sigmask(how, &set, std::ptr::null_mut()) };
}

/// Sets the signal handling of a workload process. It ignores the terminal's signals, which the
/// director handles.
pub fn worker_signals() {
    // SAFETY: zeroes are a valid sigaction: no flags, an empty mask; the handler does nothing.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        // Without SA_RESTART, system calls end with EINTR.
        libc::sigaction(STOP_SIGNAL, &action, std::ptr::null_mut());
    }
    set_blocked(&[]);
}

/// Sends a signal to one thread. A thread that no longer exists is no error.
pub fn kill_thread(tgid: i32, tid: i32, signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_tgkill, tgid, tid, signal) };
}
