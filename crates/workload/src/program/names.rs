// SPDX-License-Identifier: GPL-2.0-only
//! Names of shared objects that depend on the instance of the thread that uses them.
//!
//! Owns: the expression in braces: `{i}`, followed by `+n`, `-n`, `*n`, `/n`, `%n`, applied from
//! left to right without precedence. For example, `{i+1%8}` is the number of the next of eight
//! instances. A difference below 0 gives 0.

/// Whether the name differs between instances.
pub fn is_pattern(name: &str) -> bool {
    name.contains("{i")
}

/// Returns the name for `instance`, or a description of the pattern's error.
///
/// ```
/// use scxlab_workload::program::names::resolve;
/// assert_eq!(resolve("pipe{i/2}.{i+1%2}", 5).unwrap(), "pipe2.0");
/// assert!(resolve("p{i%0}", 1).is_err());
/// ```
pub fn resolve(name: &str, instance: u32) -> Result<String, String> {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(open) = rest.find("{i") {
        out.push_str(&rest[..open]);
        let body = &rest[open + 2..];
        let close = body.find('}').ok_or_else(|| format!("\"{name}\" has a {{ without its }}"))?;
        let value = evaluate(&body[..close], u64::from(instance))
            .ok_or_else(|| format!("\"{name}\": {{i{}}} is not an expression", &body[..close]))?;
        out.push_str(&value.to_string());
        rest = &body[close + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Applies a chain such as `+1%8` to `value`.
fn evaluate(chain: &str, mut value: u64) -> Option<u64> {
    let mut rest = chain;
    while let Some(op) = rest.chars().next() {
        if !op.is_ascii() {
            return None;
        }
        let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
        let operand: u64 = rest.get(1..1 + digits)?.parse().ok()?;
        value = match op {
            '+' => value.checked_add(operand)?,
            '-' => value.saturating_sub(operand),
            '*' => value.checked_mul(operand)?,
            '/' => value.checked_div(operand)?,
            '%' => value.checked_rem(operand)?,
            _ => return None,
        };
        rest = &rest[1 + digits..];
    }
    Some(value)
}

/// Returns the name for an instance. `compile` has checked the patterns for instance 0. If a
/// pattern overflows for a large instance, the name is the pattern as written, so all such
/// instances share one object.
pub fn instance_name(pattern: &str, instance: u32) -> String {
    resolve(pattern, instance).unwrap_or_else(|_| pattern.to_owned())
}

/// Whether a declaration applies to this object: the names are equal, or the declared name is a
/// pattern that can produce the object's name. Any number may stand for the pattern's expression.
pub fn declares(declared: &str, name: &str) -> bool {
    let Some(open) = declared.find("{i") else {
        return declared == name;
    };
    let Some(close) = declared[open..].find('}') else {
        return false;
    };
    let Some(rest) = name.strip_prefix(&declared[..open]) else {
        return false;
    };
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    after.len() < rest.len() && declares(&declared[open + close + 1..], after)
}
