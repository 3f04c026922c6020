// SPDX-License-Identifier: GPL-2.0-only
//! Regions of memory with real pages: their number, their owners, and their node where the host has
//! one. `cli/tests/vm/memory.rs` has the tests on several nodes.

use scxlab_workload::native::{self as executor, NativeConfig};
use scxlab_workload::{Program, RegionPages};

use crate::{Test, program, run_clean};

pub const TESTS: &[Test] = &[
    ("pages_lie_where_the_policy_says", pages_lie_where_the_policy_says),
    ("a_read_page_counts", a_read_page_counts),
    ("huge_pages_are_whole", huge_pages_are_whole),
    ("each_owner_has_its_region", each_owner_has_its_region),
    ("forks_and_execs_have_new_regions", forks_and_execs_have_new_regions),
    ("compute_accesses_its_region", compute_accesses_its_region),
    ("unknown_nodes_are_refused", unknown_nodes_are_refused),
];

/// Whether the kernel has memory policies. Prints a message if not.
fn has_nodes() -> bool {
    let has = std::path::Path::new("/sys/devices/system/node/node0").exists();
    if !has {
        println!("    skipped: the kernel has no nodes (CONFIG_NUMA)");
    }
    has
}

/// Returns the pages of a program's regions, by owner and name.
fn regions(text: &str) -> Vec<(String, String, u64)> {
    let report = run_clean(text);
    assert_eq!(report.uncounted, 0, "{:?}", report.notes);
    let row = |region: &RegionPages| {
        (region.owner.clone(), region.region.clone(), region.pages.iter().sum())
    };
    let mut rows: Vec<_> = report.regions.iter().map(row).collect();
    rows.sort();
    rows
}

fn row(owner: &str, region: &str, pages: u64) -> (String, String, u64) {
    (owner.to_owned(), region.to_owned(), pages)
}

const TOUCHER: &str =
    "[[thread]]\nname = 'a'\nops = [{ touch = { region = 'r', kind = 'write' } }]\n";

fn pages_lie_where_the_policy_says() {
    if !has_nodes() {
        return;
    }
    for policy in [
        "",
        "policy = { bind = '0' }",
        "policy = { interleave = '0' }",
        "policy = { preferred = 0 }",
        "populate = '0'",
    ] {
        let text =
            format!("[[region]]\nname = 'r'\nsize = '1MiB'\nhuge = false\n{policy}\n{TOUCHER}");
        let report = run_clean(&text);
        let pages: Vec<_> = report.regions.iter().map(|r| r.pages.clone()).collect();
        let total: u64 = pages[0].iter().sum();
        assert_eq!((pages.len(), total), (1, 256), "{policy}: {pages:?}");
        if !policy.is_empty() {
            assert_eq!(pages[0], [256], "{policy}");
        }
    }
}

/// Only accessed pages are present, and a page that was only read is one of the region's own.
fn a_read_page_counts() {
    if !has_nodes() {
        return;
    }
    let text = "[[region]]\nname = 'r'\nsize = '4MiB'\nhuge = false\n\
        [[thread]]\nname = 'a'\nops = [{ touch = { region = 'r', offset = 8192, size = 40960 } }, \
        { touch = { region = 'r', offset = 1048576, size = 4096, pattern = 'random', count = 9 } }]";
    assert_eq!(regions(text), [row("a", "r", 11)]);
}

fn huge_pages_are_whole() {
    if !has_nodes() {
        return;
    }
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let whole = enabled.is_ok_and(|modes| !modes.contains("[never]"));
    let text = "[[region]]\nname = 'r'\nsize = '5MiB'\n\
        [[thread]]\nname = 'a'\nops = [{ touch = { region = 'r', size = 1 } }]";
    let rows = regions(text);
    // The kernel may lack a free huge page; then the region has small ones.
    assert!(rows == [row("a", "r", 512)] && whole || rows == [row("a", "r", 1)], "{rows:?}");
    // The last huge page counts as far as the region goes.
    let text = text.replace("size = 1 ", "offset = 4194304, size = 1048576 ");
    assert_eq!(regions(&text), [row("a", "r", 256)]);
}

fn each_owner_has_its_region() {
    if !has_nodes() {
        return;
    }
    let text = |of: &str| {
        format!(
            "[[region]]\nname = 'r'\nsize = 40960\nhuge = false\nof = '{of}'\n\
             [[thread]]\nname = 'a'\ninstances = 4\nprocess = 'p{{i/2}}'\n\
             ops = [{{ touch = {{ region = 'r' }} }}, {{ barrier = 'end' }}]"
        )
    };
    assert_eq!(regions(&text("process")), [row("p0", "r", 10), row("p1", "r", 10)]);
    let names = ["a-0", "a-1", "a-2", "a-3"];
    assert_eq!(regions(&text("thread")), names.map(|name| row(name, "r", 10)));
    assert_eq!(regions(&text("all")), [row("", "r", 10)]);
    // A name with the instance's number makes several regions of one process.
    let parts =
        text("process").replace("'r' }", "'part{i}' }").replace("name = 'r'", "name = 'part{i}'");
    let rows = [("p0", "part0"), ("p0", "part1"), ("p1", "part2"), ("p1", "part3")];
    assert_eq!(regions(&parts), rows.map(|(owner, part)| row(owner, part, 10)));
}

/// A forked process does not share its parent's pages, and `exec` gives up the old ones.
fn forks_and_execs_have_new_regions() {
    if !has_nodes() {
        return;
    }
    let text = "[[region]]\nname = 'r'\nsize = 40960\nhuge = false\n\
        [[thread]]\nname = 'a'\nops = [{ touch = { region = 'r' } }, { fork = 'b' }, \
        { touch = { region = 'r', kind = 'write' } }, 'join', 'exec', \
        { touch = { region = 'r', size = 4096 } }]\n\
        [[thread]]\nname = 'b'\ninstances = 0\n\
        ops = [{ touch = { region = 'r', size = 8192 } }]";
    assert_eq!(regions(text), [row("a", "r", 1), row("a", "r", 10), row("b-0", "r", 2)]);
}

fn compute_accesses_its_region() {
    if !has_nodes() {
        return;
    }
    for pattern in ["random", "sequential"] {
        let text = format!(
            "[[region]]\nname = 'r'\nsize = '128KiB'\nhuge = false\n[[thread]]\nname = 'a'\n\
             ops = [{{ compute = {{ work = '50ms', region = 'r', memory = 50, size = 65536, \
             pattern = '{pattern}' }} }}]"
        );
        assert_eq!(regions(&text), [row("a", "r", 16)], "{pattern}");
    }
}

/// The refusal comes before anything is made, with its place.
fn unknown_nodes_are_refused() {
    if !has_nodes() {
        return;
    }
    let refused = |program: &Program| {
        executor::run(program, &NativeConfig::default()).unwrap_err().to_string()
    };
    let text = format!("[[region]]\nname = 'r'\nsize = 1\npopulate = '63'\n{TOUCHER}");
    let said = refused(&program(&text));
    assert!(said.starts_with("test.toml:1:1: populate of region \"r\" names node 63"), "{said}");
    let text =
        format!("[[region]]\nname = 'r'\nsize = '1024GiB'\npolicy = {{ bind = '0' }}\n{TOUCHER}");
    let said = refused(&program(&text));
    assert!(said.contains("the nodes that it is bound to (0) have"), "{said}");
}
