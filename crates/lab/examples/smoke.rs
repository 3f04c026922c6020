// SPDX-License-Identifier: GPL-2.0-only
use std::sync::Arc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let machine = Arc::new(scxlab_machine::Machine::resolve(&a[1]).unwrap());
    let scxlab_workload::WorkloadArg::Program(w) = scxlab_workload::parse_workload_arg(&a[2]).unwrap() else { panic!() };
    let object = match a[3].as_str() {
        "eevdf" => None,
        path if path.ends_with(".o") => Some(Arc::new(scxlab_bpf::object::Object::parse(&std::fs::read(path).unwrap(), path).unwrap())),
        name => Some(Arc::new(scxlab_bpf::object::Object::parse(scxlab_sched::find(name).unwrap().object, name).unwrap())),
    };
    let spec = scxlab_lab::sim::SimSpec { machine, workload: &w, scheduler: object, label: &a[3], knobs: &[], seed: 1,
        duration: Some(a[4].parse::<u64>().unwrap() * 1_000_000), perturb: Default::default() };
    let t = std::time::Instant::now();
    match scxlab_lab::sim::simulate(&spec, Default::default()) {
        Ok((run, _)) => {
            let el = t.elapsed();
            println!("exit {:?} hash {} vns {}", run.exit, run.trace_hash, run.virtual_ns);
            for (n, m) in &run.metrics { if m.value != 0.0 && !n.starts_with("cpu1") { print!("{n}={} ", m.value); } }
            println!("\n{:?}", run.notes);
            for t in run.tasks.iter().take(8) { println!("{t:?}"); }
            println!("wall {el:?}, {:.0} switches/s, {:.0} insn/s", run.metrics["context_switches"].value / el.as_secs_f64(), run.metrics["bpf_instructions"].value / el.as_secs_f64());
        }
        Err(e) => println!("ERROR {e}"),
    }
}
