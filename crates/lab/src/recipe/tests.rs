// SPDX-License-Identifier: GPL-2.0-only
//! The format of recipes, and their effect on a small object. `tests/recipes.rs` tests real
//! schedulers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use scxlab_loader::link::OpenObject;
use scxlab_loader::link::Target;
use scxlab_loader::object::Object;
use scxlab_machine::Machine;

use super::*;
use crate::sim::kernel_target;

const HEAD: &str = "doc = 'd'\nsource = 's'\nleaves_out = []\n";

fn parse_error(body: &str) -> String {
    Recipe::parse("r.toml", &format!("{HEAD}{body}")).unwrap_err().to_string()
}

/// Applies a recipe to the shipped scheduler `vtime` on the machine 2n4c2t, which has 16 CPUs.
fn apply(body: &str, given: &[(&str, &str)]) -> Result<OpenObject, RecipeError> {
    let mut recipe = Recipe::parse("r.toml", &format!("{HEAD}{body}"))?;
    let bytes = scxlab_sched::find("vtime").unwrap().object;
    let mut open = OpenObject::new(Arc::new(Object::parse(bytes, "vtime").unwrap()));
    let machine = Arc::new(Machine::resolve("2n4c2t").unwrap());
    let target = kernel_target(&machine).unwrap();
    let table = open.tables[0].name().to_owned();
    let subject = Subject { machine: &machine, kernel: target.btf(), table: &table };
    let given: Vec<_> = given.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    recipe.fit(open.object());
    recipe.prepare(subject, &mut open, &given)?;
    Ok(open)
}

fn apply_error(body: &str) -> String {
    apply(body, &[]).unwrap_err().to_string()
}

fn files(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(folder);
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    files
}

#[test]
fn shipped_recipes_load_and_the_list_is_complete() {
    let names: Vec<&str> = shipped().iter().map(|(name, _)| *name).collect();
    assert_eq!(files(""), names);
    for name in names {
        let (recipe, _) = find(name).unwrap();
        assert!(recipe.doc.ends_with('.') && !recipe.source.is_empty(), "{name}");
        assert_eq!(for_ops(recipe.ops.as_deref().unwrap()).unwrap().0.name, recipe.name);
    }
    assert!(for_ops("nothing").is_none());
    for name in files("shared") {
        let name = format!("shared/{name}");
        let recipe = Recipe::parse(&name, shipped::text(&name).unwrap()).unwrap();
        assert!(recipe.ops.is_none() && find(&name).is_none(), "{name} is no recipe of its own");
    }
}

#[test]
fn a_malformed_recipe_says_where() {
    assert!(parse_error("[[step]]\nsett = {}").starts_with("r.toml:5: unknown field `sett`"));
    assert!(parse_error("[[step]]\nwhen = 1").contains("must have one of require, let, set"));
    assert!(parse_error("[[step]]\nset = {}\nops = {}").contains("this one has set and ops"));
    assert!(parse_error("[[step]]\nset = { a = '1 +' }").starts_with("r.toml:5: \"1 +\": the end"));
    assert!(parse_error("[[step]]\nset = { 'a[1' = 1 }").contains("the end where \"]\" should be"));
    assert!(parse_error("[[step]]\nlet = { 'a b' = 1 }").contains("the end should be"));
    assert!(parse_error("[[step]]\nupdate = 'm'\nkey = 0").contains("\"update\" needs \"value\""));
    assert!(
        parse_error("[[step]]\ninto = { a = 'b' }\nset = {}")
            .contains("only together with \"run\"")
    );
    assert!(parse_error("[[step]]\ninclude = 'no'").contains("\"no\" is no shipped recipe"));
    assert!(
        parse_error("[[step]]\nwhen = 1\ninclude = 'pair'").contains("takes no each, when or sort")
    );
    assert!(
        parse_error("[[step]]\nattach = true\n[[step]]\nattach = true")
            .starts_with("r.toml:6: the recipe attaches the scheduler twice")
    );
    assert!(
        parse_error("[[step]]\neach = 'cpus'\nset = {}")
            .contains("neither cpu, core, llc, node nor NAME")
    );
    assert!(
        parse_error("[[step]]\nctx = { a = 1 }\nset = {}")
            .contains("\"ctx\" is allowed only together with \"run\"")
    );
    assert!(
        parse_error("[[step]]\nrun = 'p'\n[[step]]\nops = { a = 1 }")
            .starts_with("r.toml:6: this step must come before")
    );
    assert!(parse_error("[[step]]\nset = { a = 1.5 }").contains("r.toml:5"));
    assert!(Recipe::parse("r.toml", "doc = 'd'").unwrap_err().to_string().contains("source"));
    let silent = Recipe::parse("r.toml", "doc = 'd'\nsource = 's'").unwrap_err();
    assert!(silent.to_string().contains("leaves_out"), "{silent}");
}

