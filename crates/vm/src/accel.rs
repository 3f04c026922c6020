// SPDX-License-Identifier: GPL-2.0-only
//! The engine that runs the guest: the processor itself (KVM), or QEMU's translator (TCG).
//!
//! Owns: the test whether KVM really works. Does not: know QEMU's options for the engines.
//!
//! The presence of `/dev/kvm` says little: it may be closed to this user, or belong to a nested
//! hypervisor that interprets instructions which it cannot run, fails on unknown ones, or never
//! returns. The probe therefore makes QEMU run a few instructions with KVM, under a time limit. The
//! probe uses a process, because a process can be killed, whereas a thread would stay and spin.

use std::fmt;
use std::time::Duration;

use crate::{process, qemu};

/// Time limit of the probe; a working KVM takes a tenth of it, including QEMU's start.
const PATIENCE: Duration = Duration::from_secs(3);
/// Iterations of the probe's loop: some milliseconds on a processor, many seconds if each is
/// interpreted.
const TURNS: u32 = 20_000_000;
/// I/O port through which the probe's firmware ends QEMU; no other device of the probe's machine
/// uses it.
const PORT: u8 = 0xf4;
/// Value that the probe's firmware writes to the I/O port `PORT` at its end; QEMU exits with twice
/// the value plus one.
const ANSWER: u8 = 0x2a;
/// Message of QEMU when KVM fails. QEMU then waits for a debugger instead of exiting, so the probe
/// waits for the message too.
const KVM_GAVE_UP: &str = "KVM internal error";

/// The engine that the caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Accel {
    /// KVM where it works, otherwise TCG.
    #[default]
    Auto,
    /// KVM; an error if it does not work.
    Kvm,
    /// Emulation, all CPUs in turn on one thread.
    Tcg,
    /// Emulation, all CPUs in turn, with a clock that counts executed instructions and jumps ahead
    /// while all CPUs are idle. The guest behaves the same on a busy host as on an idle one.
    TcgCounted,
    /// Emulation with a thread for each CPU. Faster on a host with many CPUs, but a kernel that
    /// changes its own code, as it does when a scheduler is attached, may panic: QEMU drops its
    /// translation of the old bytes before the new ones are in memory, and another CPU may
    /// translate the old ones again in between.
    TcgMulti,
}

/// The engine that runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The processor runs the guest.
    Kvm,
    /// QEMU translates the guest's instructions: correct and slow, and its timings mean little.
    Tcg,
    /// As `Tcg`, with a clock that counts instructions: see [`Accel::TcgCounted`].
    TcgCounted,
    /// As `Tcg`, with a thread for each CPU: see [`Accel::TcgMulti`].
    TcgMulti,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Kvm => "KVM",
            Engine::Tcg => "TCG",
            Engine::TcgCounted => "TCG, counted",
            Engine::TcgMulti => "TCG, threads",
        })
    }
}

/// Tests whether KVM works on this host; returns the reason if it does not.
pub fn probe_kvm() -> Result<(), String> {
    probe_kvm_within(PATIENCE)
}

/// Tests whether KVM works on this host, which may itself be emulated and need more time.
pub fn probe_kvm_within(patience: Duration) -> Result<(), String> {
    std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map_err(|why| format!("/dev/kvm: {why}"))?;
    probe("kvm", "host", patience)
}

/// Runs the probe's firmware under an engine; returns the reason if it does not finish in time.
fn probe(engine: &str, cpu: &str, patience: Duration) -> Result<(), String> {
    let program = qemu::find().ok_or_else(|| format!("there is no {}", qemu::PROGRAM))?;
    let args = |firmware_fd| probe_args(engine, cpu, firmware_fd);
    let ended = process::run_briefly(&program, &firmware(), args, KVM_GAVE_UP, patience);
    match ended.map_err(|why| why.to_string())? {
        (Some(status), _) if status.code() == Some(i32::from(ANSWER) * 2 + 1) => Ok(()),
        (None, said) if said.contains(KVM_GAVE_UP) => {
            Err(format!("it cannot execute some of this processor's instructions: {KVM_GAVE_UP}"))
        }
        (None, _) => Err(format!(
            "a virtual CPU did not execute {} million instructions in {} s",
            2 * TURNS / 1_000_000,
            patience.as_secs()
        )),
        (Some(_), said) => Err(said),
    }
}

