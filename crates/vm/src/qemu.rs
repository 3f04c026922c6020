// SPDX-License-Identifier: GPL-2.0-only
//! The command lines of QEMU and of the guest's kernel for a machine.
//!
//! Owns: every option, with its reason. Does not: start anything.

use std::path::{Path, PathBuf};

use crate::accel::Engine;
use crate::member::HostMemory;
use crate::shape::Shape;

pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
pub(crate) const PACKAGE: &str = "qemu-system-x86";
/// Path of the emulator in Red Hat's distributions, where it is not in PATH.
const ELSEWHERE: &str = "/usr/libexec/qemu-kvm";

/// Name of the result port, by which the guest finds it.
pub(crate) const PORT: &str = "scxlab.result";
/// Variable on the kernel's command line by which this executable recognises that it is init.
pub(crate) const MARKER: &str = "SCXLAB_VM";

/// Host memory in MiB that QEMU itself takes besides the guest's: its code, the devices, the
/// translated code.
pub const OWN_MIB: u64 = 384;
/// Part of `OWN_MIB` for translated code; QEMU's default is a gigabyte.
const TRANSLATED_MIB: u64 = 256;

/// Binary logarithm of the time that each instruction takes, in ns, in a guest whose clock counts
/// instructions; 1 stands for 2 ns. By this clock, all CPUs together are as fast as one slow CPU,
/// but faster than translated code on a busy host.
const NS_PER_INSN_LOG2: u32 = 1;

/// The first version of QEMU that gives each busy CPU of a guest whose clock counts instructions
/// the same share of the time.
const FAIR_TURNS: (u32, u32) = (8, 1);

/// Parameters of QEMU's command line.
pub(crate) struct Command<'a> {
    pub shape: &'a Shape,
    pub engine: Engine,
    pub memory_mib: u64,
    pub kernel: &'a Path,
    /// The caller's words for the kernel's command line. They follow our own, because the kernel
    /// uses the last of two settings.
    pub kernel_args: &'a str,
    /// File descriptors that QEMU inherits.
    pub initramfs_fd: i32,
    pub console_fd: i32,
    pub result_fd: i32,
    /// Whether the host's CPU is AMD's or compatible.
    pub amd: bool,
    /// Whether the guest runs guests itself.
    pub nested: bool,
    /// Features of the CPU model, each with the comma before it.
    pub cpu_features: &'a str,
    /// Nodes of the host for the memory of a machine with one node.
    pub host_memory: Option<&'a HostMemory>,
}

/// Returns the path of the emulator, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).map(|dir| dir.join(PROGRAM));
    candidates.chain([PathBuf::from(ELSEWHERE)]).find(|file| file.is_file())
}

/// Returns the names of QEMU's threads for the virtual CPUs.
pub(crate) fn vcpu_threads(engine: Engine, nr_cpus: usize) -> Vec<String> {
    let name = |cpu: usize| match engine {
        Engine::Kvm => format!("CPU {cpu}/KVM"),
        Engine::TcgMulti => format!("CPU {cpu}/TCG"),
        Engine::Tcg | Engine::TcgCounted => "ALL CPUs/TCG".to_owned(),
    };
    (0..nr_cpus).map(name).collect()
}

/// Returns a note for a guest whose clock counts instructions, if this version of QEMU shares the
/// time unfairly among the guest's CPUs. `version` is the output of `--version`.
pub(crate) fn note_on_turns(version: &str, nr_cpus: usize) -> Option<String> {
    let number =
        version.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = number.split('.').map(|part| part.parse::<u32>());
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return None };
    if nr_cpus < 2 || (major, minor) >= FAIR_TURNS {
        return None;
    }
    let (fair_major, fair_minor) = FAIR_TURNS;
    Some(format!(
        "QEMU {major}.{minor} gives counted time to a CPU only while those before it are idle ({fair_major}.{fair_minor} and \
         later share it): put tasks that never sleep on the last CPU"
    ))
}