#[test]
fn globals_are_set_from_facts_and_parameters() {
    let body = "
        [params.n]
        default = 'nr_cpus * 2'
        doc = 'a number'
        [[step]]
        set = { slice_ns = 'n * 1_000', 'no_such?' = 1 }
        [[step]]
        when = 'smt'
        set = { pull_ns = 'SCX_SLICE_DFL + slice_ns' }
        [[step]]
        when = '!smt'
        set = { pull_ns = 0 }";
    let open = apply(body, &[]).unwrap();
    assert_eq!(open.globals.get("slice_ns").unwrap(), "32000");
    // A later step sees the values that an earlier step has set.
    assert_eq!(open.globals.get("pull_ns").unwrap(), "20032000");
    let open = apply(body, &[("n", "0x10")]).unwrap();
    assert_eq!(open.globals.get("slice_ns").unwrap(), "16000");
}

#[test]
fn loops_reach_each_element() {
    let body = "
        [[step]]
        each = 'cpu'
        when = 'cpu % 2 == 1'
        set = { 'cpu_llc[cpu]' = 'llc(cpu) * 100 + thread(cpu)' }
        [[step]]
        each = ['node', 'i < 3']
        set = { 'last_peer[node * 3 + i]' = '10 * node + i' }";
    let open = apply(body, &[]).unwrap();
    let get = |path: &str| open.globals.get(path).unwrap();
    assert_eq!(
        (get("cpu_llc[1]"), get("cpu_llc[2]"), get("cpu_llc[15]")),
        ("1".into(), "0".into(), "101".into())
    );
    assert_eq!(
        (get("last_peer[2]"), get("last_peer[3]"), get("last_peer[5]")),
        ("2".into(), "10".into(), "12".into())
    );
}

#[test]
fn the_ops_table_is_set_with_the_kernels_names() {
    let body =
        "[[step]]\nops = { flags = 'SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING', timeout_ms = 5000 }";
    let open = apply(body, &[]).unwrap();
    let btf = &open.object().btf;
    assert_eq!(open.tables[0].get(btf, "flags").unwrap(), "6");
    assert_eq!(open.tables[0].get(btf, "timeout_ms").unwrap(), "5000");
}

#[test]
fn what_does_not_fit_the_object_is_an_error_with_a_place() {
    assert!(apply_error("[[step]]\nset = { slice_n = 1 }").contains("did you mean slice_ns"));
    assert!(apply_error("[[step]]\nset = { slice_ns = -1 }").contains("does not fit"));
    assert!(
        apply_error("[[step]]\nset = { slice_ns = 'nr_cpu' }").contains("did you mean nr_cpus")
    );
    assert!(
        apply_error("[[step]]\nset = { slice_ns = 'llc(16)' }")
            .contains("the machine has CPUs 0 to 15")
    );
    assert!(apply_error("[[step]]\nset = { 'slice_ns?' = 'llc(16)' }").contains("CPUs 0 to 15"));
    assert!(apply_error("[[step]]\nops = { flag = 1 }").contains("did you mean flags"));
    assert!(
        apply_error("[[step]]\nmax_entries = { m = 1 }")
            .contains("object \"vtime\" has no map `m`")
    );
    assert!(apply_error("[[step]]\nautoload = { p = 1 }").contains("vtime_enqueue"));
    assert!(apply_error("[[step]]\nresize = { slice_ns = 4 }").contains("not an array"));
    assert!(
        apply_error("[[step]]\nrequire = 'nr_nodes == 1'\nmessage = 'one node only'")
            .ends_with("one node only")
    );
    assert!(
        apply_error("[[step]]\neach = ['a < 1 << 20', 'b < 1 << 20']\nset = {}")
            .contains("iterations")
    );
}

