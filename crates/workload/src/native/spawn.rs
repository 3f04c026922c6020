// SPDX-License-Identifier: GPL-2.0-only
//! The creation of threads and processes, before the start and during the run, and the end of a
//! thread.
//!
//! Owns: slots and their numbers. A thread in its parent's process is a pthread. Any other thread
//! is a process of its own, made by `clone` with the director as its parent, and the director
//! collects it. A running thread forks under the guard of its process, so that no thread of the
//! process is in the C library's allocator during the `clone`. The new process may then make
//! threads itself.

use std::ffi::{c_char, c_void};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::error::RefusedCallKind;
use super::plan::{self, NO_PROCESS, Start};
use super::shared::{self, Slot};
use super::sys::{self, Errno};
use super::worker::{self, Env, Thread};
use super::{AFTER_EXEC, CHILD};

/// Stack size in bytes. A thread needs little: the interpreter and a transfer buffer.
const STACK: usize = 256 << 10;

/// The run that this process belongs to. It is set once, before the first thread of the process.
static ENV: OnceLock<&'static Env> = OnceLock::new();

/// Sets the process's run. Returns false if it has one already.
pub fn set_env(env: &'static Env) -> bool {
    ENV.set(env).is_ok()
}

/// Fills the slots (records in shared memory) of the threads that exist at the start, in order.
pub fn fill_start(env: &Env) {
    let shared = &env.shared;
    for (i, start) in env.tables.start.iter().enumerate() {
        let Start { template, instance, process } = *start;
        fill(env, i as u32, template, instance, process, None);
        if let Some(process) = shared.processes.get(process as usize) {
            process.alive.fetch_add(1, Relaxed);
        }
    }
    shared.head().nr_slots.store(env.tables.start.len() as u32, Relaxed);
}

/// Fills a slot for a new thread, except for its tid. The caller holds `Header::making`, or no
/// thread exists yet.
fn fill(
    env: &Env,
    index: u32,
    template: u32,
    instance: u32,
    process: u32,
    parent: Option<&Thread>,
) {
    let (head, slot) = (env.shared.head(), &env.shared.slots[index as usize]);
    let made = head.made.fetch_add(1, Relaxed);
    let made_of = env.shared.made_of[template as usize].fetch_add(1, Relaxed);
    let who = &slot.who;
    who.template.store(template, Relaxed);
    who.instance.store(instance, Relaxed);
    who.made.store(made, Relaxed);
    who.made_of.store(made_of, Relaxed);
    who.forked.store(parent.is_some().into(), Relaxed);
    slot.process.store(process, Relaxed);
    slot.serial.store(u64::from(made) + 1, Relaxed);
    if let Some(parent) = parent {
        slot.parent.store(parent.index + 1, Relaxed);
        slot.parent_serial.store(parent.slot.serial.load(Relaxed), Relaxed);
        slot.cgroup.store(parent.slot.cgroup.load(Relaxed), Relaxed);
    }
    let comm = plan::comm(&who.name(&env.tables));
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&comm[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    slot.comm[0].store(word(0), Relaxed);
    slot.comm[1].store(word(8), Relaxed);
    slot.state.store(shared::NEW, Release);
}

/// Makes a detached pthread of this process that runs the thread of the slot.
pub fn make_thread(index: u32, forked: bool) -> Result<(), Errno> {
    // SAFETY: the initialisation overwrites the zeroes.
    let mut attr: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    let mut id: libc::pthread_t = 0;
    let entry = if forked { forked_entry } else { start_entry };
    // SAFETY: `attr` is initialised before use and destroyed once; the argument is a number, not a
    // pointer.
    let got = unsafe {
        libc::pthread_attr_init(&mut attr);
        libc::pthread_attr_setstacksize(&mut attr, STACK);
        libc::pthread_attr_setdetachstate(&mut attr, libc::PTHREAD_CREATE_DETACHED);
        let argument = std::ptr::without_provenance_mut(index as usize);
        let got = libc::pthread_create(&mut id, &attr, entry, argument);
        libc::pthread_attr_destroy(&mut attr);
        got
    };
    if got == 0 { Ok(()) } else { Err(got) }
}

extern "C" fn start_entry(index: *mut c_void) -> *mut c_void {
    if let Some(env) = ENV.get() {
        worker::run_from_start(env, index.addr() as u32);
    }
    std::ptr::null_mut()
}

extern "C" fn forked_entry(index: *mut c_void) -> *mut c_void {
    if let Some(env) = ENV.get() {
        worker::run_forked(env, index.addr() as u32);
    }
    std::ptr::null_mut()
}

/// Prepares a new process; its first thread calls this before anything else. The kernel kills the
/// process when the director ends. The process ignores the terminal's signals, which the director
/// handles.
pub fn enter_process(env: &Env) {
    sys::set_parent_death_signal(libc::SIGKILL);
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    if parent != env.shared.head().director.load(Relaxed) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(1) };
    }
    sys::worker_signals();
}

