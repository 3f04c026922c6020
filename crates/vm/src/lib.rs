// SPDX-License-Identifier: GPL-2.0-only
//! Boots a real kernel in a virtual machine with a machine's topology and this executable as init,
//! and returns the bytes that the guest sends back.
//!
//! Owns: QEMU, the initramfs, the result channel, and the kernel that `scxlab vm setup` prepares.
//! Does not: know schedulers, or load BPF; the caller defines what runs in the guest. Start at
//! [`boot()`] and [`guest`].
//!
//! ```no_run
//! use scxlab_vm::{VmSpec, boot, guest};
//!
//! # fn topology() -> scxlab_machine::Topology { panic!() }
//! if guest::is_init() {
//!     let guest = guest::enter();
//!     let answer = guest.args().join(" ");
//!     guest.finish(answer.as_bytes());
//! }
//! let topology = topology();
//! let mut spec = VmSpec::new(&topology, "vmlinux".as_ref());
//! spec.init_args = vec!["hello".to_owned()];
//! let outcome = boot(&spec).unwrap();
//! assert_eq!(outcome.output, b"hello");
//! ```

mod accel;
mod boot;
mod closure;
mod cpio;
mod elf;
mod error;
pub mod guest;
pub mod image;
mod initramfs;
mod ldcache;
mod member;
mod nested;
mod process;
mod protocol;
mod qemu;
pub mod setup;
mod shape;

pub use accel::{Accel, Engine, probe_kvm, probe_kvm_within};
pub use boot::{
    BootOutcome, GuestFile, Need, VmSpec, boot, check_host_memory, find_qemu, usual_memory_mib,
};
pub use closure::ClosureError;
pub use elf::ElfError;
pub use error::{Console, VmError, VmFault};
pub use initramfs::Initramfs;
pub use member::{
    HostMemory, Member, MemberMessage, MemberProcess, RunningMember, build_initramfs,
};
pub use nested::nested_files;
pub use qemu::OWN_MIB as QEMU_MIB;
pub use shape::ShapeError;

/// Returns whether a guest of that machine numbers its CPUs as the machine does. False also if QEMU
/// cannot have such a machine.
pub fn numbers_cpus_alike(topology: &scxlab_machine::Topology) -> bool {
    let shape = shape::Shape::of(topology);
    shape.is_ok_and(|s| s.guest_cpus.iter().enumerate().all(|(ours, guest)| ours as u32 == *guest))
}
