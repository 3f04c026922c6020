// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the syntax of the `-s` argument.

use super::*;

fn error(text: &str) -> String {
    SchedulerArg::parse(text).unwrap_err().to_string()
}

#[test]
fn knobs_and_reserved_words_are_told_apart() {
    let arg = SchedulerArg::parse("a/b.bpf.o, x=1 ,name=\"p,q\",recipe=none,ops=two").unwrap();
    let knobs = [("x".to_owned(), "1".to_owned()), ("name".to_owned(), "\"p,q\"".to_owned())];
    assert_eq!(arg.knobs, knobs);
    assert_eq!((arg.recipe.as_deref(), arg.ops.as_deref()), (Some("none"), Some("two")));
    assert!(!arg.is_default_class());
}

#[test]
fn what_cannot_be_meant_is_refused() {
    assert!(error(",x=1").contains("has no name"));
    assert!(error("vtime,x").contains("x=VALUE"));
    assert!(error("vtime,x=1,x=2").contains("\"x\" is given twice"));
    assert!(error("vtime,recipe=a,recipe=b").contains("given twice"));
    assert!(error("eevdf,slice_ns=1").contains("no tunable \"slice_ns\"; it has base_slice_ns, "));
    assert!(error("eevdf,base_slice_ns=1").contains("from 100000 to 1000000000, not \"1\""));
    assert!(error("eevdf,NEXT_BUDDY=yes").contains("from 0 to 1"));
    assert!(error("eevdf,recipe=none").contains("no recipe"));
}

#[test]
fn the_default_class_has_tunables() {
    let arg = SchedulerArg::parse("eevdf,base_slice_ns=3000000,NEXT_BUDDY=1").unwrap();
    let set: Vec<_> = arg.tuning().iter().map(|(tunable, value)| tunable.text(*value)).collect();
    assert_eq!(set, ["3000000", "NEXT_BUDDY"]);
    assert!(SchedulerArg::parse("vtime,base_slice_ns=3000000").unwrap().tuning().is_empty());
}

#[test]
fn a_path_has_a_short_form() {
    let short = |text| SchedulerArg::parse(text).unwrap().short();
    assert_eq!(short("build/x/bpfland.bpf.o,slice_max=1"), "bpfland,slice_max=1");
    assert_eq!(short("vtime"), "vtime");
    assert_eq!(short("x.o,recipe=a/b.toml"), "x,recipe=a/b.toml");
}