impl Thread {
    pub fn fork(&self, template: u32) {
        let process = self.slot.process.load(Relaxed);
        // A process without a name has no other thread, and needs no guard.
        let _alone = self.env.shared.processes.get(process as usize).map(|p| p.making.lock());
        if let Err((what, errno)) = self.try_fork(template) {
            self.fault(what, errno);
        }
    }

    fn try_fork(&self, template: u32) -> Result<(), (RefusedCallKind, Errno)> {
        let own = self.slot.process.load(Relaxed);
        let (index, process) = self.reserve(template, own)?;
        let slot = &self.env.shared.slots[index as usize];
        self.slot.children.fetch_add(1, Relaxed);
        let got = if process != NO_PROCESS && process == own {
            make_thread(index, true)
        } else {
            self.fork_process(index)
        };
        got.map_err(|errno| {
            let _making = self.env.shared.head().making.lock();
            self.slot.children.fetch_sub(1, Relaxed);
            if let Some(process) = self.env.shared.processes.get(process as usize) {
                process.alive.fetch_sub(1, Relaxed);
            }
            slot.state.store(shared::FREE, Release);
            (RefusedCallKind::Fork, errno)
        })
    }

    /// Reserves a slot for one more thread of the thread template, and counts the thread in its
    /// process. Returns the indices of the slot and of the process.
    fn reserve(&self, template: u32, own: u32) -> Result<(u32, u32), (RefusedCallKind, Errno)> {
        let (tables, shared) = (&self.env.tables, &self.env.shared);
        let _making = shared.head().making.lock();
        let instance = shared.made_of[template as usize].load(Relaxed);
        let table = &tables.templates[template as usize];
        let limit = (RefusedCallKind::ForkLimit, libc::EAGAIN);
        let process = match (table.binding(instance), table.process(instance)) {
            (Some(_), Some(process)) => process,
            _ => return Err(limit),
        };
        if process != own
            && shared.processes.get(process as usize).is_some_and(|p| p.alive.load(Relaxed) > 0)
        {
            return Err((RefusedCallKind::ForeignFork, libc::EINVAL));
        }
        let index = self.free_slot().ok_or(limit)?;
        fill(self.env, index, template, instance, process, Some(self));
        if let Some(process) = shared.processes.get(process as usize) {
            process.alive.fetch_add(1, Relaxed);
        }
        Ok((index, process))
    }

    /// Returns an unused slot. If there is none, reuses the slot of a forked thread that is over;
    /// the report then lacks the row of that thread.
    fn free_slot(&self) -> Option<u32> {
        let (tables, shared) = (&self.env.tables, &self.env.shared);
        let head = shared.head();
        let used = head.nr_slots.load(Relaxed);
        if used < tables.nr_slots {
            head.nr_slots.store(used + 1, Relaxed);
            return Some(used);
        }
        let (first, end) = (tables.start.len() as u32, tables.nr_slots);
        let from = head.cursor.load(Relaxed).clamp(first, end);
        let reusable = |i: &u32| {
            let state = shared.slots[*i as usize].state.load(Acquire);
            state == shared::OVER || state == shared::FREE
        };
        let found = (from..end).chain(first..from).find(reusable)?;
        head.cursor.store(found + 1, Relaxed);
        self.recycle(&shared.slots[found as usize]);
        Some(found)
    }

