// SPDX-License-Identifier: GPL-2.0-only
//! Every pinned published scheduler behaves as `docs/reference/scx-schedulers.md` says.
//!
//! The objects come from `make scx-objects`; if they are missing, each test fails with a message
//! that names this command.

use scxlab_kernel::Kernel;
use scxlab_lab::recipe;
use scxlab_loader::link::Loaded;
use scxlab_loader::object::Object;
use scxlab_testkit::scx_family::versions::{Version, crates, pinned};
use scxlab_testkit::scx_family::{FAMILY, PublishedScheduler, objects_dir, table};

fn scheduler(name: &str) -> &'static PublishedScheduler {
    FAMILY.iter().find(|s| s.name == name).expect("a scheduler of that name")
}

fn check(name: &str) {
    scheduler(name).check();
}

/// Reads globals and returns their values, separated by spaces.
fn globals(k: &Kernel, loaded: &Loaded, paths: &[&str]) -> String {
    let all: Vec<String> =
        paths.iter().map(|path| loaded.read_global(&k.vm, path).expect(path)).collect();
    all.join(" ")
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        /// Names of the schedulers for which this macro defines tests.
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests! {
    beerland bpfland cake chaos cosmos flash flow forge lavd layered p2dq pandemonium rusty tickless
}

#[test]
fn every_scheduler_has_a_test() {
    let names: Vec<&str> = FAMILY.iter().map(|s| s.name).collect();
    assert_eq!(names, TESTED);
}

/// The object file `NAME.bpf.o`, without a version in its name, holds the newest pinned version.
/// Further objects in the folder are no error.
#[test]
fn the_newest_version_has_the_plain_name() {
    for scheduler in &FAMILY {
        let newest = pinned().find(|v| v.name == scheduler.name).expect("a version is pinned");
        let plain = objects_dir().join(format!("{}.bpf.o", scheduler.name));
        let plain = std::fs::read(&plain).unwrap_or_else(|error| {
            panic!("{}: {error}; `make scx-objects` takes the objects", plain.display())
        });
        assert!(plain == newest.bytes(), "{newest:?} is not what {} is", scheduler.name);
        let (recipe, _) = recipe::find(scheduler.name).expect("each has a recipe");
        assert_eq!(recipe.versions[0], newest.version, "{}", scheduler.name);
    }
}

/// Every version that a recipe names is tested, and all tested versions but one have a recipe.
#[test]
fn recipes_are_for_the_versions_that_are_tested() {
    let of = |name: &str| -> Vec<Version> { pinned().filter(|v| v.name == name).collect() };
    let mut covered = Vec::new();
    for (name, _) in recipe::shipped() {
        let (recipe, _) = recipe::find(name).expect("it is shipped");
        if recipe.versions.is_empty() {
            continue;
        }
        for crate_name in crates(&recipe.source) {
            for version in &recipe.versions {
                let found = of(crate_name).into_iter().find(|v| v.version == version);
                covered.push(found.unwrap_or_else(|| panic!("{name}: {version} is not tested")));
            }
        }
    }
    let uncovered: Vec<Version> = pinned().filter(|v| !covered.contains(v)).collect();
    assert_eq!(uncovered, [Version { name: "cake", version: "1.1.3" }], "before its rewrite");
}

/// Each name in a recipe that is followed by `?`, and each argument of `exists()`, must be present
/// in some version of the scheduler and absent from another. Otherwise it is misspelt or out of
/// date.
#[test]
fn what_a_recipe_may_skip_some_version_has_and_another_lacks() {
    for (name, text) in recipe::shipped() {
        let (recipe, _) = recipe::find(name).expect("it is shipped");
        let all = with_included(text);
        let objects: Vec<Object> = pinned()
            .filter(|v| recipe.versions.iter().any(|known| known == v.version))
            .filter(|v| crates(&recipe.source).any(|c| c == v.name))
            .filter_map(|v| v.object())
            .collect();
        let absent: Vec<Vec<String>> =
            objects.iter().map(|object| recipe.clone().fit(object)).collect();
        for optional in names_before(&all, "?\"") {
            let lacking = absent.iter().filter(|names| names.contains(&optional)).count();
            let place = format!("{name}: `{optional}?` is absent from {lacking}");
            assert!(
                0 < lacking && lacking < objects.len(),
                "{place} of {} versions",
                objects.len()
            );
        }
        for asked in all.split("exists(").skip(1) {
            let asked = asked.split(')').next().unwrap_or_default();
            let has = |o: &&Object| {
                let is_program = o.programs().any(|(_, f, _)| f.name == asked);
                o.variable(asked).is_some() || o.map(asked).is_some() || is_program
            };
            let having = objects.iter().filter(has).count();
            assert!(0 < having && having < objects.len(), "{name}: exists({asked}) in {having}");
        }
    }
}

/// Returns a recipe's text and those of the recipes that it includes.
fn with_included(text: &str) -> String {
    let mut all = text.to_owned();
    for name in text.split("include = \"").skip(1) {
        let name = name.split('"').next().unwrap_or_default();
        let path = format!("{}/../../recipes/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        all += &with_included(&std::fs::read_to_string(&path).expect("an included recipe"));
    }
    all
}

/// Returns the quoted names that are followed by `end`, without their indices.
fn names_before(text: &str, end: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(end).collect();
    let quoted = |part: &&str| part.rsplit('"').next().unwrap_or_default().to_owned();
    let names = parts[..parts.len() - 1].iter().map(quoted);
    names.map(|name| name.split('[').next().unwrap_or_default().to_owned()).collect()
}

/// scx_tickless on machines with more than 128 CPUs, because numbers in a recipe's formulas have
/// 128 bits. The ranking must reach the last CPU, which schedules for all others, and the timer on
/// that CPU must tick.
#[test]
fn tickless_schedules_from_the_last_of_many_cpus() {
    for (machine, nr_cpus) in [("epyc-2s", 256), ("4n8l16c2t", 1024)] {
        let (mut k, loaded) = scheduler("tickless").attached(machine, "hogs,tasks=8");
        let last = format!("preferred_cpus[{}]", nr_cpus - 1);
        let seen = globals(&k, &loaded, &["nr_cpu_ids", &last]);
        assert_eq!(seen, format!("{nr_cpus} {}", nr_cpus - 1), "{machine}");
        k.start();
        k.advance(100_000_000);
        let ticks: u64 = globals(&k, &loaded, &["nr_ticks"]).parse().expect("a number");
        assert!(ticks > 5, "{machine}: {ticks} ticks of its own");
        assert!(k.ext.exits.is_empty(), "{machine}: {:?}", k.ext.exits);
    }
}

/// The arena library finds each mask inside the mask of its parent: two nodes, four LLCs, eight
/// cores, sixteen CPUs.
#[test]
fn the_tree_of_cpus_is_built() {
    let (k, loaded) = scheduler("p2dq").attached("2n2l2c2t", "hogs");
    let levels = ["nr_topo_nodes[0]", "nr_topo_nodes[1]", "nr_topo_nodes[2]", "nr_topo_nodes[3]"];
    assert_eq!(globals(&k, &loaded, &levels), "2 4 8 16");
    assert_eq!(globals(&k, &loaded, &["topo_max_children[1]", "topo_max_children[3]"]), "2 2");
}

/// The machine has four LLCs. The neighbours of an LLC are first the other LLC of its node, and
/// then the two LLCs of the other node, in the order of their numbers.
#[test]
fn compute_domains_know_their_neighbours() {
    let (k, loaded) = scheduler("lavd").attached("2n2l2c2t", "hogs");
    let of = |dom: usize| {
        let path = |field: &str| format!("cpdom_ctxs[{dom}].{field}");
        let paths = ["llc_id", "nr_neighbors[0]", "nr_neighbors[1]", "neighbor_ids[0]"].map(path);
        let more = ["neighbor_ids[128]", "neighbor_ids[129]", "__cpumask[0]"].map(path);
        let all: Vec<&str> = paths.iter().chain(&more).map(String::as_str).collect();
        globals(&k, &loaded, &all)
    };
    assert_eq!(of(0), "0 1 2 1 2 3 15");
    assert_eq!(of(1), "1 1 2 0 2 3 240");
    assert_eq!(of(2), "2 1 2 3 0 1 3840");
    assert_eq!(of(3), "3 1 2 2 0 1 61440");
    // In the order for performance, the first threads of all cores come before the second threads;
    // in the order for power, the threads of a core are adjacent.
    let table = ["pco_table[1][1]", "pco_table[1][8]", "pco_table[0][1]", "pco_bounds[1]"];
    assert_eq!(globals(&k, &loaded, &table), "2 1 1 16384");
}

/// Fast and small cores under one LLC form two domains, each the other's alternative.
#[test]
fn kinds_of_cores_are_domains_of_their_own() {
    let (k, loaded) = scheduler("lavd").attached("hybrid-8p8e", "hogs");
    let fields = ["cpdom_ctxs[0].is_big", "cpdom_ctxs[0].alt_id", "cpdom_ctxs[1].is_big"];
    assert_eq!(globals(&k, &loaded, &fields), "1 1 0");
    assert_eq!(globals(&k, &loaded, &["cpdom_ctxs[1].alt_id", "xmig_min_gain_ns"]), "0 350000");
}

/// Elements of a per-CPU map differ by CPU, and fields that the recipe does not name keep their
/// values.
#[test]
fn each_cpu_has_its_own_order_of_nearness() {
    let (k, loaded) = scheduler("layered").attached("2n2l2c1t", "hogs");
    let (map, btf) = (loaded.map("cpu_ctxs").expect("a map"), &loaded.object.btf);
    let ty = loaded.object.maps[loaded.object.map("cpu_ctxs").expect("a map")].value_ty;
    let nearest = |cpu: u32| -> Vec<u16> {
        let value = k.vm.map_lookup_cpu(map, &[0; 4], cpu).expect("an element");
        let at = btf.path(ty.expect("a type"), ".prox_map.cpus").expect("a field").byte_off();
        let bytes = &value[at as usize..at as usize + 16];
        bytes.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
    };
    assert_eq!(nearest(0), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(nearest(2), [2, 3, 0, 1, 4, 5, 6, 7]);
    assert_eq!(nearest(5), [5, 4, 6, 7, 3, 2, 1, 0]);
}

/// The recipe starts the timer after the attach, on the CPU to which the timer belongs: the last
/// CPU.
#[test]
fn a_timer_is_started_after_the_attachment() {
    let (mut k, loaded) = scheduler("tickless").attached("1n4c1t", "hogs,tasks=8");
    k.start();
    k.advance(200_000_000);
    let ticks: u64 = globals(&k, &loaded, &["nr_ticks"]).parse().expect("a number");
    assert!(ticks > 10, "{ticks} ticks of its own");
}

#[test]
fn table_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/scx-schedulers.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, table()).expect("the table");
    }
    let shown = std::fs::read_to_string(path).unwrap_or_default();
    let hint = "BLESS=1 cargo test -p scxlab-testkit --test scx_family rewrites it";
    assert!(shown == table(), "docs/reference/scx-schedulers.md is stale; {hint}");
}
