// SPDX-License-Identifier: GPL-2.0-only
//! The processes of guests as members of a run: the director starts them, puts their threads where
//! the program wants the virtual CPUs, and kills them.
//!
//! Owns: these processes, from their start to the collection of their counts. Does not: know a
//! hypervisor's options, or talk to a guest; the caller does both (see `gate.rs`).

use std::fs;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::collect;
use super::error::SetupError;
use super::plan::Tables;
use super::report::{NativeTask, TaskEnd};
use super::sample;
use super::shared::{Counts, Shared};
use super::sys::{self, Errno};
use crate::exec::{LoopTotals, RegionPages};
use crate::program::GuestDef;
use crate::timers::TimerTotals;

/// The process of one guest, which runs its virtual CPUs (vCPUs) as threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestProcess {
    /// Path of the executable.
    pub program: String,
    pub args: Vec<String>,
    /// Descriptors of the caller that the process inherits under the same numbers. They must be
    /// open across `execve`.
    pub fds: Vec<RawFd>,
    /// Descriptor of the caller for the process's standard error.
    pub stderr: RawFd,
    /// Descriptor of the caller to which the director writes `go` when it releases all threads.
    pub go_fd: RawFd,
    /// Message by which the guest knows that it must begin.
    pub go: Vec<u8>,
    /// Whether the kernel may use huge pages for the process's memory.
    pub huge_pages: bool,
    /// Names by which the kernel knows the threads of the vCPUs, by vCPU.
    pub vcpu_threads: Vec<String>,
    /// Size in bytes of the process's mapping that is the guest's memory, if its pages are to be
    /// counted.
    pub memory_bytes: Option<u64>,
}

/// The processes of all guests, in the order of `Program::guest_instances`.
#[derive(Default)]
pub struct Guests(Vec<Member>);

struct Member {
    name: String,
    pid: i32,
    /// Time of the guest's end, as the caller has reported it, or of its process's death.
    ended: Option<Nanos>,
    is_collected: bool,
    threads: Vec<Thread>,
    memory_bytes: Option<u64>,
    /// Pages of the guest's memory on each node at the guest's end; None if they are unknown.
    pages: Option<Vec<u64>>,
}

struct Thread {
    tid: i32,
    /// Name in results.
    name: String,
    /// Name by which the kernel knows the thread.
    comm: String,
    cgroup: Option<usize>,
    nice: i8,
    before: Counts,
    after: Counts,
}

impl Guests {
    /// Starts the processes. Closes this process's copies of their descriptors, so that the streams
    /// end with them.
    pub fn start(tables: &Tables) -> Result<Guests, SetupError> {
        let mut guests = Guests::default();
        let names = tables.plan.program.guest_instances();
        for (process, (def, instance)) in tables.plan.guests.iter().zip(names) {
            let name = def.instance_name(instance);
            match spawn(process) {
                Ok(pid) => guests.0.push(Member {
                    name,
                    pid,
                    ended: None,
                    is_collected: false,
                    threads: Vec::new(),
                    memory_bytes: process.memory_bytes,
                    pages: None,
                }),
                Err(why) => {
                    guests.kill();
                    let problem = format!("{}: {why}", process.program);
                    return Err(SetupError::Guest { guest: name, problem });
                }
            }
        }
        for process in &tables.plan.guests {
            for fd in process.fds.iter().chain([&process.stderr]) {
                // SAFETY: the caller gave the descriptor to this run, and nothing uses it any more.
                unsafe { libc::close(*fd) };
            }
        }
        Ok(guests)
    }