#[test]
fn variables_keep_numbers_and_tables() {
    let body = "
        [[step]]
        let = { sum = 0, next = 'sum + 1' }
        [[step]]
        each = 'cpu'
        let = { 'square[cpu]' = 'cpu * cpu', sum = 'sum + square[cpu]' }
        [[step]]
        each = ['a < 3', 'b < a']
        let = { 'pair[a][b]' = '10 * a + b' }
        [[step]]
        set = { slice_ns = 'sum * next', 'last_peer[square[2]]' = 'pair[2][1]' }";
    let open = apply(body, &[]).unwrap();
    let get = |path: &str| open.globals.get(path).unwrap();
    // 1240 is the sum of the squares of 0 to 15, the numbers of the machine's CPUs.
    assert_eq!((get("slice_ns"), get("last_peer[4]")), ("1240".into(), "21".into()));
    let error = |step: &str| apply_error(&format!("[[step]]\nlet = {{ 't[1]' = 5 }}\n{step}"));
    let unassigned = error("[[step]]\nset = { slice_ns = 't[2]' }");
    assert!(unassigned.contains("`t[2]` has no value: nothing was assigned to it"), "{unassigned}");
    assert!(error("[[step]]\nset = { slice_ns = 't.a' }").contains("has no fields"));
    assert!(error("[[step]]\nset = { slice_ns = 'tt[1]' }").contains("did you mean t"));
    // `set` looks up the object's variables only, and so does not find a variable of the recipe.
    assert!(error("[[step]]\nset = { 't[1]' = 3 }").contains("no variable `t`"));
    assert!(error("[[step]]\nlet = { 'x?' = 3 }").contains("no variable of a recipe"));
}

/// A step with `sort` evaluates the conditions and keys of all iterations first. Iterations with
/// equal keys keep their order. `nth` counts the iterations.
#[test]
fn passes_are_put_in_order() {
    let body = "
        [[step]]
        each = 'i < 6'
        when = 'i != 3'
        sort = ['i % 2', '-i']
        set = { 'last_peer[nth]' = '100 + i' }";
    let open = apply(body, &[]).unwrap();
    let shown: Vec<String> =
        (0..5).map(|at| open.globals.get(&format!("last_peer[{at}]")).unwrap()).collect();
    assert_eq!(shown, ["104", "102", "100", "105", "101"]);
}

/// Included steps take the place of the include step, and included parameters are added; the
/// including recipe's own parameters have precedence.
#[test]
fn recipes_include_others() {
    let body = "
        [params.optimize]
        default = 7
        doc = 'another default'
        [[step]]
        include = 'chaos'";
    let recipe = Recipe::parse("r.toml", &format!("{HEAD}{body}")).unwrap();
    let names: Vec<&str> = recipe.params.iter().map(|p| p.name.as_str()).collect();
    assert_eq!((names[0], recipe.params[0].default_text()), ("optimize", "7"));
    assert!(names.contains(&"delay_chance"));
    assert!(recipe.leaves_out.contains(&"CPU frequencies".to_owned()), "what that leaves out, too");
    // The recipe chaos includes p2dq, which includes shared/arena. An error must name the file that
    // contains the failing step, here chaos.
    let error = apply(body, &[]).unwrap_err();
    assert_eq!(error.recipe, "recipes/chaos.toml");
    let phases: Vec<Phase> = recipe.steps.iter().map(|s| s.phase).collect();
    assert!(phases.is_sorted() && phases.contains(&Phase::Loaded));
}

#[test]
fn a_callback_can_be_taken_away() {
    let open = apply("[[step]]\nops = { select_cpu = 0 }", &[]).unwrap();
    let table = open.tables[0].table();
    let member = table.members.iter().find(|m| m.name == "select_cpu").unwrap();
    assert!(format!("{:?}", member.kind).contains("None"), "{:?}", member.kind);
    let error = apply_error("[[step]]\nops = { select_cpu = 1 }");
    assert!(error.contains("is a callback"), "{error}");
}