impl Command<'_> {
    /// Returns all arguments, including the kernel's command line.
    pub fn args(&self) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |name: &str, value: String| {
            args.push(name.to_owned());
            args.push(value);
        };
        // Name the threads, by which those of the virtual CPUs are found.
        add("-name", "scxlab,debug-threads=on".to_owned());
        add("-machine", self.machine());
        add("-accel", self.accel());
        if self.engine == Engine::TcgCounted {
            add("-icount", format!("shift={NS_PER_INSN_LOG2},sleep=off,align=off"));
        }
        add("-cpu", self.cpu() + self.cpu_features);
        add("-smp", self.smp());
        add("-m", format!("{}M", self.memory_mib));
        for (name, value) in self.numa() {
            add(name, value);
        }
        add("-kernel", self.kernel.display().to_string());
        add("-initrd", format!("/proc/self/fd/{}", self.initramfs_fd));
        add("-append", self.append());
        add("-chardev", format!("socket,id=console,fd={}", self.console_fd));
        add("-serial", "chardev:console".to_owned());
        add("-chardev", format!("socket,id=result,fd={}", self.result_fd));
        add("-device", "virtio-serial-pci".to_owned());
        // Avoid `-nographic`, which would make the firmware write to the console.
        add("-display", "none".to_owned());
        add("-device", format!("virtserialport,chardev=result,name={PORT}"));
        // Use no default devices and no user configuration; exit instead of rebooting after a
        // panic.
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            args.push(flag.to_owned());
        }
        args
    }

    fn machine(&self) -> String {
        let memory = if self.host_memory.is_some() { ",memory-backend=ram" } else { "" };
        format!("q35,vmport=off{memory}")
    }

    fn accel(&self) -> String {
        match self.engine {
            Engine::Kvm => "kvm".to_owned(),
            Engine::Tcg | Engine::TcgCounted => {
                format!("tcg,thread=single,tb-size={TRANSLATED_MIB}")
            }
            Engine::TcgMulti => format!("tcg,thread=multi,tb-size={TRANSLATED_MIB}"),
        }
    }

    /// Returns the CPU model. The third-level cache must exist and be shared by a socket, which the
    /// host's own cache description need not say.
    fn cpu(&self) -> String {
        match self.engine {
            Engine::Kvm if self.amd => "host,host-cache-info=off,l3-cache=on,topoext=on".to_owned(),
            Engine::Kvm => "host,host-cache-info=off,l3-cache=on".to_owned(),
            // QEMU emulates AMD's virtualization, and not Intel's. The features of `max` that its
            // guests would see (XSAVE) are not consistent there.
            Engine::Tcg | Engine::TcgCounted | Engine::TcgMulti if self.nested => {
                "qemu64,+svm,+npt,+nrip-save,+x2apic,+rdrand,l3-cache=on".to_owned()
            }
            // The vendor decides how the kernel reads the topology: Intel's leaves allow any number
            // of threads. Five-level page tables would lengthen every page walk.
            Engine::Tcg | Engine::TcgCounted | Engine::TcgMulti => {
                "max,vendor=GenuineIntel,l3-cache=on,la57=off".to_owned()
            }
        }
    }

    fn smp(&self) -> String {
        let Shape { sockets, cores, threads, .. } = self.shape;
        let cpus = self.shape.nr_cpus();
        format!("{cpus},sockets={sockets},cores={cores},threads={threads}")
    }

    /// Returns the options for nodes, each with its CPUs and an equal part of the memory, and for
    /// the distances between them.
    fn numa(&self) -> Vec<(&'static str, String)> {
        let nodes = &self.shape.node_cpus;
        // No options for one node: the kernel assumes one node by default.
        if nodes.len() < 2 {
            let memory = |memory: &HostMemory| {
                let nodes = memory.nodes.iter().map(|node| format!(",host-nodes={node}"));
                let (size, policy) = (self.memory_mib, memory.policy);
                let nodes: String = nodes.collect();
                format!("memory-backend-ram,id=ram,size={size}M,policy={policy}{nodes}")
            };
            return self.host_memory.iter().map(|m| ("-object", memory(m))).collect();
        }
        let mut options = Vec::new();
        let part = self.memory_mib / nodes.len() as u64;
        for (node, &(first, cpus)) in nodes.iter().enumerate() {
            options.push(("-object", format!("memory-backend-ram,id=node{node},size={part}M")));
            let list = match cpus {
                0 => String::new(),
                1 => format!(",cpus={first}"),
                n => format!(",cpus={first}-{}", first + n - 1),
            };
            options.push(("-numa", format!("node,nodeid={node},memdev=node{node}{list}")));
        }
        for (from, row) in self.shape.distances.iter().enumerate() {
            for (to, distance) in row.iter().enumerate().filter(|&(to, _)| to != from) {
                options.push(("-numa", format!("dist,src={from},dst={to},val={distance}")));
            }
        }
        options
    }

    fn append(&self) -> String {
        let mut words = vec![
            format!("{MARKER}=1"),
            // Log warnings and worse during the boot; the guest raises the level when it is up.
            "console=ttyS0 loglevel=5".to_owned(),
            // Reboot at once after a panic, which ends QEMU, with the kernel's log on the console.
            "panic=-1".to_owned(),
            // Disable work that no experiment needs, and that emulation makes slow.
            "mitigations=off audit=0 random.trust_cpu=on".to_owned(),
            // Skip parsing certificates for modules, of which there are none: an eighth of an
            // emulated boot.
            "initcall_blacklist=load_system_certificate_list".to_owned(),
            // Skip the self-tests of the kernel's ciphers: they would still occupy a CPU when the
            // workload runs.
            "cryptomgr.notests".to_owned(),
            // Disable the kernel's detectors of lock-ups: they would report an emulated CPU that
            // the host starves. Our deadline finds real lock-ups.
            "nowatchdog".to_owned(),
        ];
        if self.engine != Engine::Kvm {
            // Disable the kernel's check of the TSC, which is the host's, the same for all CPUs.
            // The check would take QEMU's delays for drift and fall back to a timer that costs an
            // exit per read.
            words.push("tsc=reliable".to_owned());
            // Disable the kernel's check for timer interrupts. They come late on a busy host, and
            // the check would then end in a panic.
            words.push("no_timer_check".to_owned());
            // Disable reports of RCU stalls: the guest's CPUs wait for the host, so a grace period
            // may take long.
            words.push("rcupdate.rcu_cpu_stall_suppress=1".to_owned());
        }
        words.push(self.kernel_args.to_owned());
        words.join(" ").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use scxlab_machine::Topology;
    use scxlab_machine::topology::spec::{Sizes, Spec};

    use super::*;

    fn args(spec: &str, engine: Engine) -> String {
        let layout = Spec::parse(spec).unwrap().layout(Sizes::default()).unwrap();
        let shape = Shape::of(&Topology::build(layout).unwrap()).unwrap();
        let command = Command {
            shape: &shape,
            engine,
            memory_mib: 1000,
            kernel: Path::new("/k"),
            kernel_args: "hz=1",
            initramfs_fd: 5,
            console_fd: 6,
            result_fd: 7,
            amd: false,
            nested: false,
            cpu_features: "",
            host_memory: None,
        };
        command.args().join(" ")
    }

    #[test]
    fn caches_are_sockets() {
        let args = args("2n2l4c2t", Engine::Tcg);
        for part in [
            "-smp 32,sockets=4,cores=4,threads=2 -m 1000M",
            "-object memory-backend-ram,id=node0,size=500M -numa node,nodeid=0,memdev=node0,cpus=0-15",
            "-numa node,nodeid=1,memdev=node1,cpus=16-31",
            "-numa dist,src=0,dst=1,val=20 -numa dist,src=1,dst=0,val=20",
            "-accel tcg,thread=single",
            "-accel tcg,thread=single,tb-size=256 -cpu max",
            "tsc=reliable no_timer_check rcupdate.rcu_cpu_stall_suppress=1 hz=1",
            "-initrd /proc/self/fd/5",
        ] {
            assert!(args.contains(part), "{part} in {args}");
        }
    }

    #[test]
    fn one_node_is_no_numa() {
        let args = args("4c", Engine::Kvm);
        assert!(args.contains("-smp 4,sockets=1,cores=4,threads=1"), "{args}");
        assert!(!args.contains("-numa"), "{args}");
        assert!(!args.contains("tsc="), "{args}");
        assert!(args.contains("-accel kvm -cpu host,host-cache-info=off"), "{args}");
    }

    #[test]
    fn counted_time_takes_one_thread_and_no_sleep() {
        let counted = args("1n2c1t", Engine::TcgCounted);
        assert!(counted.contains("thread=single"), "{counted}");
        assert!(counted.contains("-icount shift=1,sleep=off,align=off -cpu max"), "{counted}");
        assert!(!args("1n2c1t", Engine::Tcg).contains("-icount"));
    }

    #[test]
    fn a_qemu_with_unfair_turns_is_told_of() {
        let debian = |number| {
            format!("QEMU emulator version {number} (Debian 1:7.2+dfsg-7)\nCopyright (c) 2003")
        };
        assert!(note_on_turns(&debian("7.2.22"), 4).is_some_and(|note| note.contains("QEMU 7.2 ")));
        assert_eq!(note_on_turns(&debian("7.2.22"), 1), None);
        for fair in ["8.1.0", "10.0.2", "8.10"] {
            assert_eq!(note_on_turns(&debian(fair), 4), None, "{fair}");
        }
        assert!(note_on_turns(&debian("8.0.5"), 4).is_some());
        assert_eq!(note_on_turns("", 4), None);
    }
}
