// SPDX-License-Identifier: GPL-2.0-only
//! Every object that the kernel ships for sched_ext behaves as `docs/reference/kernel-objects.md`
//! says.
//!
//! The objects come from `make kernel-objects`; if they are missing, each test fails with a message
//! that names this command.

use scxlab_testkit::kernel_objects::{EXAMPLES, KernelObjectTest, SELFTESTS, objects_dir, table};

fn check(name: &str) {
    let find = |c: &&KernelObjectTest| c.name == name;
    let case = EXAMPLES.iter().chain(&SELFTESTS).find(find).expect("a case of that name");
    case.check();
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        /// Names of the cases for which this macro defines tests.
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests! {
    scx_simple scx_cpu0 scx_central scx_flatcg scx_pair scx_sdt scx_userland scx_qmap
    allowed_cpus create_dsq cyclic_kick_wait ddsp_bogus_dsq_fail ddsp_vtimelocal_fail dequeue dequeue_iter
    dequeue_remote dsp_local_on enable_cmask enq_last_no_enq_fails enq_select_cpu exit hotplug init_enable_count
    maximal reload_loop maybe_null maybe_null_fail_dsp maybe_null_fail_yld minimal total_bw nohz_tick
    non_scx_kfunc_deny numa peek_dsq prog_run rt_stall select_cpu_dfl select_cpu_dfl_nodispatch select_cpu_dispatch
    select_cpu_dispatch_bad_dsq select_cpu_dispatch_dbl_dsp select_cpu_vtime
}

#[test]
fn every_case_has_a_test() {
    let cases: Vec<&str> = EXAMPLES.iter().chain(&SELFTESTS).map(|c| c.name).collect();
    assert_eq!(cases, TESTED);
}

/// Every compiled object of the kernel has a case.
#[test]
fn every_object_has_a_case() {
    let dir = objects_dir();
    let files = std::fs::read_dir(&dir).unwrap_or_else(|error| {
        panic!("{}: {error}; `make kernel-objects` compiles the kernel's objects", dir.display())
    });
    for file in files {
        let name = file.expect("a directory entry").file_name().to_string_lossy().into_owned();
        let Some(object) = name.strip_suffix(".bpf.o") else {
            continue;
        };
        let known = EXAMPLES.iter().chain(&SELFTESTS).any(|c| c.object == object);
        assert!(known, "{name} has no test");
    }
}

#[test]
fn table_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/kernel-objects.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(std::path::Path::new(path).parent().expect("a folder"))
            .expect("docs/reference");
        std::fs::write(path, table()).expect("the table");
    }
    let shown = std::fs::read_to_string(path).unwrap_or_default();
    let hint = "BLESS=1 cargo test -p scxlab-testkit --test kernel_objects rewrites it";
    assert!(shown == table(), "docs/reference/kernel-objects.md is stale; {hint}");
}
