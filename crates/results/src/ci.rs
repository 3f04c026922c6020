// SPDX-License-Identifier: GPL-2.0-only
//! A comparison in the forms that CI systems read: JUnit's XML, and GitHub's workflow commands.

use std::collections::BTreeMap;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use scxlab_lab::report::document::visible;

use crate::check::{Cell, Finding, Report, Verdict};

/// Returns a report in JUnit's form: a test suite for each workload on a machine, in it a test case
/// for its runs and one for each metric.
pub fn junit(report: &Report) -> String {
    let mut cells: BTreeMap<&Cell, (Vec<String>, Vec<&Finding>)> = BTreeMap::new();
    for lost in &report.lost {
        let what = format!("{}: {}", lost.place(), lost.what);
        cells.entry(&lost.cell).or_default().0.push(what);
    }
    for finding in &report.findings {
        cells.entry(&finding.cell).or_default().1.push(finding);
    }
    let mut out = Writer::new_with_indent(Vec::new(), b' ', 1);
    let mut write = |event: Event<'_>| out.write_event(event).expect("memory takes all");
    write(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
    write(Event::Start(BytesStart::new("testsuites")));
    for (cell, (lost, findings)) in cells {
        let failures = usize::from(!lost.is_empty())
            + findings.iter().filter(|f| f.verdict == Verdict::Regressed).count();
        let skipped = findings.iter().filter(|f| f.verdict == Verdict::Undecided).count();
        let mut suite = BytesStart::new("testsuite");
        suite.push_attribute(("name", &*clean(&cell.to_string())));
        for (name, count) in
            [("tests", findings.len() + 1), ("failures", failures), ("skipped", skipped)]
        {
            suite.push_attribute((name, &*count.to_string()));
        }
        write(Event::Start(suite));
        let case = |name: &str| {
            let mut case = BytesStart::new("testcase");
            case.push_attribute(("name", &*clean(name)));
            case.push_attribute(("classname", &*clean(&cell.to_string())));
            case
        };
        let mut test = |name: &str, kind: Option<&str>, text: &str| {
            let Some(kind) = kind else { return write(Event::Empty(case(name))) };
            write(Event::Start(case(name)));
            let mut element = BytesStart::new(kind);
            element.push_attribute(("message", &*clean(text.lines().next().unwrap_or_default())));
            write(Event::Start(element));
            write(Event::Text(BytesText::new(&clean(text))));
            write(Event::End(BytesEnd::new(kind)));
            write(Event::End(BytesEnd::new("testcase")));
        };
        test("runs", (!lost.is_empty()).then_some("failure"), &lost.join("\n"));
        for finding in findings {
            let kind = match finding.verdict {
                Verdict::Regressed => Some("failure"),
                Verdict::Undecided => Some("skipped"),
                Verdict::Improved | Verdict::Passed => None,
            };
            test(&finding.metric, kind, &finding.text());
        }
        write(Event::End(BytesEnd::new("testsuite")));
    }
    write(Event::End(BytesEnd::new("testsuites")));
    String::from_utf8(out.into_inner()).expect("text") + "\n"
}

/// Returns text without the characters that XML cannot have.
fn clean(text: &str) -> String {
    visible(text).replace(['\u{fffe}', '\u{ffff}'], "?")
}

/// Returns GitHub's annotations: an error for each regression, a warning for each undecided metric.
pub fn github(report: &Report) -> String {
    let mut text = String::new();
    let mut add = |level: &str, title: &str, message: &str| {
        let (title, message) = (property(title), data(message));
        text.push_str(&format!("::{level} title={title}::{message}\n"));
    };
    for lost in &report.lost {
        add(
            "error",
            &format!("scxlab: {}", lost.cell),
            &format!("{}: {}", lost.place(), lost.what),
        );
    }
    for finding in &report.findings {
        let title = format!("scxlab: {} of {}", finding.metric, finding.cell);
        match finding.verdict {
            Verdict::Regressed => add("error", &title, &finding.text()),
            Verdict::Undecided => add("warning", &title, &format!("undecided: {}", finding.text())),
            Verdict::Improved | Verdict::Passed => {}
        }
    }
    text
}

/// Escapes the text of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