    /// Puts each process into the program's cgroups, and the threads of its vCPUs where the program
    /// wants them. Records the kernel's counts for each thread.
    pub fn place(
        &mut self,
        tables: &Tables,
        shared: &Shared,
        procs: RawFd,
    ) -> Result<(), SetupError> {
        let defs = tables.plan.program.guest_instances();
        let processes = self.0.iter_mut().zip(&tables.plan.guests).zip(defs);
        for ((member, process), (def, instance)) in processes {
            let failed = |problem| SetupError::Guest { guest: member.name.clone(), problem };
            if procs >= 0 {
                sys::write(procs, member.pid.to_string().as_bytes())
                    .map_err(|errno| failed(refused("its cgroup", errno)))?;
            }
            let mut threads = threads_of(member.pid).map_err(|why| failed(why.to_string()))?;
            for (vcpu, wanted) in process.vcpu_threads.iter().enumerate() {
                if !threads.iter().any(|(_, comm)| comm == wanted) {
                    return Err(failed(format!("there is no thread \"{wanted}\" of vCPU {vcpu}")));
                }
            }
            // The vCPUs come first, in their order.
            let order = |comm: &String| process.vcpu_threads.iter().position(|name| name == comm);
            threads.sort_by_key(|(tid, comm)| (order(comm).unwrap_or(usize::MAX), *tid));
            for (tid, comm) in threads {
                let vcpu = order(&comm).and_then(|vcpu| u32::try_from(vcpu).ok());
                let thread =
                    Thread::place(tables, shared, (def, instance), vcpu, (member.pid, tid), comm);
                member.threads.push(thread.map_err(failed)?);
            }
        }
        Ok(())
    }

    /// Tells all guests to begin.
    pub fn release(&self, tables: &Tables) {
        for process in &tables.plan.guests {
            // A guest that does not get the message reports nothing, which the caller notices.
            let _ = sys::write(process.go_fd, &process.go);
        }
    }

    /// Ends a guest whose result the caller has.
    pub fn end(&mut self, guest: usize) {
        if let Some(member) = self.0.get_mut(guest) {
            member.end();
        }
    }

    /// Collects processes that ended by themselves, and returns a message for each.
    pub fn reap(&mut self) -> Vec<String> {
        self.0.iter_mut().filter_map(Member::reap).collect()
    }

    /// Whether every process has ended.
    pub fn are_over(&self) -> bool {
        self.0.iter().all(|member| member.is_collected)
    }

    /// Returns the time at which the last guest ended.
    pub fn last_end(&self) -> Option<Nanos> {
        self.0.iter().filter_map(|member| member.ended).max()
    }

    /// Returns where the pages of each guest's memory lay, and the number of guests of which this
    /// is unknown.
    pub fn regions(&self) -> (Vec<RegionPages>, u64) {
        let with_memory = || self.0.iter().filter(|member| member.memory_bytes.is_some());
        let region = |member: &Member| {
            let (owner, region) = (member.name.clone(), "memory".to_owned());
            Some(RegionPages { owner, region, pages: member.pages.clone()? })
        };
        let known: Vec<RegionPages> = with_memory().filter_map(region).collect();
        let unknown = (with_memory().count() - known.len()) as u64;
        (known, unknown)
    }

    /// Kills the processes that still live.
    pub fn kill(&mut self) {
        self.0.iter_mut().for_each(Member::end);
    }

    /// Returns the results of the threads, those of each guest's vCPUs first.
    pub fn tasks(&self, tables: &Tables, started: Nanos) -> Vec<NativeTask> {
        self.0.iter().flat_map(|member| member.tasks(tables, started)).collect()
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Member {
    fn end(&mut self) {
        if self.is_collected {
            return;
        }
        self.count();
        self.ended.get_or_insert_with(sys::now);
        // SAFETY: no pointers. The pid is valid, because the process is not collected yet.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
        self.is_collected = true;
    }

    fn reap(&mut self) -> Option<String> {
        let mut status = 0;
        // SAFETY: `status` is valid to write to.
        let got = unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) };
        if self.is_collected || got != self.pid {
            return None;
        }
        self.is_collected = true;
        self.ended.get_or_insert_with(sys::now);
        let how = match libc::WIFSIGNALED(status) {
            true => format!("was ended by signal {}", libc::WTERMSIG(status)),
            false => format!("exited with code {}", libc::WEXITSTATUS(status)),
        };
        Some(format!("process {} (guest {}) {how}", self.pid, self.name))
    }

