// SPDX-License-Identifier: GPL-2.0-only
//! The director: the process that creates the workload's processes, releases them, ends them and
//! collects their results.
//!
//! Owns: the run from the plan (descriptor 0) to the report (descriptor 1). The director has one
//! thread, so it may call `clone` freely. It is the parent of every process of the workload, those
//! of guests included, and they end when it does.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use scxlab_machine::id::Nanos;

use super::burn;
use super::cgroup::Tree;
use super::collect;
use super::error::SetupError;
use super::gate::{self, GateMessage};
use super::guests::Guests;
use super::plan::{NO_PROCESS, Plan, Tables};
use super::region;
use super::report::{Calibration, NativeReport, NativeStop};
use super::sample;
use super::shared::{self, Shared};
use super::sys::{self, SchedAttr};
use super::worker::{self, Env};
use super::{spawn, wire};
use crate::compile::insn::{ObjectKind, WaitObject};
use crate::exec::RegionPages;
use crate::program::Sharing;

/// Interval between two checks for a deadlock.
const LOOK_NS: Nanos = 250_000_000;
/// Interval between two collections of ended processes in a program that forks. The director does
/// not collect at each exit, because waking it would preempt a thread of the workload.
const COLLECT_NS: Nanos = 20_000_000;
/// Interval between two rounds of signals to threads that are to end.
const ROUND_NS: Nanos = 5_000_000;
/// Maximum time to create the threads: `SETUP_NS` plus `SETUP_THREAD_NS` per thread.
const SETUP_NS: Nanos = 60_000_000_000;
const SETUP_THREAD_NS: Nanos = 20_000_000;

/// Signals that end a run from outside.
const ENDS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Signals that do not end a run: a process has ended, or the gate has a message.
const NEWS: [i32; 2] = [libc::SIGCHLD, libc::SIGIO];

/// Returns all signals that the director waits for.
fn signals() -> Vec<i32> {
    ENDS.into_iter().chain(NEWS).collect()
}

/// Runs the plan read from descriptor 0 and writes the report to descriptor 1.
pub fn main() -> i32 {
    let Some(plan) = wire::read_plan() else {
        return 2;
    };
    // The signal ends the director when its parent ends, because the director has no purpose
    // without the parent. The parent may have ended before this call, so compare the parent's pid
    // as well.
    sys::set_parent_death_signal(libc::SIGTERM);
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != plan.parent {
        return 3;
    }
    sys::set_blocked(&signals());
    let report = run(plan);
    if wire::write_report(&report) { 0 } else { 4 }
}

fn run(plan: Plan) -> Result<NativeReport, SetupError> {
    let Ok(tables) = Tables::new(plan) else {
        // `Tables::new` cannot fail here, because the caller has checked the same plan with it.
        return Err(system("the plan", libc::EINVAL, ""));
    };
    let memory = tables.memory();
    match available_memory() {
        Some(available) if memory > available => {
            return Err(SetupError::Memory { wanted: memory, available });
        }
        _ => {}
    }
    raise_file_limit();
    let cpu = tables.plan.cpus.first().copied().unwrap_or(0);
    let calibration = match tables.plan.calibration {
        Some(known) => known,
        None => burn::calibrate(cpu).map_err(|errno| {
            system("calibration", errno, &format!("; CPU {cpu} cannot be used"))
        })?,
    };
    let shared = Shared::create(&tables).map_err(|errno| system("shared memory", errno, ""))?;
    let tree = prepare(&tables, &shared, calibration)?;
    let common = regions_of_all(&tables, &shared)?;
    let env: &'static Env = Box::leak(Box::new(Env { tables, shared }));
    let guests = Guests::default();
    let mut director = Director { env, procs: -1, over: false, guests, notes: Vec::new() };
    director.procs = env.shared.head().base_fd.load(Relaxed);
    let got = director.conduct();
    let mut notes = std::mem::take(&mut director.notes);
    if let Some(mut tree) = tree {
        notes.extend(tree.remove());
    }
    let (stop, ended) = got?;
    notes.extend(region::note(&env.tables));
    let mut report = collect::report(env, calibration, stop, ended, notes);
    report.tasks.extend(director.guests.tasks(&env.tables, report.started_ns));
    let (regions, unknown) = director.guests.regions();
    if unknown > 0 {
        report.notes.push(format!("the pages of the memory of {unknown} guests are unknown"));
    }
    report.regions.extend(regions);
    report.uncounted += unknown;
    for (object, at) in common {
        let name = &env.tables.compiled.objects.names(ObjectKind::Region)[object];
        match region::count_shared(&env.tables.regions[object], at) {
            Ok(pages) => report.regions.push(RegionPages {
                owner: String::new(),
                region: name.clone(),
                pages: region::numbers(&pages),
            }),
            Err(errno) => {
                report.uncounted += 1;
                let why = super::error::text(errno);
                report.notes.push(format!("the pages of region \"{name}\" are unknown: {why}"));
            }
        }
    }
    Ok(report)
}

