// SPDX-License-Identifier: GPL-2.0-only
//! `scale` and `repeat` against the ground truth: the original with more clients, or for longer.

use super::*;

/// A workload with a number of clients, `{n}`, and tasks that there are once.
struct Load {
    name: &'static str,
    machine: &'static str,
    text: &'static str,
    /// The tasks that are recorded, as parameters.
    scope: &'static str,
}

const LOADS: [Load; 8] = [
    Load {
        name: "think and serve",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "client"
            instances = {n}
            ops = [{ loop = { ops = [{ compute = "50us" }, { sem_post = "requests" }, { sem_wait = "replies" }, { count = 1 }, { sleep = "2ms" }] } }]
            [[thread]]
            name = "server"
            instances = 2
            ops = [{ loop = { ops = [{ sem_wait = "requests" }, { compute = "150us" }, { sem_post = "replies" }] } }]"#,
        scope: "",
    },
    Load {
        name: "thread per client",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "client"
            instances = {n}
            ops = [{ loop = { ops = [{ compute = "60us" }, { write = { pipe = "to{i}", bytes = 200 } },
                { read = { pipe = "from{i}", bytes = 2000 } }, { count = 1 }, { sleep = "1ms" }] } }]
            [[thread]]
            name = "server"
            instances = {n}
            process = "server"
            ops = [{ loop = { ops = [{ read = { pipe = "to{i}", bytes = 200 } }, { compute = "90us" },
                { write = { pipe = "from{i}", bytes = 2000 } }] } }]"#,
        scope: "",
    },
    Load {
        name: "a lock",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "session"
            instances = {n}
            process = "db"
            ops = [{ loop = { ops = [{ compute = "120us" }, { lock = "log" }, { compute = "60us" }, { unlock = "log" },
                { compute = "80us" }, { count = 1 }, { sleep = "1ms" }] } }]"#,
        scope: "",
    },
    Load {
        name: "one reader",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "sender"
            instances = {n}
            ops = [{ loop = { ops = [{ sleep = "1ms" }, { compute = "30us" }, { write = { pipe = "log", bytes = 100 } }] } }]
            [[thread]]
            name = "logger"
            ops = [{ loop = { ops = [{ read = { pipe = "log", bytes = 100 } }, { compute = "40us" }, { count = 1 }] } }]"#,
        scope: "",
    },
    Load {
        name: "two tiers",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "user"
            instances = {n}
            ops = [{ loop = { ops = [{ sleep = "1500us" }, { sem_post = "front" }, { sem_wait = "done" }, { count = 1 }] } }]
            [[thread]]
            name = "web"
            instances = 2
            ops = [{ loop = { ops = [{ sem_wait = "front" }, { compute = "60us" }, { sem_post = "back" }, { sem_wait = "rows" },
                { compute = "30us" }, { sem_post = "done" }] } }]
            [[thread]]
            name = "store"
            ops = [{ loop = { ops = [{ sem_wait = "back" }, { compute = "50us" }, { sem_post = "rows" }] } }]"#,
        scope: "",
    },
    Load {
        name: "no servers",
        machine: "1n2c1t",
        text: r#"
            [[thread]]
            name = "hog"
            instances = {n}
            ops = [{ loop = { ops = [{ compute = "1ms" }, { count = 1 }] } }]
            [[thread]]
            name = "sleeper"
            instances = {n}
            ops = [{ loop = { ops = [{ compute = "100us" }, { sleep = "900us" }, { count = 1 }] } }]"#,
        scope: "",
    },
    Load {
        name: "from outside",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "user"
            instances = {n}
            ops = [{ loop = { ops = [{ timer = { name = "t", period = "700us", mode = "absolute", unique = true } }, { compute = "10us" }, { write = { pipe = "in", bytes = 100 } }] } }]
            [[thread]]
            name = "server"
            ops = [{ loop = { ops = [{ read = { pipe = "in", bytes = 100 } }, { compute = "70us" }, { count = 1 }] } }]"#,
        scope: "tasks=server*",
    },
    Load {
        name: "from outside, two tiers",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "user"
            instances = {n}
            ops = [{ loop = { ops = [{ timer = { name = "t", period = "1300us", mode = "absolute", unique = true } }, { compute = "10us" }, { write = { pipe = "in", bytes = 100 } }] } }]
            [[thread]]
            name = "front"
            ops = [{ loop = { ops = [{ read = { pipe = "in", bytes = 100 } }, { compute = "30us" }, { sem_post = "work" }] } }]
            [[thread]]
            name = "worker"
            instances = 2
            ops = [{ loop = { ops = [{ sem_wait = "work" }, { compute = "120us" }, { count = 1 }] } }]"#,
        scope: "tasks=front,tasks=worker*",
    },
];

const CLIENTS: u32 = 4;