    /// Adds the measurements of the slot's thread to the sums of `Header::unlisted`, and clears the
    /// slot.
    fn recycle(&self, slot: &Slot) {
        let sums = &self.env.shared.head().unlisted;
        let add = |to: &AtomicU64, more: u64| {
            to.fetch_add(more, Relaxed);
        };
        if slot.state.load(Relaxed) == shared::OVER {
            let after = &slot.after;
            let parts = [
                1,
                slot.units.load(Relaxed),
                after.run.load(Relaxed),
                after.wait.load(Relaxed).saturating_sub(1),
                after.voluntary.load(Relaxed),
                after.involuntary.load(Relaxed),
            ];
            sums.iter().zip(parts).for_each(|(sum, part)| add(sum, part));
        }
        slot.clear();
        let index = (std::ptr::from_ref(slot).addr() - self.env.shared.slots.as_ptr().addr())
            / size_of::<Slot>();
        let clear = |all: &[AtomicU64], width: u32| {
            let width = width as usize;
            all[index * width..(index + 1) * width].iter().for_each(|w| w.store(0, Relaxed));
        };
        clear(self.env.shared.own_timers, self.env.tables.max_timers);
    }

    fn fork_process(&self, index: u32) -> Result<(), Errno> {
        // SAFETY: the child runs only this crate's thread code and never returns into the parent's
        // frames. That code allocates only under a guard, which the parent held during the copy.
        match unsafe { sys::clone_process(true) }? {
            0 => {}
            _ => return Ok(()),
        }
        // The parent gives back the guard of its process itself. The child never takes that guard,
        // because its own process has another name or none.
        enter_process(self.env);
        worker::run_forked(self.env, index);
        sys::exit_thread()
    }

    /// Replaces the process's image by a new one of this program, which continues at the next
    /// instruction.
    pub fn reexec(&mut self) {
        let process = self.slot.process.load(Relaxed);
        let alive = |p: &shared::Process| p.alive.load(Relaxed);
        if self.env.shared.processes.get(process as usize).is_some_and(|p| alive(p) > 1) {
            return self.fault(RefusedCallKind::ExecThreads, libc::EINVAL);
        }
        self.slot.pc.store(self.pc, Relaxed);
        self.unmap_regions(true);
        let (fd, index) = (decimal(self.env.shared.fd), decimal(self.index as i32));
        let argv: [*const c_char; 6] = [
            c"scxlab".as_ptr(),
            CHILD.as_ptr(),
            AFTER_EXEC.as_ptr(),
            fd.as_ptr().cast(),
            index.as_ptr().cast(),
            std::ptr::null(),
        ];
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        // Block the stop signal, which would end the new image if it came before the image has a
        // handler.
        sys::block_stop_signal(true);
        // SAFETY: `argv` is an array of C strings that ends with null.
        unsafe { libc::execve(c"/proc/self/exe".as_ptr(), argv.as_ptr(), environ) };
        let errno = sys::errno();
        sys::block_stop_signal(false);
        self.fault(RefusedCallKind::Exec, errno);
        if let Err(errno) = self.map_regions() {
            self.fault(RefusedCallKind::Region, errno);
        }
    }

    /// Releases the thread's slot, and wakes a parent that waits for its last child. This is the
    /// thread's last access to shared memory.
    pub fn leave(&self) {
        let shared = &self.env.shared;
        let process = shared.processes.get(self.slot.process.load(Relaxed) as usize);
        let mut making = shared.head().making.lock();
        if process.is_some_and(|process| process.alive.load(Relaxed) == 1) {
            // No thread can join the process any more, so the guard need not be held meanwhile.
            drop(making);
            self.unmap_regions(true);
            making = shared.head().making.lock();
        }
        if let Some(process) = process {
            process.alive.fetch_sub(1, Relaxed);
        }
        let mut waiter = None;
        if let Some(parent) = self.slot.parent.load(Relaxed).checked_sub(1) {
            let above = &shared.slots[parent as usize];
            if above.serial.load(Relaxed) == self.slot.parent_serial.load(Relaxed)
                && above.children.fetch_sub(1, Release) == 1
            {
                waiter = Some(&above.children);
            }
        }
        self.slot.state.store(shared::OVER, Release);
        // A parent that is woken while the guard is held would sleep again when it forks.
        drop(making);
        if let Some(children) = waiter {
            sys::futex_wake(children, 1);
        }
    }
}

/// Returns a number as a C string.
fn decimal(number: i32) -> [u8; 16] {
    let mut text = [0; 16];
    // The number has at most 11 characters, so the text has room for it.
    let _ = write!(&mut text[..15], "{number}");
    text
}