/// Parts whose name ends in `?` are removed if the object lacks them, and each name is reported
/// once. All other parts stay and must exist.
#[test]
fn a_recipe_is_fitted_to_an_object() {
    let body = "
        [[step]]
        set = { slice_ns = 7, 'newer?' = 1, 'newer[3]?' = 1, 'cfg.newer?' = 1, 'pull_ns?' = 9 }
        [[step]]
        max_entries = { 'table?' = 5 }
        [[step]]
        resize = { 'newest?' = 5 }
        [[step]]
        autoload = { 'program?' = false }
        [[step]]
        let = { there = 'exists(slice_ns) + 10 * exists(vtime_enqueue) + 100 * exists(newer)' }
        [[step]]
        set = { slice_ns = 'there' }
        [[step]]
        each = 'cpu'
        update = 'table?'
        key = 'cpu'
        value = 0
        [[step]]
        run = 'prepare?'";
    let mut recipe = Recipe::parse("r.toml", &format!("{HEAD}{body}")).unwrap();
    let bytes = scxlab_sched::find("vtime").unwrap().object;
    let object = Object::parse(bytes, "vtime").unwrap();
    let absent = recipe.fit(&object);
    assert_eq!(absent, ["newer", "cfg.newer", "table", "newest", "program", "prepare"]);
    assert_eq!(recipe.steps.len(), 3, "the settings that fit, and the variable");
    assert!(recipe.fit(&object).is_empty(), "nothing is left to take out");
    let open = apply(body, &[]).unwrap();
    assert_eq!(open.globals.get("slice_ns").unwrap(), "11");
    assert_eq!(open.globals.get("pull_ns").unwrap(), "9");
}

/// A parameter may be a set of CPUs. For a parameter `some`, `some[cpu]` then tells whether the CPU
/// is in the set, and `nr_some` is the number of CPUs in the set.
#[test]
fn sets_of_cpus_are_given_as_lists() {
    let body = "
        [params.some]
        cpus = 'none'
        doc = 'some CPUs'
        [[step]]
        each = 'cpu'
        set = { 'cpu_llc[cpu]' = 'some[cpu]' }
        [[step]]
        set = { slice_ns = 'nr_some' }";
    let chosen = |list: &str| {
        let open = apply(body, &[("some", list)]).unwrap();
        let is_in = |cpu: &u32| open.globals.get(&format!("cpu_llc[{cpu}]")).unwrap() == "1";
        let cpus: Vec<u32> = (0..16).filter(is_in).collect();
        assert_eq!(open.globals.get("slice_ns").unwrap(), cpus.len().to_string());
        cpus
    };
    assert_eq!(chosen("\"0-2,15,1\""), [0, 1, 2, 15]);
    assert_eq!(chosen("all").len(), 16);
    assert!(chosen("none").is_empty() && chosen("").is_empty());
    assert_eq!(apply(body, &[]).unwrap().globals.get("slice_ns").unwrap(), "0");
    let error = |list: &str| apply(body, &[("some", list)]).map(drop).unwrap_err().to_string();
    assert_eq!(error("3-16"), "r.toml:5: `some=3-16`: the machine has CPUs 0 to 15, not 16");
    assert!(error("0x0f").contains("a list of CPUs is like 0-3,8, all or none"));
    let both = "[params.p]\ndefault = 0\ncpus = 'all'\ndoc = 'd'";
    assert!(parse_error(both).contains("either \"default\", a number, or \"cpus\""));
    assert!(parse_error("[params.p]\ndoc = 'd'").contains("either \"default\""));
}

/// If the object lacks a name that the recipe uses, the message states the versions that the recipe
/// is for, and the user's alternatives.
#[test]
fn what_an_object_lacks_is_said_with_the_versions() {
    let head = "doc = 'd'\nsource = 's'\nleaves_out = []\nversions = ['2.1', '2.0']\n";
    let bytes = scxlab_sched::find("vtime").unwrap().object;
    let object = Arc::new(Object::parse(bytes, "vtime").unwrap());
    let machine = Arc::new(Machine::resolve("2n4c2t").unwrap());
    let target = kernel_target(&machine).unwrap();
    let error = |body: &str| {
        let recipe = Recipe::parse("r.toml", &format!("{head}{body}")).unwrap();
        let mut open = OpenObject::new(object.clone());
        let subject = Subject { machine: &machine, kernel: target.btf(), table: "vtime_ops" };
        recipe.prepare(subject, &mut open, &[]).map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        error("[[step]]\nset = { no_such = 1 }"),
        "r.toml:6: object \"vtime\" has no variable `no_such`. The recipe is for versions 2.1, 2.0 of the scheduler; -s \
         OBJECT,recipe=none runs the object without what its frontend does, and recipe=FILE with a recipe of yours"
    );
    assert!(error("[[step]]\nmax_entries = { m = 1 }").contains("for versions 2.1, 2.0"));
    assert!(error("[[step]]\nlet = { a = 'no_such' }").contains("for versions 2.1, 2.0"));
    let value = error("[[step]]\nset = { slice_ns = -1 }");
    assert!(!value.contains("for versions"), "the object is right: {value}");
}