    /// Records the counts of the threads and the pages of the memory, while the process exists.
    fn count(&mut self) {
        for thread in &self.threads {
            sample::other(self.pid, thread.tid, &thread.after);
        }
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", self.pid)).ok();
        self.pages = self.memory_bytes.and_then(|bytes| {
            let start = mapping_of_size(&read("maps")?, bytes)?;
            pages_of_mapping(&read("numa_maps")?, start)
        });
    }

    fn tasks(&self, tables: &Tables, started: Nanos) -> Vec<NativeTask> {
        let ended_ns = self.ended.unwrap_or(started).saturating_sub(started);
        let task = |(instance, thread): (u32, &Thread)| {
            let counts = collect::counts_since(&thread.before, &thread.after);
            let cgroup = thread.cgroup.map(|at| tables.compiled.cgroups[at].path.clone());
            NativeTask {
                name: thread.name.clone(),
                comm: Some(thread.comm.clone()),
                tid: thread.tid,
                tgid: self.pid,
                nice: thread.nice,
                cgroup: cgroup.unwrap_or_else(|| "/".to_owned()),
                template: u32::MAX,
                instance,
                forked: false,
                end: TaskEnd::Stopped,
                began_ns: 0,
                ended_ns,
                run_ns: counts.run,
                wait_ns: counts.wait,
                switches_voluntary: counts.voluntary,
                switches_involuntary: counts.involuntary,
                migrations: counts.migrations,
                work_units: 0,
                phases: LoopTotals::default(),
                timers: TimerTotals::default(),
            }
        };
        (0..).zip(&self.threads).map(task).collect()
    }
}

impl Thread {
    /// Puts a thread of a guest into its cgroup. The thread of a vCPU also gets its CPUs and its
    /// nice value.
    fn place(
        tables: &Tables,
        shared: &Shared,
        (def, instance): (&GuestDef, u32),
        vcpu: Option<u32>,
        (pid, tid): (i32, i32),
        comm: String,
    ) -> Result<Thread, String> {
        let name = def.instance_name(instance);
        let (name, path) = match vcpu {
            Some(vcpu) => (format!("{name}-vcpu{vcpu}"), def.vcpu_cgroup(instance, vcpu)),
            None => (format!("{name}-{comm}"), def.instance_cgroup(instance)),
        };
        let cgroup = path.and_then(|path| {
            let path = path.trim_end_matches('/');
            tables.compiled.cgroups.iter().position(|group| group.path == path)
        });
        if let Some(at) = cgroup {
            let fd = shared.cgroup_fds[at + 1].load(std::sync::atomic::Ordering::Relaxed);
            sys::write(fd, tid.to_string().as_bytes())
                .map_err(|errno| refused(&format!("the cgroup of {name}"), errno))?;
        }
        let plan = &tables.plan;
        let pinned = vcpu.filter(|_| def.pin).map(|vcpu| {
            let all = def.cpus.as_ref().map_or(plan.cpus.clone(), |list| list.iter().collect());
            let nth = u64::from(instance) * u64::from(def.vcpus) + u64::from(vcpu);
            sys::mask_of(all.get((nth % all.len().max(1) as u64) as usize).copied().into_iter())
        });
        let listed = vcpu.and(def.cpus.as_ref()).map(|list| sys::mask_of(list.iter()));
        let restricted = plan.restrict.then(|| tables.all_cpus.clone());
        if let Some(mask) = pinned.or(listed).or(restricted) {
            sys::set_affinity_of(tid, &mask)
                .map_err(|errno| refused(&format!("the CPUs of {name}"), errno))?;
        }
        let nice = if vcpu.is_some() { def.nice } else { 0 };
        if nice != 0 {
            sys::set_nice_of(tid, nice)
                .map_err(|errno| refused(&format!("nice {nice} of {name}"), errno))?;
        }
        let thread = Thread {
            tid,
            name,
            comm,
            cgroup,
            nice,
            before: Counts::default(),
            after: Counts::default(),
        };
        sample::other(pid, tid, &thread.before);
        Ok(thread)
    }
}

fn refused(what: &str, errno: Errno) -> String {
    format!("{what}: {}", super::error::text(errno))
}

