// SPDX-License-Identifier: GPL-2.0-only
//! Our interpreter compared with the interpreter of the crate `rbpf`, on the same bytecode.
//!
//! Both run the same instructions and must return the same value. Each round runs both, and each
//! ratio compares the medians of the rounds. Our interpreter counts instructions, checks every
//! access against the simulation's memory and limits the number of instructions, as a simulation
//! needs; rbpf checks accesses against the program's stack and buffers.

use std::error::Error;

use rbpf::EbpfVmNoData;
use scxlab_benches::host::cpu_time;
use scxlab_benches::median;
use scxlab_bpf::insn::RawInsn;
use scxlab_bpf::insn::asm::{Assembled, assemble};
use scxlab_bpf::vm::bare::BareHost;
use scxlab_bpf::vm::{Config, Engine, FuncId, InstanceId, InstanceParts, Limits, call_raw};

const ROUNDS: usize = 9;

struct Program {
    name: &'static str,
    text: &'static str,
    result: u64,
}

const PROGRAMS: &[Program] = &[
    // A linear congruential generator, shifted and mixed, 500,000 times.
    Program {
        name: "arithmetic",
        text: "r0 = 1\nr6 = 500000\n\
               loop:\nr0 *= 1664525\nr0 += 1013904223\nr1 = r0\nr1 >>= 13\nr0 ^= r1\n\
               w2 = w0\nw2 <<= 3\nr0 += r2\nr6 -= 1\nif r6 != 0 goto loop\nexit",
        result: 0x8cba_3624_afb2_1f78,
    },
    // Sums a buffer of 64 words on the stack and changes each word, 5,000 times.
    Program {
        name: "memory",
        text: "r0 = 0\nr6 = 5000\n\
               r1 = r10\nr1 += -512\nr2 = 64\n\
               clear:\n*(u64 *)(r1 + 0) = r2\nr1 += 8\nr2 -= 1\nif r2 != 0 goto clear\n\
               again:\nr1 = r10\nr1 += -512\nr2 = 64\n\
               word:\nr3 = *(u64 *)(r1 + 0)\nr0 += r3\nr3 += r2\n*(u64 *)(r1 + 0) = r3\nr4 = *(u8 *)(r1 + 1)\n\
               r0 ^= r4\nr1 += 8\nr2 -= 1\nif r2 != 0 goto word\n\
               r6 -= 1\nif r6 != 0 goto again\nexit",
        result: 0x6_0e06_2028,
    },
    // The sieve of Eratosthenes up to 500 in 500 bytes of stack, 500 times; the result is the
    // number of primes, 95.
    Program {
        name: "branches",
        text: "r7 = 500\n\
               again:\nr0 = 0\nr1 = 0\n\
               clear:\nr2 = r10\nr2 += -512\nr2 += r1\n*(u8 *)(r2 + 0) = 0\nr1 += 1\nif r1 < 500 goto clear\n\
               r1 = 2\n\
               number:\nr2 = r10\nr2 += -512\nr2 += r1\nr3 = *(u8 *)(r2 + 0)\nif r3 != 0 goto next\n\
               r0 += 1\nr4 = r1\nr4 += r1\n\
               strike:\nif r4 >= 500 goto next\nr2 = r10\nr2 += -512\nr2 += r4\n*(u8 *)(r2 + 0) = 1\nr4 += r1\n\
               goto strike\n\
               next:\nr1 += 1\nif r1 < 500 goto number\n\
               r7 -= 1\nif r7 != 0 goto again\nexit",
        result: 95,
    },
    // The 24th Fibonacci number, computed by a loop that calls a function of two arguments, 10,000
    // times.
    Program {
        name: "calls",
        text: "func main:\nr8 = 10000\n\
               again:\nr6 = 0\nr7 = 1\nr9 = 24\n\
               step:\nr1 = r6\nr2 = r7\ncall add\nr6 = r7\nr7 = r0\nr9 -= 1\nif r9 != 0 goto step\n\
               r8 -= 1\nif r8 != 0 goto again\nr0 = r6\nexit\n\
               func add:\nr0 = r1\nr0 += r2\nexit",
        result: 46368,
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<12} {:>12} {:>12} {:>12} {:>7}",
        "program", "insns", "ours M/s", "rbpf M/s", "ratio"
    );
    for program in PROGRAMS {
        row(program)?;
    }
    Ok(())
}

fn row(program: &Program) -> Result<(), Box<dyn Error>> {
    let assembled = assemble(program.text)?;
    let mut ours = Ours::new(&assembled)?;
    let bytes = slots(&assembled.raw);
    let theirs = EbpfVmNoData::new(Some(&bytes))?;
    let (mut ours_s, mut theirs_s) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours_s.push(timed(program, || ours.run())?);
        theirs_s.push(timed(program, || Ok(theirs.execute_program()?))?);
    }
    let insns = ours.host.vm.executed / ROUNDS as u64;
    let rate = |seconds| insns as f64 / seconds / 1e6;
    let (ours, theirs) = (rate(median(ours_s)), rate(median(theirs_s)));
    println!("{:<12} {insns:>12} {ours:>12.1} {theirs:>12.1} {:>7.2}", program.name, ours / theirs);
    Ok(())
}

/// Returns the seconds of one run, and checks the run's result.
fn timed(
    program: &Program,
    run: impl FnOnce() -> Result<u64, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let start = cpu_time();
    let result = run()?;
    let seconds = cpu_time().saturating_sub(start).as_secs_f64();
    if result != program.result {
        let (name, expected) = (program.name, program.result);
        return Err(format!("{name} returned {result:#x}, not {expected:#x}").into());
    }
    Ok(seconds)
}

/// Returns the instructions in the encoding of an object file.
fn slots(raw: &[RawInsn]) -> Vec<u8> {
    let slot = |insn: &RawInsn| {
        let mut bytes = [insn.code, insn.regs, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&insn.off.to_le_bytes());
        bytes[4..].copy_from_slice(&insn.imm.to_le_bytes());
        bytes
    };
    raw.iter().flat_map(slot).collect()
}

struct Ours {
    host: BareHost,
    instance: InstanceId,
}

impl Ours {
    fn new(assembled: &Assembled) -> Result<Ours, Box<dyn Error>> {
        let limits = Limits { insns_per_call: u64::MAX, ..Limits::default() };
        let mut host = BareHost::new(Config { limits, ..Config::default() })?;
        // Force the interpreter: the default engine compiles programs that run often.
        host.vm.engine = Engine::Interp;
        let instance = host.vm.add_instance("bench");
        let image = assembled.image("bench")?.into();
        host.vm.install(instance, InstanceParts { image, ..InstanceParts::default() });
        Ok(Ours { host, instance })
    }

    fn run(&mut self) -> Result<u64, Box<dyn Error>> {
        let result = call_raw(&mut self.host, self.instance, FuncId(0), [0; 5]);
        result.map_err(|fault| format!("{fault:#}").into())
    }
}
