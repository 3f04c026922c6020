// SPDX-License-Identifier: GPL-2.0-only
//! A validator for the JSON Schema keywords that our schema uses. It panics on any other keyword,
//! so that no rule is silently skipped.

use regex::Regex;
use serde_json::{Map, Value};

pub struct Schema(Value);

const ANNOTATIONS: [&str; 6] = ["$schema", "$comment", "$defs", "title", "description", "$id"];

impl Schema {
    pub fn parse(text: &str) -> Schema {
        Schema(serde_json::from_str(text).expect("a schema is JSON"))
    }

    /// Returns the violations of the schema, each with its path.
    pub fn faults(&self, value: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        self.check(&self.0, value, "$", &mut faults);
        faults
    }

    fn check(&self, rule: &Value, value: &Value, path: &str, faults: &mut Vec<String>) {
        let rule = rule.as_object().expect("a rule is an object");
        for (keyword, wanted) in rule {
            let ok = match keyword.as_str() {
                "$ref" => {
                    self.check(self.definition(wanted), value, path, faults);
                    true
                }
                "type" => has_type(wanted, value),
                "enum" => wanted.as_array().expect("enum").contains(value),
                "minimum" => value.as_f64().is_none_or(|v| v >= wanted.as_f64().expect("minimum")),
                "minLength" => {
                    length(value).is_none_or(|n| n >= wanted.as_u64().expect("minLength"))
                }
                "maxLength" => {
                    length(value).is_none_or(|n| n <= wanted.as_u64().expect("maxLength"))
                }
                "required" => {
                    let keys =
                        wanted.as_array().expect("required").iter().filter_map(Value::as_str);
                    value.as_object().is_none_or(|o| keys.clone().all(|k| o.contains_key(k)))
                }
                "anyOf" => wanted.as_array().expect("anyOf").iter().any(|one| {
                    let mut inner = Vec::new();
                    self.check(one, value, path, &mut inner);
                    inner.is_empty()
                }),
                "items" => {
                    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(wanted, item, &format!("{path}[{at}]"), faults);
                    }
                    true
                }
                "properties" => {
                    for (key, one) in wanted.as_object().expect("properties") {
                        if let Some(member) = value.get(key) {
                            self.check(one, member, &format!("{path}.{key}"), faults);
                        }
                    }
                    true
                }
                "patternProperties" => {
                    for (key, member) in value.as_object().into_iter().flatten() {
                        for one in matching(rule, key) {
                            self.check(one, member, &format!("{path}.{key}"), faults);
                        }
                    }
                    true
                }
                "additionalProperties" => self.additional(rule, wanted, value, path, faults),
                other => {
                    assert!(ANNOTATIONS.contains(&other), "keyword {other} is not supported");
                    true
                }
            };
            if !ok {
                faults.push(format!("{path}: {keyword} {wanted}"));
            }
        }
    }

    fn additional(
        &self,
        rule: &Map<String, Value>,
        wanted: &Value,
        value: &Value,
        path: &str,
        faults: &mut Vec<String>,
    ) -> bool {
        let known = rule.get("properties").and_then(Value::as_object);
        let is_known = |key: &str| {
            known.is_some_and(|k| k.contains_key(key)) || matching(rule, key).next().is_some()
        };
        let Some(object) = value.as_object() else { return true };
        let mut rest = object.iter().filter(|(key, _)| !is_known(key));
        if let Some(allowed) = wanted.as_bool() {
            return allowed || rest.next().is_none();
        }
        rest.for_each(|(key, member)| self.check(wanted, member, &format!("{path}.{key}"), faults));
        true
    }

    fn definition(&self, reference: &Value) -> &Value {
        let name =
            reference.as_str().and_then(|r| r.strip_prefix("#/$defs/")).expect("a local reference");
        &self.0["$defs"][name]
    }
}

/// Returns the rules of `patternProperties` for a key.
fn matching<'a>(rule: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    let patterns = rule.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
    patterns
        .filter(move |(pattern, _)| {
            Regex::new(pattern).expect("a regular expression").is_match(key)
        })
        .map(|(_, one)| one)
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    match wanted {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        _ => panic!("type {wanted}"),
    }
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|s| s.chars().count() as u64)
}
