// SPDX-License-Identifier: GPL-2.0-only
//! Tests of formulas: precedence, arithmetic at its limits, and malformed input.

use super::*;

struct Two;

impl NameResolver for Two {
    fn name(&self, name: &str) -> Result<i128, ExprError> {
        match name {
            "two" => Ok(2),
            _ => Err(ExprError::NoName { name: name.into(), candidates: vec!["two".into()] }),
        }
    }

    /// Returns 10 i + j for `row[i][j]`, 7 for `row.field`.
    fn part(&self, name: &str, steps: &[PathStep]) -> Result<i128, ExprError> {
        assert_eq!(name, "row");
        Ok(steps.iter().fold(0, |sum, step| match step {
            PathStep::Index(index) => sum * 10 + index,
            PathStep::Field(field) => {
                assert_eq!(field, "field");
                7
            }
        }))
    }

    fn call(&self, name: &str, args: &[i128]) -> Result<i128, ExprError> {
        assert_eq!(name, "sum");
        Ok(args.iter().sum())
    }

    fn exists(&self, name: &str) -> bool {
        name == "seven"
    }

    fn size_of(&self, ty: &str) -> Result<i128, ExprError> {
        Ok(ty.len() as i128)
    }
}

fn value(text: &str) -> Result<i128, ExprError> {
    Expr::parse(text)?.value(&Two)
}

#[test]
fn operators_bind_as_in_c() {
    for (text, expected) in [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("1 << 4 | 1", 17),
        ("6 & 3 == 3", 0),
        ("1 || 0 && 0", 1),
        ("two > 1 ? 10 : 20", 10),
        ("0 ? 1 : 0 ? 2 : 3", 3),
        ("-two + 5", 3),
        ("!two", 0),
        ("~0", -1),
        ("7 % 4 / 2", 1),
        ("1 < 2 == 1", 1),
        ("0x10 + 1_000", 1016),
        ("sum(1, two, 3)", 6),
        ("sum()", 0),
        ("8 >> 1 >= 4", 1),
        ("5 != 5", 0),
        ("row[two + 1] * 2", 6),
        ("row [ row[1] ][4] + 1", 15),
        ("row.field % 4", 3),
        ("sizeof(task_ctx) + 1", 9),
        ("exists(seven) + 2 * exists(eight)", 1),
    ] {
        assert_eq!(value(text), Ok(expected), "{text}");
    }
}

#[test]
fn what_is_not_chosen_is_not_evaluated() {
    assert_eq!(value("1 ? 5 : 1 / 0"), Ok(5));
    assert_eq!(value("0 && 1 / 0"), Ok(0));
    assert_eq!(value("1 || 1 / 0"), Ok(1));
}

#[test]
fn arithmetic_is_checked() {
    assert_eq!(value("1 / 0"), Err(ExprError::DivisionByZero));
    assert_eq!(value("1 % (two - 2)"), Err(ExprError::DivisionByZero));
    for text in ["1 << 127", "1 << -1", "1 << 200", "(1 << 126) * 4", "1 >> 128"] {
        assert_eq!(value(text), Err(ExprError::Overflow), "{text}");
    }
}

#[test]
fn errors_say_what_was_expected() {
    let error = |text: &str| value(text).unwrap_err().to_string();
    assert_eq!(error("1 +"), "\"1 +\": the end where a number, a name or \"(\" should be");
    assert!(error("(1").contains("\")\" should be"));
    assert!(error("1 2").contains("an operator or the end"));
    assert!(error("12abc").contains("a number"));
    assert!(error("1 ? 2").contains("\":\""));
    assert!(error("sum(1 2)").contains("\",\" or \")\""));
    assert_eq!(error("tow"), "nothing is called `tow`; did you mean two?");
}

#[test]
fn nesting_is_bounded() {
    for part in ["(", "-", "1?", "f(", "1?2:"] {
        assert!(matches!(value(&part.repeat(1000)), Err(ExprError::Depth { .. })), "{part}");
        assert!(matches!(value(&part.repeat(10_000)), Err(ExprError::Length { .. })), "{part}");
    }
    // The parser reads a chain of operators without recursion, but the chain's tree is deep. The
    // limit on a formula's length bounds that depth, so a chain of 2000 operators must have a
    // value.
    assert_eq!(value(&format!("0{}", "+1".repeat(2000))), Ok(2000));
}
