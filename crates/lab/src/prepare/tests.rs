// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the preparation of schedulers with the knobs, recipes and tables that a user names.

use super::*;

fn prepare(arg: &str, recipe: RecipeInput) -> Result<PreparedObject, PrepareError> {
    let machine = Machine::resolve("2n4c2t").unwrap();
    let vtime = scxlab_sched::find("vtime").unwrap();
    let input = SchedulerInput::of_object(arg, vtime.object, recipe).unwrap();
    Ok(Prepared::simulated(&input, &machine)?.object.unwrap())
}

fn error(arg: &str) -> String {
    prepare(arg, RecipeInput::Auto).unwrap_err().to_string()
}

const RECIPE: &str = "
    ops = 'vtime'
    doc = 'd.'
    source = 's'
    leaves_out = []
    [params.factor]
    default = 3
    doc = 'd'
    [[step]]
    set = { slice_ns = 'factor * 1_000_000', pull_ns = 'slice_ns' }";

#[test]
fn knobs_are_resolved_with_their_defaults() {
    let object = prepare("vtime,slice_ns=3_000_000", RecipeInput::Auto).unwrap();
    assert_eq!(object.knobs["slice_ns"], "3000000");
    assert_eq!(object.knobs["pull_ns"], "20000000");
    assert_eq!((object.ops_name.as_str(), object.recipe.is_none()), ("vtime", true));
}

#[test]
fn constants_of_the_kernel_are_filled_in() {
    let object = prepare("vtime", RecipeInput::Auto).unwrap();
    assert_eq!(object.open.globals.get("__SCX_SLICE_DFL").unwrap(), "20000000");
}

#[test]
fn a_wrong_knob_lists_what_may_have_been_meant() {
    assert!(error("vtime,slce_ns=1").contains("did you mean slice_ns"));
    assert!(error("vtime,slice_ns=fast").contains("`fast` is no "));
    assert!(error("vtime,slice_ns=-1").contains("does not fit"));
    assert!(error("vtime,ops=other").contains("it has vtime"));
}

#[test]
fn the_user_has_the_last_word_over_a_recipe() {
    let with =
        |arg: &str| prepare(arg, RecipeInput::Text { name: "r.toml".into(), text: RECIPE.into() });
    let object = with("vtime").unwrap();
    assert_eq!((&*object.knobs["slice_ns"], &*object.knobs["pull_ns"]), ("3000000", "3000000"));
    let object = with("vtime,factor=7,pull_ns=1").unwrap();
    assert_eq!((&*object.knobs["slice_ns"], &*object.knobs["pull_ns"]), ("7000000", "1"));
    assert_eq!(object.recipe.unwrap().applied.params, [("factor".to_owned(), 7)]);
    let text = with("vtime,factr=7").unwrap_err().to_string();
    assert!(text.ends_with("its recipe takes factor"), "{text}");
}

#[test]
fn what_is_no_object_is_refused() {
    let machine = Machine::resolve("1n1c1t").unwrap();
    for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
        let input = SchedulerInput::of_object("x.o", bytes, RecipeInput::Auto).unwrap();
        let result = Prepared::simulated(&input, &machine);
        assert!(matches!(result, Err(PrepareError::Object(_))));
    }
}

#[test]
fn of_several_ops_the_first_runs_and_a_note_names_the_others() {
    let vtime = scxlab_sched::find("vtime").unwrap();
    let mut object = Object::parse(vtime.object, "two.bpf.o").unwrap();
    let mut second = object.struct_ops[0].clone();
    second.name = "second".into();
    object.struct_ops.push(second);
    let [vtime, second] = ["vtime_ops", "second"].map(str::to_owned);
    let first = choose_table(&object, None).unwrap();
    assert_eq!(first, (vtime.clone(), vec![second.clone()]));
    let other = choose_table(&object, Some("second")).unwrap();
    assert_eq!(other, (second.clone(), vec![vtime]));
    let mut prepared = prepare("vtime", RecipeInput::Auto).unwrap();
    assert!(prepared.notes().is_empty());
    prepared.unasked = vec![second];
    let [note] = &prepared.notes()[..] else { panic!("{:?}", prepared.notes()) };
    assert!(note.ends_with("the first, vtime_ops, runs; ops= selects another: second"), "{note}");
}