/// Returns QEMU's arguments for a machine with only the firmware and a port that makes QEMU exit.
fn probe_args(engine: &str, cpu: &str, firmware_fd: i32) -> Vec<String> {
    let port = format!("isa-debug-exit,iobase={PORT:#x},iosize=1");
    let firmware = format!("/proc/self/fd/{firmware_fd}");
    let args = [
        ["-machine", "pc"],
        ["-accel", engine],
        ["-cpu", cpu],
        ["-m", "16M"],
        ["-bios", &firmware],
        ["-device", &port],
        ["-display", "none"],
    ];
    let flags = ["-nodefaults", "-no-user-config", "-no-reboot"];
    args.concat().iter().chain(&flags).map(|&arg| arg.to_owned()).collect()
}

/// Returns the smallest firmware that QEMU accepts. It ends at 4 GiB, and the CPU starts 16 bytes
/// before the end.
///
/// The code executes an instruction of newer processors, which interpreters of single instructions
/// do not know, and then a loop that an interpreter does not finish in time. It is 32-bit, because
/// the instruction does not exist in real mode.
fn firmware() -> Vec<u8> {
    const BYTES: usize = 64 << 10;
    const HLT: u8 = 0xf4;
    let mut firmware = vec![HLT; BYTES];
    let mut put = |from_end: usize, code: &[u8]| {
        firmware[BYTES - from_end..][..code.len()].copy_from_slice(code);
    };
    // GDT: an empty descriptor, then all 4 GiB as code, marked as accessed because the CPU cannot
    // set that bit in a ROM.
    put(0x100, &[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0x9b, 0xcf, 0]);
    // The GDT's limit (offset of its last byte) and its address.
    put(0xf0, &[0x0f, 0, 0x00, 0xff, 0xff, 0xff]);
    let enter_32_bit = [
        0x2e, 0x66, 0x0f, 0x01, 0x16, 0x10, 0xff, // lgdt cs:[0xff10]
        0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22,
        0xc0, // mov eax, cr0; or al, 1; mov cr0, eax
        0x66, 0xea, 0x40, 0xff, 0xff, 0xff, 0x08, 0x00, // jmp 8:0xffffff40
    ];
    put(0xe0, &enter_32_bit);
    let mut work = Vec::new();
    if has_shlx() {
        work.extend([0xc4, 0xe2, 0x71, 0xf7, 0xc0]); // shlx eax, eax, ecx
    }
    let [a, b, c, d] = TURNS.to_le_bytes();
    work.extend([0xb9, a, b, c, d, 0x49, 0x75, 0xfd]); // mov ecx, TURNS; l: dec ecx; jnz l
    work.extend([0xb0, ANSWER, 0xe6, PORT, HLT]); // mov al, ANSWER; out PORT, al; hlt
    put(0xc0, &work);
    put(0x10, &[0xe9, 0x2d, 0xff]); // jmp 0xff20
    firmware
}

#[cfg(target_arch = "x86_64")]
fn has_shlx() -> bool {
    std::arch::is_x86_feature_detected!("bmi2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_shlx() -> bool {
    false
}

/// Returns the engine for a request, and a note for the user if the engine is emulation because KVM
/// does not work.
pub(crate) fn choose(asked: Accel) -> Result<(Engine, Option<String>), String> {
    match asked {
        Accel::Tcg => Ok((Engine::Tcg, None)),
        Accel::TcgCounted => Ok((Engine::TcgCounted, None)),
        Accel::TcgMulti => Ok((Engine::TcgMulti, None)),
        Accel::Kvm => probe_kvm().map(|()| (Engine::Kvm, None)),
        Accel::Auto => Ok(match probe_kvm() {
            Ok(()) => (Engine::Kvm, None),
            Err(why) => (
                Engine::Tcg,
                Some(format!("KVM does not work here ({why}): emulated, so timings mean little")),
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firmware_does_what_it_should() {
        assert_eq!(probe("tcg", "max", PATIENCE), Ok(()));
    }

    #[test]
    fn what_qemu_says_is_the_reason() {
        let why = probe("tcg", "nonsense", PATIENCE).unwrap_err();
        assert!(why.contains("nonsense"), "{why}");
    }

    #[test]
    fn auto_always_finds_an_engine() {
        assert_eq!(choose(Accel::Tcg), Ok((Engine::Tcg, None)));
        let (engine, note) = choose(Accel::Auto).unwrap();
        assert_eq!(note.is_some(), engine == Engine::Tcg);
        assert_eq!(choose(Accel::Kvm).is_ok(), engine == Engine::Kvm);
    }
}