/// A recording with a factor does what the original does with that many clients: its throughput and
/// the CPU time of each role are nearly the same. Computations of the recordings vary: clients that
/// work in step look like one.
#[test]
fn a_scaled_recording_has_that_many_clients() {
    let mut off = Vec::new();
    for load in &LOADS {
        let machine = Arc::new(Machine::resolve(load.machine).unwrap());
        let of = |clients: u32| {
            let text = load.text.replace("{n}", &clients.to_string());
            scxlab_workload::load("load.toml", &text).unwrap()
        };
        let record = |terms: Terms| record_on(&machine, &of(CLIENTS), terms).1;
        let recordings = [
            record(Terms::noisy(1, LENGTH)),
            record(Terms::noisy(2, LENGTH)),
            record(Terms::noisy(3, LENGTH)),
        ];
        for (factor, clients) in [("0.5", 2), ("1", 4), ("1.5", 6), ("2", 8), ("3", 12)] {
            let truth = figures(&machine, &of(clients));
            for (i, bytes) in recordings.iter().enumerate() {
                let program = read(bytes, &format!("{},scale={factor}", load.scope)).unwrap();
                let scaled = figures(&machine, &program.replay.program);
                let error = |(what, value): (&String, &f64)| {
                    (what.clone(), percent(*value, truth.get(what).copied().unwrap_or(0.0)))
                };
                let errors: Vec<(String, f64)> = scaled.iter().map(error).collect();
                println!("{:24} {i} {factor:>4}: {errors:.1?}", load.name);
                let wrong = errors.iter().filter(|(_, error)| error.abs() > 10.0);
                off.extend(wrong.map(|(what, error)| {
                    format!("{} {i} x{factor}: {what} {error:+.1} %", load.name)
                }));
            }
        }
    }
    assert!(off.is_empty(), "{off:#?}");
}

/// Keeps clients from running in step, in which a small cause has a large effect.
const NOISE: Perturb = Perturb { start_offset_max: 2 * MS, compute_noise_permille: 50 };

/// Returns the CPU time of each role and the throughput, over several seeds.
fn figures(machine: &Arc<Machine>, program: &Program) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    for seed in 1..=4 {
        let run = run_on(machine, "eevdf", program, Terms { seed, length: LENGTH, perturb: NOISE });
        for (role, ns) in run_time(&run) {
            let role = role.trim_end_matches(|c: char| "# ".contains(c) || c.is_ascii_digit());
            *figures.entry(role.to_owned()).or_default() += ns as f64;
        }
        *figures.entry("throughput".to_owned()).or_default() += metric(&run, "throughput");
    }
    figures
}

/// The draws depend on the recording and the factor alone.
#[test]
fn scaled_recordings_are_reproducible() {
    for load in &LOADS {
        let machine = Arc::new(Machine::resolve(load.machine).unwrap());
        let text = load.text.replace("{n}", "3");
        let (_, bytes) = record(&machine, &scxlab_workload::load("l.toml", &text).unwrap(), 1);
        for factor in ["0.5", "1.7", "2"] {
            let program = || {
                let parameters = format!("{},scale={factor}", load.scope);
                serde_json::to_string(&read(&bytes, &parameters).unwrap().replay.program).unwrap()
            };
            assert_eq!(program(), program());
        }
    }
}

/// Scaled random programs do not come to wait for ever.
#[test]
fn scaled_random_programs_go_on() {
    for seed in 1..=40 {
        let text = random_program(seed);
        let machine = Arc::new(Machine::resolve("1n4c1t").unwrap());
        let (first, bytes) = record(&machine, &load("random.toml", &text).unwrap(), seed);
        for factor in ["0.5", "1.5", "2"] {
            let program = read(&bytes, &format!("scale={factor}")).unwrap().replay.program;
            assert!(program.notes.iter().any(|note| note.starts_with("scale=")));
            let stop = run(&machine, "vtime", &program, seed).stop;
            assert_eq!(stop.kind, first.stop.kind, "seed {seed}, x{factor}: {text}");
        }
    }
}

/// A recording that is repeated does what its original does in that time: what a pass leaves to
/// the next, and the begin of a pass, change neither the CPU time nor the throughput.
#[test]
fn a_repeated_recording_is_a_longer_one() {
    const TIMES: u64 = 5;
    let mut off = Vec::new();
    for case in CASES.iter().filter(|case| case.name != "guests") {
        let machine = Arc::new(Machine::resolve(case.machine).unwrap());
        let original = load("original.toml", case.text).unwrap();
        let (_, bytes) = record(&machine, &original, 1);
        let repeated = read(&bytes, &format!("repeat={TIMES}")).unwrap().replay.program;
        assert_eq!(repeated.duration.unwrap().0, TIMES * replay(&bytes).duration.unwrap().0);
        let long = |program: &Program| -> Vec<Run> {
            let terms = |seed| Terms { seed, length: TIMES * LENGTH, perturb: NOISE };
            let run = |seed| run_on(&machine, "eevdf", program, terms(seed));
            (1..=3).map(run).collect()
        };
        let (truth, replayed) = (long(&original), long(&repeated));
        let sum = |of: &dyn Fn(&Run) -> f64| {
            percent(replayed.iter().map(of).sum(), truth.iter().map(of).sum())
        };
        let mut errors = vec![("CPU time", sum(&total))];
        if repeated.unit == "unit" {
            errors.push(("throughput", sum(&|run| metric(run, "throughput"))));
        }
        let waits = |name| sum(&|run| metric(run, name));
        println!(
            "{:18} {errors:.1?}, waits p50 {:+.1} % p99 {:+.1} %",
            case.name,
            waits("run_queue_wait_p50"),
            waits("run_queue_wait_p99")
        );
        let wrong = errors.iter().filter(|(_, error)| error.abs() > 5.0);
        off.extend(wrong.map(|(what, error)| format!("{}: {what} {error:+.1} %", case.name)));
    }
    assert!(off.is_empty(), "{off:#?}");
}
