// SPDX-License-Identifier: GPL-2.0-only
//! The cost of writing a trace: events per second with the Perfetto sink and without a sink,
//! alternately.
//!
//! The trace is discarded, so that the disk is not measured. `crates/trace/benches` measures the
//! cost of one event.

use std::error::Error;
use std::io;

use scxlab_benches::case::Case;
use scxlab_benches::median;
use scxlab_trace::{PerfettoSink, Tracer};

const ROUNDS: usize = 7;
const DURATION_NS: u64 = 5_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut off, mut on) = (Vec::new(), Vec::new());
    let case = Case::new("vtime", "sleepers,tasks=40", "8c", DURATION_NS)?;
    for _ in 0..ROUNDS {
        off.push(case.run(Tracer::default())?.rate("events"));
        let sink = PerfettoSink::new(io::sink(), case.machine());
        on.push(case.run(Tracer::with_sink(sink))?.rate("events"));
    }
    let (off, on) = (median(off), median(on));
    println!("trace off  {off:10.0} events/s");
    println!("perfetto   {on:10.0} events/s");
    println!("ratio      {:10.2}", on / off);
    Ok(())
}
