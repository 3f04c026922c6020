// SPDX-License-Identifier: GPL-2.0-only
//! Tests of what reports say of a kernel function call: its frames, and source lines of inlined
//! code.

use super::*;

fn traced(text: &str, nested: Option<(&str, KfuncId)>) -> Vec<Vec<String>> {
    let (mut h, instance) = host(text);
    h.kfuncs.extend([(KfuncId(1), 0), (KfuncId(2), 0)]);
    if let Some((inner, kfunc)) = nested {
        let second = h.vm.add_instance("second");
        h.install_text(second, inner, Default::default()).expect("program");
        h.nested = Some((kfunc, second, FuncId(0)));
    }
    assert_eq!(h.vm.call_site(), None);
    h.run(instance, "main", [0; 5]).expect(text);
    assert_eq!(h.vm.call_site(), None);
    let frame = |place: &BacktraceFrame| format!("{}+{}", place.func_name, place.insn);
    h.traces.iter().map(|trace| trace.iter().map(frame).collect()).collect()
}

#[test]
fn a_call_has_the_frames_that_led_to_it() {
    let text = "\
        func main:
        call $1
        call first
        r2 = second ll
        callx r2
        call $1
        r0 = 0
        exit
        func first:
        r6 = 1
        call second
        call $1
        exit
        func second:
        call $1
        exit";
    assert_eq!(
        traced(text, None),
        [
            vec!["main+0"],
            vec!["second+0", "first+1", "main+1"],
            vec!["first+2", "main+1"],
            vec!["second+0", "main+4"],
            vec!["main+5"],
        ]
    );
}

#[test]
fn a_callback_has_the_helpers_caller() {
    let text = "\
        func main:
        call loop
        exit
        func loop:
        r1 = 2
        r2 = body ll
        r3 = 0
        r4 = 0
        call 181
        call $1
        r0 = 0
        exit
        func body:
        call $1
        r0 = 0
        exit";
    let body = vec!["body+0", "loop+5", "main+0"];
    assert_eq!(traced(text, None), [body.clone(), body, vec!["loop+6", "main+0"]]);
}

/// A program that runs inside a call has frames of its own. After the program returns, a report
/// shows the outer call's frames again.
#[test]
fn a_nested_program_is_told_from_the_outer_one() {
    let outer = "func main:\ncall below\nexit\nfunc below:\ncall $2\ncall $1\nexit";
    let inner = "func other:\ncall $1\ncall deeper\nexit\nfunc deeper:\ncall $1\nexit";
    assert_eq!(
        traced(outer, Some((inner, KfuncId(2)))),
        [
            vec!["other+0"],
            vec!["deeper+0", "other+1"],
            vec!["below+0", "main+0"],
            vec!["below+1", "main+0"],
        ]
    );
}

/// The report of a slot inlined from another file must name the lines of the function's own file
/// that may have led to the slot.
#[test]
fn an_inlined_call_has_the_line_that_leads_to_it() {
    let text = "\
        if r1 == 0 goto second
        r2 = 1
        goto inlined
        second:
        r2 = 2
        inlined:
        r3 = 3
        r0 = *(u64 *)(r1 + 0)
        exit";
    let (mut h, instance) = host(text);
    let line = |pc, file: &str, line, text: &str| Line {
        pc,
        file: file.into(),
        line,
        text: text.into(),
    };
    let place = |h: &mut BareHost, lines: Vec<Line>| {
        let mut image = (*h.vm.instance(instance).expect("instance").image).clone();
        image.lines = lines;
        h.vm.install(instance, InstanceParts { image: image.into(), ..InstanceParts::default() });
        let image = h.vm.instance(instance).expect("instance").image();
        image.source_at(5).expect("line information")
    };
    let own = [line(0, "x.c", 1, "if (a)"), line(1, "x.c", 2, "one();"), line(3, "x.c", 4, "")];
    let inlined = |pc| line(pc, "y.h", 9, "load");
    let all = [&own[..], &[inlined(4)]].concat();
    assert_eq!(place(&mut h, all), "y.h:9, at or after x.c:2 or 4");
    // Only one path has a line of its own after the branch. For the other path, the report must
    // name the line of the branch itself.
    let one = vec![own[0].clone(), own[1].clone(), inlined(3)];
    assert_eq!(place(&mut h, one), "y.h:9, at or after x.c:1 or 2");
    let alone = vec![own[0].clone(), inlined(1)];
    assert_eq!(place(&mut h, alone), "y.h:9, at or after x.c:1");
    assert_eq!(place(&mut h, own.to_vec()), "x.c:4");
    assert_eq!(place(&mut h, vec![inlined(0)]), "y.h:9: load");
}
