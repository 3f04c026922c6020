// SPDX-License-Identifier: GPL-2.0-only
//! Tests of dbench's use of memory.

use super::*;
use crate::program::{Op, TimeSpan};

#[test]
fn memory_is_in_the_page_cache() {
    assert!(error("dbench,memory=20").contains("beside cache=MIB"));
    let work = |arg: &str| -> Vec<Option<(String, u64)>> {
        let program = program(arg);
        let client = program.threads.iter().find(|t| t.name == "client").unwrap();
        let [Op::Loop { ops, .. }] = &client.ops[..] else { panic!("{:?}", client.ops) };
        let memory = ops.iter().filter_map(|op| match op {
            Op::Compute(work) if work.work == TimeSpan(15_000) => Some(&work.memory),
            _ => None,
        });
        memory.map(|m| m.as_ref().map(|m| (m.region.clone(), m.percent))).collect()
    };
    assert_eq!(work("dbench,cache=64"), [const { None }; 81]);
    let some = vec![Some(("cache".to_owned(), 20)); 81];
    assert_eq!(work("dbench,cache=64,memory=20"), some);
}

#[test]
fn a_flush_of_files_in_memory_waits_for_nothing() {
    let waits = |arg: &str| {
        let program = program(arg);
        let waits = |ops: &[Op]| ops.iter().filter(|op| matches!(op, Op::Wait { .. })).count();
        let in_loop = |op: &Op| match op {
            Op::Loop { ops, .. } => waits(ops),
            _ => 0,
        };
        program.threads.iter().map(|t| t.ops.iter().map(in_loop).sum()).collect::<Vec<usize>>()
    };
    assert_eq!(waits("dbench"), [1, 1], "the journal and a client");
    assert_eq!(waits("dbench,commit=0"), [0]);
}