/// Starts a process in a group of its own, so that Ctrl-C reaches only the director, and so that
/// the director can tell it from the processes of the program.
fn spawn(process: &GuestProcess) -> std::io::Result<i32> {
    let director = sys::getpid();
    let (huge_pages, fds) = (process.huge_pages, process.fds.clone());
    // SAFETY: the caller opened the descriptor for this run; it is open until `start` closes it.
    let stderr = unsafe { BorrowedFd::borrow_raw(process.stderr) };
    let mut command = Command::new(&process.program);
    command.args(&process.args).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(stderr.try_clone_to_owned()?);
    let prepare = move || {
        sys::set_parent_death_signal(libc::SIGKILL);
        // SAFETY: takes numbers.
        unsafe {
            if libc::getppid() != director {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            if !huge_pages && libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        sys::set_blocked(&[]);
        // The director's other descriptors, such as those of the other guests, are none of this
        // process's business: a stream must end with the process that it belongs to.
        sys::inherit_only(&fds).map_err(std::io::Error::from_raw_os_error)
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn()?;
    Ok(child.id() as i32)
}

/// Returns the address of the anonymous mapping of this size, from the text of `/proc/PID/maps`.
fn mapping_of_size(maps: &str, bytes: u64) -> Option<u64> {
    let mut found = maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (address(start)?, address(end)?);
        let inode = words.nth(3)?;
        (end - start == bytes && inode == "0").then_some(start)
    });
    found.next()
}

/// Returns the number of 4 KiB pages of the mapping on each node, from the text of
/// `/proc/PID/numa_maps`.
fn pages_of_mapping(numa_maps: &str, start: u64) -> Option<Vec<u64>> {
    let line =
        numa_maps.lines().find(|line| line.split(' ').next().and_then(address) == Some(start))?;
    let (mut pages, mut page_kib) = (Vec::new(), 4);
    for word in line.split_whitespace() {
        let Some((key, value)) = word.split_once('=') else { continue };
        if key == "kernelpagesize_kB" {
            page_kib = value.parse().ok()?;
        } else if let Some(node) = key.strip_prefix('N').and_then(|n| n.parse::<usize>().ok()) {
            if pages.len() <= node {
                pages.resize(node + 1, 0);
            }
            pages[node] = value.parse().ok()?;
        }
    }
    Some(pages.into_iter().map(|count: u64| count * page_kib / 4).collect())
}

fn address(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex, 16).ok()
}

/// Returns the threads of a process and their names.
fn threads_of(pid: i32) -> std::io::Result<Vec<(i32, String)>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let tid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // A thread without a name has ended meanwhile.
        let comm = fs::read_to_string(entry.path().join("comm"));
        if let (Some(tid), Ok(comm)) = (tid, comm) {
            threads.push((tid, comm.trim_end().to_owned()));
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_guest_is_found_by_its_size() {
        let maps = "00400000-00600000 r-xp 00000000 fe:00 1234  /usr/bin/qemu-system-x86_64\n\
                    7f00-8f00 rw-p 00000000 00:00 0 \n7ff000200000-7ff000400000 rw-p 0 00:00 0 \n";
        assert_eq!(mapping_of_size(maps, 2 << 20), Some(0x7ff0_0020_0000));
        assert_eq!(mapping_of_size(maps, 4 << 20), None);
        let numa = "00400000 default file=/usr/bin/x mapped=7 N0=7 kernelpagesize_kB=4\n\
                    7ff000200000 bind:1 anon=12 dirty=12 active=0 N0=2 N2=10 kernelpagesize_kB=4\n\
                    7ff000400000 default huge anon=3 N1=3 kernelpagesize_kB=2048\n";
        assert_eq!(pages_of_mapping(numa, 0x7ff0_0020_0000), Some(vec![2, 0, 10]));
        assert_eq!(pages_of_mapping(numa, 0x7ff0_0040_0000), Some(vec![0, 1536]));
        assert_eq!(pages_of_mapping(numa, 0x7000), None);
    }
}
