// SPDX-License-Identifier: GPL-2.0-only
//! Examples at the end of each command's help. A test parses each as a command line.

pub const ALL: &str = "\
Examples:
  scxlab run -s eevdf -s vtime -w hackbench,groups=4 -m 2n4c2t -n 10
  scxlab list schedulers
  scxlab help run";

pub const RUN: &str = "\
Examples:
  Two schedulers on a simulated machine, ten runs each:
    scxlab run -s eevdf -s vtime -w hackbench,groups=4 -m 2n4c2t -n 10
  A scheduler of your own with a knob set, an rt-app file, a machine as lstopo sees it, a trace:
    scxlab run -s ./mine.bpf.o,slice_ns=3000000 -w app.json -m lstopo.xml --trace run.pftrace
  The same on several machines:
    scxlab run -s eevdf -s fair -w workloads/desktop-build.toml -m laptop-4c8t -m epyc-2s
  The simulation beside a real kernel in a virtual machine:
    scxlab run --on sim --on vm -s vtime -w hackbench,groups=2 -m 1n4c1t
  A command, on a real kernel only:
    scxlab run --on vm -s vtime -w 'cmd:hackbench -g 4' -m 1n4c1t
  Results for a program, and a failure if a scheduler is ejected:
    scxlab run -s ./mine.bpf.o -w schbench -m 2n4c2t --format json --fail-on-exit";

pub const CHECK: &str = "\
Examples:
  Is the new object worse than the old one, on the standing matrix of machines and workloads?
    scxlab check -s old.bpf.o -s new.bpf.o
  The same for a workload and a machine of your own, with your limits, in CI:
    scxlab check -s old.bpf.o -s new.bpf.o -w app.json -m 2n4c2t --gate gate.toml --github --junit scxlab.xml
  Two folders that run -o wrote:
    scxlab check before after";

pub const ADVISE: &str = "\
Examples:
  What a desktop should run while it compiles:
    scxlab advise -w workloads/desktop-build.toml -m laptop-4c8t
  Frames on time first, then the compilers' work; a scheduler of your own among the candidates:
    scxlab advise -w workloads/desktop-build.toml -m laptop-4c8t -g 'p99:wakeup_latency@video*<2ms,max:throughput' --candidates objects
  The same answer again, as JSON:
    scxlab advise -w hackbench,groups=4 -m 2n4c2t --rounds 24+12 --format json
  Two candidates only, tried in a virtual machine as well:
    scxlab advise -w schbench -m 1n4c1t -s vtime -s fair,load=pelt --verify vm";

pub const REPRODUCE: &str = "\
Examples:
  The tables of the O(1) scheduler's thread, published beside predicted:
    scxlab reproduce o1-2002
  One table with ten runs of each setup:
    scxlab reproduce o1-2002 --table chat -n 10
  All threads, as a page and as JSON:
    scxlab reproduce -o published
  The fit of a thread's parameters to its baselines, with the error at each value:
    scxlab reproduce pelt-2012 --fit
  What the same schedulers would do on another machine:
    scxlab reproduce gang-2011 --table ple_improvement -m epyc-2s";

pub const SHRINK: &str = "\
Examples:
  A stall of a scheduler of your own, as small as it gets:
    scxlab shrink -s ./mine.bpf.o -w hackbench,groups=4 -m epyc-2s --seed 7 -o stall.toml";

pub const SWEEP: &str = "\
Examples:
  All cells of a sweep into the folder slices.sweep; the same command continues if it was stopped:
    scxlab sweep slices.toml
  Into a folder that has cells of other sweeps, for at most an hour:
    scxlab sweep slices.toml -o cells --deadline 60min
  On a cluster:
    scxlab sweep slices.toml --dask tcp://head:8786 -o s3://bucket/slices";

