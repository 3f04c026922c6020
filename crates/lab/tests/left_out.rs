// SPDX-License-Identifier: GPL-2.0-only
//! A report lists the omitted parts of a scheduler, and is empty for a scheduler that runs as a
//! whole. Foreign objects come from `make objects`.

use std::path::{Path, PathBuf};

use scxlab_kernel::ext::tracing::runs_tracing;
use scxlab_lab::input::{RecipeInput, SchedulerInput};
use scxlab_lab::left_out::left_out;
use scxlab_lab::prepare::{Prepared, PreparedObject};
use scxlab_lab::recipe;
use scxlab_machine::Machine;

fn prepared(name: &str, bytes: &[u8], recipe: RecipeInput) -> Option<PreparedObject> {
    let machine = Machine::resolve("2n4c2t").unwrap();
    let input = SchedulerInput::of_object(name, bytes, recipe).unwrap();
    Prepared::simulated(&input, &machine).ok()?.object
}

/// Returns the parts of the scheduler that a simulated run leaves out.
fn simulated(object: &PreparedObject) -> Vec<String> {
    left_out(object, |_, kind| runs_tracing(kind))
}

fn of(name: &str, bytes: &[u8], recipe: RecipeInput) -> Vec<String> {
    simulated(&prepared(name, bytes, recipe).unwrap_or_else(|| panic!("{name} is prepared")))
}

fn built(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../build/{folder}/objects"));
    let files = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}; `make objects` makes it", folder.display()));
    let mut all: Vec<(String, Vec<u8>)> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.o"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}

/// The object `relay` needs a frontend that makes the scheduling decisions. The report must name
/// the maps that only this frontend fills, and the program that only this frontend runs. On a
/// target that runs the object's tracepoint program, the report has one line less.
#[test]
fn a_frontend_that_decides_is_missed() {
    let relay = scxlab_sched::find("relay").unwrap();
    let object = prepared("relay", relay.object, RecipeInput::Auto).unwrap();
    let frontend = "its frontend; only user space fills decided, urgent and runs which_cpu";
    let watcher = "programs that watch the kernel: count_exit";
    assert_eq!(simulated(&object), [frontend, watcher]);
    assert_eq!(left_out(&object, |_, _| true), [frontend]);
}

/// A report lists nothing for a scheduler that runs as a whole. All shipped schedulers and the
/// kernel's own examples and selftests run as a whole, except those with a program that only user
/// space can start or a queue that only user space fills.
#[test]
fn nothing_is_said_of_a_scheduler_that_runs_whole() {
    for shipped in scxlab_sched::shipped() {
        assert_eq!(
            of(shipped.name, shipped.object, RecipeInput::Auto),
            [""; 0],
            "{}",
            shipped.name
        );
    }
    let mut marked = Vec::new();
    let objects = built("kernel");
    assert!(objects.len() > 30);
    for (name, bytes) in &objects {
        // Skip objects that are no schedulers, or that only a machine of another size can run.
        let Some(object) = prepared(name, bytes, RecipeInput::Auto) else { continue };
        marked.extend(simulated(&object).into_iter().map(|line| format!("{name}: {line}")));
    }
    let runs = |name: &str, program: &str| {
        format!("{name}.bpf.o: its frontend; only user space runs {program}")
    };
    assert_eq!(
        marked,
        [
            runs("allowed_cpus", "select_cpu_from_user"),
            runs("enq_select_cpu", "select_cpu_from_user"),
            runs("prog_run", "prog_run_syscall"),
            runs("scx_qmap", "flush_alloc"),
            "scx_userland.bpf.o: its frontend; only user space fills dispatched".to_owned(),
        ]
    );
}

/// With a recipe, the report on an object lists the recipe's omissions. Without a recipe, it lists
/// the whole frontend, if the object shows that it needs one.
#[test]
fn a_recipe_says_what_it_leaves_out() {
    for (name, bytes) in built("scx") {
        let short = name.trim_end_matches(".bpf.o");
        let Some((recipe, _)) = recipe::find(short) else { continue };
        if short == "rustland" {
            assert!(prepared(&name, &bytes, RecipeInput::Auto).is_none(), "it is refused");
            let whole = "its frontend; only user space fills dispatched and runs rs_select_cpu";
            assert_eq!(of(&name, &bytes, RecipeInput::None), [whole]);
            continue;
        }
        let with = of(&name, &bytes, RecipeInput::Auto);
        assert_eq!(with[..recipe.leaves_out.len()], recipe.leaves_out, "{name}");
        let rest = &with[recipe.leaves_out.len()..];
        let watched = ["cake", "layered", "chaos"].contains(&short);
        assert_eq!(rest.len(), usize::from(watched), "{name}: {rest:?}");
        let without = of(&name, &bytes, RecipeInput::None);
        let has_frontend = without.iter().any(|line| line.starts_with("its frontend"));
        // The frontends of these schedulers only set constants and fill arrays, which is no proof
        // that a frontend is needed, so the report must not name a frontend.
        let unseen = ["cake", "flow", "pandemonium", "rusty"].contains(&short);
        assert_eq!(has_frontend, !unseen, "{name}: {without:?}");
    }
}

#[test]
fn every_phrase_follows_not_run() {
    for (name, _) in recipe::shipped() {
        let (recipe, _) = recipe::find(name).unwrap();
        for phrase in &recipe.leaves_out {
            assert!(!phrase.ends_with('.') && !phrase.starts_with("nothing"), "{name}: {phrase}");
        }
    }
}
