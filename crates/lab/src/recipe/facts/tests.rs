// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the facts of known machines, and of the reference page, which must list every fact.

use std::sync::Arc;

use scxlab_loader::link::OpenObject;

use super::super::expr::Expr;
use super::*;

fn value(machine: &str, formula: &str) -> Result<i128, ExprError> {
    let machine = Machine::resolve(machine).unwrap();
    let bytes = scxlab_sched::find("vtime").unwrap().object;
    let open = OpenObject::new(Arc::new(Object::parse(bytes, "vtime").unwrap()));
    let mut vars = Vars::default();
    vars.set("table", vec![1, 2], 12);
    vars.set("two", vec![], 2);
    let scope = Scope {
        machine: &machine,
        kernel: &Btf::empty(),
        object: open.object(),
        globals: View::Open(&open.globals),
        params: &[("two".into(), 99)],
        vars: &vars,
        locals: &[("cpu".into(), 3), ("cpu".into(), 5)],
    };
    Expr::parse(formula)?.value(&scope)
}

#[test]
fn facts_of_a_two_node_machine() {
    for (formula, expected) in [
        ("nr_cpus", 16),
        ("nr_cores", 8),
        ("nr_llcs", 2),
        ("nr_nodes", 2),
        ("smt", 1),
        ("asymmetric", 0),
        ("tick_hz", 250),
        ("core(15)", 7),
        ("llc(8)", 1),
        ("node(7)", 0),
        ("thread(3)", 1),
        ("sibling(2)", 3),
        ("sibling(3)", 2),
        ("capacity(0)", 1024),
        ("by_capacity(9)", 9),
        ("core_llc(7)", 1),
        ("llc_node(1)", 1),
        ("core_cpus(0)", 2),
        ("llc_cpus(1)", 8),
        ("node_cpus(1)", 8),
        ("core_cpu(3, 1)", 7),
        ("llc_cpu(1, 0)", 8),
        ("node_cpu(1, 7)", 15),
        ("core_mask(1, 0)", 12),
        ("llc_mask(1, 0)", 0xff00),
        ("node_mask(0, 0)", 0xff),
        ("node_mask(0, 1)", 0),
        ("node_distance(0, 1)", 20),
        ("min(3, 4)", 3),
        ("max(3, 4)", 4),
        ("log2(1)", 0),
        ("log2(17)", 4),
        ("log2(0)", -1),
        ("idle_exit_ns(0) >= 0 && nr_idle_states > 0", 1),
        // The formulas above use facts of the machine, and functions. Those below use the innermost
        // loop variable, a variable with the name of a parameter, an element of a table, a type's
        // size, and a variable of the object.
        ("cpu", 5),
        ("two", 2),
        ("table[1][two]", 12),
        ("sizeof(u64) + sizeof(task_struct) * 0", 8),
        ("slice_ns", 5_000_000),
    ] {
        assert_eq!(value("2n4c2t", formula), Ok(expected), "{formula}");
    }
    assert!(value("2n4c2t", "llc_bytes(0)").unwrap() > 0);
}

#[test]
fn the_fastest_cpus_come_first() {
    let slow = value("hybrid-8p8e", "by_capacity(nr_cpus - 1)").unwrap();
    let capacity = |cpu: i128| value("hybrid-8p8e", &format!("capacity({cpu})")).unwrap();
    let fast = value("hybrid-8p8e", "by_capacity(0)").unwrap();
    assert!(capacity(fast) > capacity(slow));
    assert_eq!(value("hybrid-8p8e", "asymmetric"), Ok(1));
    // `sibling` is -1 for a CPU whose core has one thread.
    assert_eq!(value("2n4c1t", "sibling(1)"), Ok(-1));
}

#[test]
fn questions_about_what_is_not_there_are_errors() {
    for formula in [
        "llc(-1)",
        "core(16)",
        "node_cpus(2)",
        "core_cpu(0, 2)",
        "llc_cpu(0, -1)",
        "by_capacity(99)",
    ] {
        assert!(matches!(value("2n4c2t", formula), Err(ExprError::OutOfRange { .. })), "{formula}");
    }
    let error = |formula| value("2n4c2t", formula).unwrap_err().to_string();
    assert!(error("lc(0)").contains("there are core, llc"));
    assert!(error("llc(0, 1)").contains("takes 1 arguments, not 2"));
    assert!(error("nr_llc").contains("did you mean nr_llcs"));
    assert!(error("table[9]").contains("`table[9]` has no value: nothing was assigned"));
    assert!(error("slice_ns.a").contains("`slice_ns.a` has no value"));
    assert!(error("sizeof(no_such)").contains("the object has no such type"));
}

#[test]
fn the_reference_page_names_every_fact_and_function() {
    let page = include_str!("../../../../../docs/reference/recipes.md");
    for fact in FACTS {
        assert!(page.contains(&format!("`{fact}`")), "{fact}");
    }
    for (function, _) in FUNCTIONS {
        assert!(page.contains(&format!("`{function}(")), "{function}");
    }
}