/// Makes the regions that all processes share. Returns their objects, and their addresses in this
/// process.
fn regions_of_all(tables: &Tables, shared: &Shared) -> Result<Vec<(usize, u64)>, SetupError> {
    let mut made = Vec::new();
    for (object, table) in tables.regions.iter().enumerate() {
        shared.region_fds[object].store(-1, Relaxed);
        if table.of == Sharing::All {
            let (fd, at) = region::make_shared(table)
                .map_err(|errno| system("a region that all processes share", errno, ""))?;
            shared.region_fds[object].store(fd, Relaxed);
            made.push((object, at));
        }
    }
    Ok(made)
}

/// Fills the parts of shared memory that do not depend on threads, and opens the files that the
/// threads inherit.
fn prepare(
    tables: &Tables,
    shared: &Shared,
    calibration: Calibration,
) -> Result<Option<Tree>, SetupError> {
    use std::os::fd::AsRawFd;
    let head = shared.head();
    head.director.store(sys::getpid(), Relaxed);
    head.iterations.store(calibration.iterations.max(1), Relaxed);
    head.iterations_ns.store(calibration.ns.max(1), Relaxed);
    shared.barriers.iter().zip(&tables.barriers).for_each(|(b, n)| b.parties.store(*n, Relaxed));
    let spins = shared.spin_barriers.iter().zip(&tables.spin_barriers);
    spins.for_each(|(b, n)| b.parties.store(*n, Relaxed));
    let mutexes = shared.mutexes.iter().zip(&tables.barging);
    mutexes.for_each(|(mutex, barging)| mutex.set_barging(*barging));
    let sems = shared.sems.iter().zip(&tables.sems);
    sems.for_each(|(s, n)| s.value.store((*n).into(), Relaxed));
    shared.pipes.iter().zip(&tables.pipes).try_for_each(|(pipe, table)| pipe.open(table))?;
    // SAFETY: a C string; the descriptor stays open for the run.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY) };
    head.null_fd.store(null, Relaxed);
    head.base_fd.store(-1, Relaxed);
    if tables.max_accesses > 0 {
        burn::time_accesses(&head.random_ps, &head.sequential_ps)
            .map_err(|errno| system("calibration of memory", errno, ""))?;
    }
    shared.cgroup_fds.iter().for_each(|fd| fd.store(-1, Relaxed));
    let Some(place) = &tables.plan.cgroups else {
        return Ok(None);
    };
    let defs = &tables.compiled.cgroups;
    let mut controllers = vec!["cpu"];
    if defs.iter().any(|d| d.cpus.is_some() || d.mems.is_some()) {
        controllers.push("cpuset");
    }
    let tree = Tree::create(place, defs, &controllers)?;
    let fds = tree.threads.iter().map(AsRawFd::as_raw_fd);
    shared.cgroup_fds.iter().zip(fds).for_each(|(to, fd)| to.store(fd, Relaxed));
    head.base_fd.store(tree.procs.as_ref().map_or(-1, AsRawFd::as_raw_fd), Relaxed);
    Ok(Some(tree))
}