pub const REPORT: &str = "\
Examples:
  A comparison and its page:
    scxlab run -s eevdf -s o1 -w chat -m epyc-2s -n 5 --report page.html
  The page of a folder of results, and of advice:
    scxlab run -s eevdf -s o1 -w chat -m epyc-2s -n 5 -o results
    scxlab report results -o page.html
    scxlab advise -w chat -m epyc-2s --format json > advice.json
    scxlab report advice.json";

pub const BUILD: &str = "\
Examples:
  A scheduler to start from, its object, a first run:
    scxlab build --new mine.bpf.c
    scxlab build mine.bpf.c
    scxlab run -s eevdf -s ./mine.bpf.o -w hackbench -m 2n4c2t
  The headers for an editor:
    scxlab build --headers headers";

pub const ATTACH: &str = "\
Examples:
  Until Ctrl-C, with statistics each second:
    sudo scxlab attach vtime
  For five minutes, quietly:
    sudo scxlab attach fair,load=pelt --duration 5min --interval 0s
  At each boot, and no longer:
    sudo scxlab attach fair,load=pelt --install
    sudo scxlab attach --uninstall";

pub const RECORD: &str = "\
Examples:
  Ten seconds of this machine, or of one service of it:
    sudo scxlab record -o shop.pftrace
    sudo scxlab record --cgroup system.slice/nginx.service --duration 30s
  A command and all that it starts:
    sudo scxlab record -o build.pftrace -- make -j8";

pub const CONFORM: &str = "\
Examples:
  All situations, in a virtual machine:
    scxlab conform
  Two of them, whatever the outcome with all that was called:
    scxlab conform fork wake_idle --verbose
  For another scheduler and kernel:
    scxlab conform -s fair --kernel arch/x86/boot/bzImage";

pub const GANG: &str = "\
Examples:
  sudo scxlab gang on /sys/fs/cgroup/guests/one
  scxlab gang list";

pub const VM: &str = "\
Examples:
  scxlab vm setup
  scxlab vm show";

pub const LIST: &str = "\
Examples:
  scxlab list schedulers
  scxlab list workloads
  scxlab list machines";

pub const TOPO: &str = "\
Examples:
  scxlab topo 2n4c2t
  scxlab topo host --costs
  lstopo --of xml server.xml; scxlab topo server.xml --format json";

pub const WORKLOAD_SHOW: &str = "\
Examples:
  scxlab workload show schbench,workers=4
  scxlab workload show trace.pftrace
  scxlab workload show trace.pftrace --scale 2x --toml";

pub const INSPECT: &str = "\
Examples:
  scxlab inspect vtime
  scxlab inspect ./mine.bpf.o --all";

pub const COMPLETIONS: &str = "\
Examples:
  source <(scxlab completions bash)
  scxlab completions fish > ~/.config/fish/completions/scxlab.fish";

pub const MAN: &str = "\
Examples:
  scxlab man | man -l -
  scxlab man -o ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::args::Cli;

    /// Returns the words of a scxlab command in a line of shell, without pipes, redirections and
    /// later commands.
    fn words(line: &str) -> Option<Vec<String>> {
        let (_, rest) = line.split_once("scxlab ")?;
        let end = rest.find([';', '|', '>', ')']).unwrap_or(rest.len());
        let mut words = vec!["scxlab".to_owned()];
        for (at, part) in rest[..end].split('\'').enumerate() {
            if at % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        Some(words)
    }

    #[test]
    fn examples_are_command_lines() {
        let mut command = Cli::command();
        command.build();
        let subs = command.get_subcommands().filter(|c| c.get_name() != "help");
        for sub in subs {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = help.lines().filter_map(words).collect();
            assert!(lines.iter().any(|l| l[1] == sub.get_name()), "{}: {help}", sub.get_name());
            for line in lines {
                let parsed = Cli::try_parse_from(&line);
                assert!(parsed.is_ok(), "{line:?}: {}", parsed.unwrap_err());
            }
        }
    }
}
