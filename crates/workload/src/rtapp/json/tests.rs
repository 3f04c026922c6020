// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the parser alone: the leniencies of json-c, and syntax errors.

use super::*;

fn error(text: &str) -> String {
    parse(0, "f", text).unwrap_err().to_string()
}

fn keys(text: &str) -> Vec<String> {
    match parse(0, "f", text).unwrap().value {
        Value::Object(members) => members.into_iter().map(|m| m.key).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn repeated_keys_stay_in_order() {
    assert_eq!(keys(r#"{ "run": 1, "sleep": 2, "run": 3 }"#), ["run", "sleep", "run"]);
}

#[test]
fn json_c_leniencies_are_taken() {
    let text =
        "\u{feff}/* c */ { // d\n 'a' : TRUE, \"b\" : [1, 2-3, ], \"c\", /**/ \"d\": Null, }\n";
    assert_eq!(keys(text), ["a", "b", "c", "d"]);
    let node = parse(0, "f", r#"["\u0041\n\"", -5]"#).unwrap();
    let Value::Array(items) = node.value else { panic!() };
    assert_eq!(items[0].value, Value::String("A\n\"".into()));
    assert_eq!((items[1].value.clone(), items[1].pos.offset), (Value::Number("-5".into()), 15));
}

#[test]
fn errors_say_where_and_what_should_be_there() {
    assert_eq!(error("{ \"a\" 1 }"), "f:1:7: '1' where a colon after the key should be");
    assert_eq!(error("{\n \"a\": 1\n \"b\": 2 }"), "f:3:2: '\"' where , or } should be");
    assert_eq!(error("[1, 2"), "f:1:6: the end of the file where , or ] should be");
    assert_eq!(error("{ \"a\": x }"), "f:1:8: 'x' where a value should be");
    assert_eq!(error("{} {}"), "f:1:4: '{' where the end of the file should be");
    assert_eq!(error(""), "f:1:1: the end of the file where a value should be");
    assert!(error("{ /* never").contains("a comment with an end"));
    assert!(error("\"abc").contains("a string that ends on its line"));
    assert!(error("\"\\q\"").contains("escapes"));
    assert!(error("\"\\u12\"").contains("four hexadecimal digits"));
}

#[test]
fn nesting_is_bounded() {
    let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
    assert!(parse(0, "f", &deep(32)).is_ok());
    assert!(error(&deep(33)).contains("less than 32 levels deep"));
    assert!(error(&"[".repeat(1_000_000)).contains("less than 32 levels deep"));
}
