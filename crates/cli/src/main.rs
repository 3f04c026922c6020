// SPDX-License-Identifier: GPL-2.0-only
//! The `scxlab` command: flags, messages, exit codes.
//!
//! Owns: the user interface, and opening of files. Does not: decide anything about a run (see the
//! lab crate).
//! Start at: `args.rs` (the flags), `exit.rs` (the exit codes), `run.rs`.

mod advise;
mod again;
mod args;
mod attach;
mod build;
mod check;
mod complete;
mod conform;
mod exit;
mod gang;
mod guests;
mod inspect;
mod install;
mod list;
mod live;
mod output;
mod progress;
mod record;
mod reference;
mod report;
mod reproduce;
mod run;
mod shrink;
mod sweep;
mod topo;
mod traces;
mod vm;
mod workload;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;

fn main() -> ExitCode {
    // The same program runs as init in a virtual machine, and as a process of the workload on a
    // real kernel.
    if scxlab_vm::guest::is_init() {
        live::guest_main();
    }
    scxlab_workload::native::child_main();
    if complete::answer() {
        return ExitCode::SUCCESS;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::from_clap(&error),
    };
    exit::guarded(|| dispatch(cli.command))
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Advise(args) => advise::advise(&args),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Reproduce(args) => reproduce::reproduce(&args),
        Command::Report(args) => report::report(&args),
        Command::Shrink(args) => shrink::shrink(&args),
        Command::Check(args) => check::check(&args),
        Command::Build(args) => build::build(&args),
        Command::Attach(args) => attach::attach(&args),
        Command::Record(args) => record::record(&args),
        Command::Conform(args) => conform::conform(&args),
        Command::Gang(args) => gang::gang(&args.command),
        Command::Vm(args) => vm::vm(&args.command),
        Command::List(args) => list::list(args.what),
        Command::Workload(args) => workload::workload(&args.command),
        Command::Topo(args) => topo::topo(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Completions(args) => reference::completions(args.shell),
        Command::Man(args) => reference::man(args.output.as_deref()),
    }
}