struct Director {
    env: &'static Env,
    /// Descriptor of `cgroup.procs` of the program's root; -1 without cgroups.
    procs: i32,
    /// Whether every process of the program's threads has been collected.
    over: bool,
    guests: Guests,
    notes: Vec<String>,
}

impl Director {
    /// Runs the workload from the making of its first process to the end of its last. Returns why
    /// the run ended, and when.
    fn conduct(&mut self) -> Result<(NativeStop, Nanos), SetupError> {
        if !spawn::set_env(self.env) {
            return Err(system("a second run in one process", libc::EBUSY, ""));
        }
        spawn::fill_start(self.env);
        let made = self.start_guests().and_then(|()| self.make_processes());
        let made = made.and_then(|()| self.wait_ready()).and_then(|()| self.wait_begin());
        if let Err(error) = made {
            self.end();
            self.guests.kill();
            return Err(error);
        }
        self.release();
        let stop = self.watch();
        let head = self.env.shared.head();
        let started = head.started.load(Relaxed);
        if stop == NativeStop::AllExited {
            let slots = self.env.shared.slots.iter();
            let last = slots.map(|s| s.ended.load(Relaxed)).max().unwrap_or(0);
            let last = started.saturating_add(last);
            return Ok((stop, self.guests.last_end().map_or(last, |end| end.max(last))));
        }
        let ended = sys::now();
        self.end();
        if stop == NativeStop::Duration {
            self.wait_guests();
        }
        self.guests.kill();
        Ok((stop, ended))
    }

    fn start_guests(&mut self) -> Result<(), SetupError> {
        if let Some(fd) = self.env.tables.plan.gate_fd {
            gate::listen(fd).map_err(|errno| system("the gate", errno, ""))?;
        }
        self.guests = Guests::start(&self.env.tables)?;
        Ok(())
    }

    /// Waits until the caller opens the gate, and puts the threads of guests into their places.
    fn wait_begin(&mut self) -> Result<(), SetupError> {
        let Some(gate) = self.env.tables.plan.gate_fd else { return Ok(()) };
        gate::tell_prepared(gate);
        loop {
            match gate::receive(gate) {
                GateMessage::Begin => break,
                GateMessage::Closed => return Err(SetupError::GivenUp),
                GateMessage::Nothing | GateMessage::Ended(_) => {}
            }
            if let Some(how) = self.reap().into_iter().next() {
                return Err(SetupError::Died { how });
            }
            if let Some(signal) = wait_signal(LOOK_NS).filter(|s| !NEWS.contains(s)) {
                return Err(SetupError::Interrupted(signal));
            }
        }
        self.guests.place(&self.env.tables, &self.env.shared, self.procs)
    }

    /// Takes the caller's messages about guests that have ended. Returns false if the caller has
    /// closed the gate.
    fn hear(&mut self) -> bool {
        let Some(gate) = self.env.tables.plan.gate_fd else { return false };
        loop {
            match gate::receive(gate) {
                GateMessage::Ended(guest) => self.guests.end(guest),
                GateMessage::Begin => {}
                GateMessage::Nothing => return true,
                GateMessage::Closed => return false,
            }
        }
    }

    /// Waits after the duration until the caller has the results of all guests, or gives up.
    fn wait_guests(&mut self) {
        while !self.guests.are_over() && self.hear() {
            let died = self.guests.reap();
            self.notes.extend(died);
            if wait_signal(LOOK_NS).is_some_and(|s| !NEWS.contains(&s)) {
                return;
            }
        }
    }

