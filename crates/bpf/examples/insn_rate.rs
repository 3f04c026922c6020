// SPDX-License-Identifier: GPL-2.0-only
//! How fast the interpreter is: instructions per second of a few loops, the best of several runs.

use std::time::Instant;

use scxlab_bpf::map::{MapDef, map_flag, map_type};
use scxlab_bpf::vm::bare::BareHost;
use scxlab_bpf::vm::{Config, FuncId, Host, Limits, call};

const RUNS: u32 = 40;

/// Each runs r1 rounds; maps are in r2 (array), r3 (hash), r4 (task storage), the task in r5.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "arithmetic",
        "r0 = 0\nloop:\nr0 += r1\nr0 ^= 0x55\nr3 = r0\nr3 >>= 7\nr0 += r3\nr1 -= 1\nif r1 != 0 goto loop\nexit",
    ),
    (
        "memory",
        "*(u64 *)(r10 - 8) = 0\nloop:\nr3 = *(u64 *)(r10 - 8)\nr3 += r1\n*(u64 *)(r10 - 8) = r3\n\
         r4 = *(u32 *)(r10 - 8)\n*(u32 *)(r10 - 16) = r4\nr1 -= 1\nif r1 != 0 goto loop\nr0 = 0\nexit",
    ),
    (
        "calls",
        "func main:\nr6 = r1\nloop:\nr1 = r6\ncall leaf\nr6 -= 1\nif r6 != 0 goto loop\nexit\nfunc leaf:\nr0 = r1\nr0 += 1\nexit",
    ),
    ("array lookups", LOOKUP),
    ("hash lookups", LOOKUP),
    (
        "task storage",
        "r6 = r1\nr7 = r4\nr8 = r5\nloop:\nr1 = r7\nr2 = r8\nr3 = 0\nr4 = 1\ncall 156\n\
         if r0 == 0 goto out\n*(u64 *)(r0 + 0) = r6\nr6 -= 1\nif r6 != 0 goto loop\nout:\nexit",
    ),
];

const LOOKUP: &str = "r6 = r1\nr7 = r2\nloop:\nr1 = r6\nr1 &= 63\n*(u32 *)(r10 - 4) = r1\nr1 = r7\nr2 = r10\nr2 += -4\n\
    call 1\nif r0 == 0 goto out\n*(u64 *)(r0 + 0) = r6\nr6 -= 1\nif r6 != 0 goto loop\nout:\nexit";

fn main() -> Result<(), String> {
    for (name, text) in PROGRAMS {
        let (insns, best_ns) = measure(name, text)?;
        let rate = insns as f64 * 1e3 / best_ns as f64;
        println!(
            "{name:>16}: {rate:8.1} M insn/s  ({insns} insns, {:.1} ms)",
            best_ns as f64 / 1e6
        );
    }
    println!("{:>16}: {:8.1} ns", "an invocation", invocation_ns()?);
    Ok(())
}

/// Entering and leaving a program that does nothing.
fn invocation_ns() -> Result<f64, String> {
    const CALLS: u32 = 100_000;
    let mut h = BareHost::new(Config::default()).map_err(|err| err.to_string())?;
    let instance = h.vm.add_instance("empty");
    h.install_text(instance, "exit", Default::default())?;
    let mut best = u128::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..CALLS {
            call(&mut h, instance, FuncId(0), &[1, 2, 3]).map_err(|fault| format!("{fault:#}"))?;
        }
        best = best.min(start.elapsed().as_nanos());
    }
    Ok(best as f64 / f64::from(CALLS))
}

fn measure(name: &str, text: &str) -> Result<(u64, u64), String> {
    let limits = Limits {
        insns_per_call: u64::MAX,
        ..Limits::default()
    };
    let mut h = BareHost::new(Config {
        limits,
        ..Config::default()
    })
    .map_err(|err| err.to_string())?;
    let instance = h.vm.add_instance(name);
    let hash = if name.starts_with("hash") {
        map_type::HASH
    } else {
        map_type::ARRAY
    };
    let table = MapDef {
        name: "table".into(),
        map_type: hash,
        key_size: 4,
        value_size: 8,
        max_entries: 64,
        ..MapDef::default()
    };
    let storage = MapDef {
        name: "storage".into(),
        map_type: map_type::TASK_STORAGE,
        key_size: 4,
        value_size: 8,
        map_flags: map_flag::NO_PREALLOC,
        ..MapDef::default()
    };
    let table =
        h.vm.create_map(instance, &table)
            .map_err(|err| err.to_string())?;
    let storage =
        h.vm.create_map(instance, &storage)
            .map_err(|err| err.to_string())?;
    for key in 0..64u32 {
        h.vm.map_update(table, &key.to_ne_bytes(), &[0; 8], 0)
            .map_err(|errno| format!("errno {errno}"))?;
    }
    h.install_text(instance, text, Default::default())?;
    let addr = |h: &BareHost, id| h.vm.map(id).map_or(0, |map| map.addr);
    let (table, storage) = (addr(&h, table), addr(&h, storage));
    let args = [200_000, table, 0, storage, h.current_task()];
    let mut best = u64::MAX;
    let before = h.vm.executed;
    for _ in 0..RUNS {
        let start = Instant::now();
        h.run(instance, "main", args)
            .map_err(|fault| format!("{fault:#}"))?;
        best = best.min(start.elapsed().as_nanos() as u64);
    }
    Ok(((h.vm.executed - before) / u64::from(RUNS), best.max(1)))
}