    /// Makes one process for each process name, and one for each thread without a process name. The
    /// first thread of a process is its leader.
    fn make_processes(&mut self) -> Result<(), SetupError> {
        let start = &self.env.tables.start;
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); self.env.tables.nr_processes as usize];
        for (index, s) in start.iter().enumerate() {
            if let Some(list) = members.get_mut(s.process as usize) {
                list.push(index as u32);
            }
        }
        for (index, s) in start.iter().enumerate() {
            let index = index as u32;
            let all = match members.get(s.process as usize) {
                Some(list) if s.process != NO_PROCESS => &list[..],
                _ => &[index],
            };
            if all.first() != Some(&index) {
                continue;
            }
            // SAFETY: this process has one thread, so the child may do anything; it does not
            // return.
            match unsafe { sys::clone_process(false) } {
                Ok(0) => self.leader(all),
                Ok(_) => {}
                Err(errno) => {
                    let advice = super::error::advice(super::error::RefusedCallKind::Fork, errno);
                    return Err(system("a process of the workload", errno, &advice));
                }
            }
        }
        Ok(())
    }

    /// Runs the first thread of a new process.
    fn leader(&self, members: &[u32]) -> ! {
        let head = self.env.shared.head();
        spawn::enter_process(self.env);
        if self.procs >= 0
            && let Err(errno) = sys::write(self.procs, b"0")
        {
            self.fail(members[0], super::error::RefusedCallKind::Cgroup, errno);
        }
        for &index in &members[1..] {
            if let Err(errno) = spawn::make_thread(index, false) {
                self.fail(index, super::error::RefusedCallKind::Fork, errno);
                head.ready.fetch_add(1, Release);
            }
        }
        worker::run_from_start(self.env, members[0]);
        sys::exit_thread()
    }

    fn fail(&self, index: u32, what: super::error::RefusedCallKind, errno: i32) {
        let shared = &self.env.shared;
        shared.fault(&shared.slots[index as usize], 0, what, u32::MAX, errno);
        shared.head().failed.store(index + 1, Release);
    }

    fn wait_ready(&mut self) -> Result<(), SetupError> {
        let head = self.env.shared.head();
        let total = self.env.tables.start.len() as u32;
        let length = SETUP_NS.saturating_add(SETUP_THREAD_NS.saturating_mul(total.into()));
        let deadline = sys::now().saturating_add(length);
        loop {
            if head.failed.load(Acquire) != 0 {
                let error = collect::first_fault(self.env);
                return Err(error.map_or(system("a thread", 0, ""), SetupError::Op));
            }
            let ready = head.ready.load(Acquire);
            if ready >= total {
                let slow =
                    |ready| SetupError::Slow { ready, total, seconds: length / 1_000_000_000 };
                return self.wait_asleep(deadline, slow);
            }
            if let Some(how) = self.reap().into_iter().next() {
                return Err(SetupError::Died { how });
            }
            if let Some(signal) = wait_signal(0).filter(|s| !NEWS.contains(s)) {
                return Err(SetupError::Interrupted(signal));
            }
            if sys::now() > deadline {
                let seconds = length / 1_000_000_000;
                return Err(SetupError::Slow { ready, total, seconds });
            }
            sys::futex_wait(&head.ready, ready, Some(50_000_000));
        }
    }

    /// Waits until every thread sleeps, waiting for the start of the run. Records the kernel's
    /// counts for each thread at that time, which the report subtracts from the counts at the end.
    /// Returns `slow` of the number of threads that sleep if `deadline` passes first.
    fn wait_asleep(
        &mut self,
        deadline: Nanos,
        slow: impl Fn(u32) -> SetupError,
    ) -> Result<(), SetupError> {
        for (asleep, slot) in
            self.env.shared.slots[..self.env.tables.start.len()].iter().enumerate()
        {
            let (tgid, tid) = (slot.tgid.load(Relaxed), slot.tid.load(Relaxed));
            let mut sleeps = sample::sleeps(tgid, tid);
            while !sleeps && sys::now() < deadline {
                sys::sleep_until(sys::now().saturating_add(200_000));
                sleeps = sample::sleeps(tgid, tid);
            }
            if !sample::other(tgid, tid, &slot.before) {
                return Err(SetupError::Died { how: format!("thread {tid} is gone") });
            }
            if !sleeps {
                return Err(slow(asleep as u32));
            }
        }
        Ok(())
    }

    fn release(&self) {
        // Real-time priority makes the end of the run punctual, whatever the threads' policies.
        // Without the rights for such a priority, the director keeps its own policy.
        let _ = sys::sched_setattr(SchedAttr {
            policy: libc::SCHED_FIFO as u32,
            priority: 99,
            flags: sys::SCHED_FLAG_RESET_ON_FORK,
            ..SchedAttr::default()
        });
        let head = self.env.shared.head();
        let now = sys::now();
        head.started.store(now, Relaxed);
        if let Some(fd) = self.env.tables.plan.start_fd {
            let duration = self.env.tables.plan.duration;
            super::start::tell(fd, now, duration.map_or(u64::MAX, |d| now.saturating_add(d)));
        }
        self.guests.release(&self.env.tables);
        head.go.store(1, Release);
        sys::futex_wake(&head.go, i32::MAX);
    }

    /// Waits until the run ends.
    fn watch(&mut self) -> NativeStop {
        let started = self.env.shared.head().started.load(Relaxed);
        let deadline = self.env.tables.plan.duration.map(|d| started.saturating_add(d));
        let forks = self.env.tables.forks();
        let (mut waits, mut looked) = (Vec::new(), sys::now());
        loop {
            let now = sys::now();
            let length = match deadline {
                Some(at) if now >= at => return NativeStop::Duration,
                Some(at) => at - now,
                None => LOOK_NS,
            };
            let got = match forks {
                true => wait_signal_of(&ENDS, length.min(COLLECT_NS)),
                false => wait_signal(length),
            };
            if let Some(signal) = got.filter(|s| !NEWS.contains(s)) {
                return NativeStop::Interrupted(signal);
            }
            let died = self.reap();
            self.notes.extend(died);
            let is_open = self.hear();
            if self.over && self.guests.are_over() {
                return NativeStop::AllExited;
            }
            if !is_open && !self.guests.are_over() {
                return NativeStop::Interrupted(0);
            }
            if deadline.is_none() && sys::now() >= looked.saturating_add(LOOK_NS) {
                looked = sys::now();
                let before = std::mem::replace(&mut waits, self.waiting());
                if !waits.is_empty() && before == waits {
                    return NativeStop::Deadlock(collect::waits(self.env));
                }
            }
        }
    }

    /// Returns the slot and the number of waits of every living thread, if each of them sleeps and
    /// waits for another thread; otherwise an empty list. If two calls return the same list, and it
    /// is not empty, no thread has done anything in between, and none will: a deadlock.
    fn waiting(&self) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        let used = self.env.shared.head().nr_slots.load(Acquire);
        for (index, slot) in self.env.shared.slots[..used as usize].iter().enumerate() {
            match slot.state.load(Acquire) {
                shared::OVER | shared::FREE => continue,
                _ => {}
            }
            if slot.waits.load(Acquire) == WaitObject::Nothing as u32 {
                return Vec::new();
            }
            if !sample::sleeps(slot.tgid.load(Relaxed), slot.tid.load(Relaxed)) {
                return Vec::new();
            }
            all.push((index as u32, slot.nr_waits.load(Relaxed)));
        }
        all
    }

    /// Collects processes that have ended. Returns a message for each that ended by a signal or an
    /// error.
    fn reap(&mut self) -> Vec<String> {
        let mut died = self.guests.reap();
        loop {
            let mut status = 0;
            // Only the processes of threads are in the director's process group.
            // SAFETY: `status` is valid to write to.
            let pid = unsafe { libc::waitpid(0, &mut status, libc::WNOHANG) };
            match pid {
                0 => return died,
                pid if pid < 0 => {
                    self.over = sys::errno() == libc::ECHILD;
                    return died;
                }
                pid => died.extend(self.collected(pid, status)),
            }
        }
    }

    fn collected(&self, pid: i32, status: i32) -> Option<String> {
        if status == 0 {
            // The process ended as usual, so its threads have completed their records in
            // `Shared::slots`.
            return None;
        }
        let signal = if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 };
        let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 0 };
        let shared = &self.env.shared;
        let started = shared.head().started.load(Relaxed);
        let mut names = Vec::new();
        for slot in shared.slots.iter().filter(|s| s.tgid.load(Relaxed) == pid) {
            let state = slot.state.load(Acquire);
            if state == shared::OVER || state == shared::FREE {
                continue;
            }
            names.push(slot.who.name(&self.env.tables));
            slot.end.store(collect::KILLED + signal.unsigned_abs(), Relaxed);
            slot.ended.store(sys::now().saturating_sub(started), Relaxed);
            slot.state.store(shared::OVER, Release);
        }
        match (names.is_empty(), signal, code) {
            (true, 0, 0) => None,
            (_, 0, code) => {
                Some(format!("process {pid} ({}) exited with code {code}", names.join(", ")))
            }
            (_, signal, _) => {
                Some(format!("process {pid} ({}) was ended by signal {signal}", names.join(", ")))
            }
        }
    }

    /// Tells every thread to end, waits for the grace time, and kills the threads that still live.
    fn end(&mut self) {
        let shared = &self.env.shared;
        let head = shared.head();
        head.stop.store(1, Release);
        sys::futex_wake(&head.go, i32::MAX);
        let deadline = sys::now().saturating_add(self.env.tables.plan.grace);
        while !self.over && sys::now() < deadline {
            self.each_living(|tgid, tid, _| sys::kill_thread(tgid, tid, sys::STOP_SIGNAL));
            wait_signal(ROUND_NS);
            let died = self.reap();
            self.notes.extend(died);
        }
        if self.over {
            return;
        }
        let mut killed = 0;
        self.each_living(|tgid, tid, slot| {
            sample::other(tgid, tid, &slot.after);
            killed += 1;
        });
        if killed > 0 {
            self.notes.push(format!("{killed} threads did not end within the grace time"));
        }
        while !self.over {
            self.each_living(|tgid, _, _| {
                // SAFETY: no pointers. A pid stays valid until the process is collected.
                unsafe { libc::kill(tgid, libc::SIGKILL) };
            });
            wait_signal(ROUND_NS);
            self.reap();
        }
    }

    fn each_living(&self, mut f: impl FnMut(i32, i32, &shared::Slot)) {
        for slot in self.env.shared.slots {
            let state = slot.state.load(Acquire);
            let (tgid, tid) = (slot.tgid.load(Relaxed), slot.tid.load(Relaxed));
            if state == shared::ALIVE && tgid > 0 {
                f(tgid, tid, slot);
            }
        }
    }
}

/// Returns the next signal for the director, or None if no signal arrives within `length`.
fn wait_signal(length: Nanos) -> Option<i32> {
    wait_signal_of(&signals(), length)
}

fn wait_signal_of(which: &[i32], length: Nanos) -> Option<i32> {
    let set = sys::signals(which);
    let secs = libc::time_t::try_from(length / 1_000_000_000).unwrap_or(libc::time_t::MAX);
    let length = libc::timespec { tv_sec: secs, tv_nsec: (length % 1_000_000_000) as libc::c_long };
    // SAFETY: a valid set and time; the signal's details are not wanted.
    let got = unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &length) };
    (got > 0).then_some(got)
}

/// Raises the limit of open files to the hard limit, because each pipe takes two descriptors.
fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to read and to write. A failure leaves the limit unchanged.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

fn system(what: &str, errno: i32, advice: &str) -> SetupError {
    SetupError::System { what: what.to_owned(), errno, advice: advice.to_owned() }
}
