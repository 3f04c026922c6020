// SPDX-License-Identifier: GPL-2.0-only
//! Values of knobs and parameters, and the column of a table that they make.

use std::fmt;

use scxlab_results::parquet::Values;
use serde::Deserialize;

/// A value as the sweep's file has it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(is) => is.fmt(f),
            Value::Int(n) => n.fmt(f),
            Value::Float(x) => x.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a value, or a list of values, is needed")]
pub enum OneOrMany {
    One(Value),
    Many(Vec<Value>),
}

impl OneOrMany {
    pub fn values(&self) -> &[Value] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }
}

/// Returns the values as a column of their common type: whole numbers, numbers, truth values, or
/// else texts. None is null.
pub fn column(values: &[Option<&Value>]) -> Values {
    let all = |is: fn(&Value) -> bool| values.iter().flatten().all(|value| is(value));
    if all(|value| matches!(value, Value::Bool(_))) {
        let is = |value: &Option<&Value>| value.map(|value| matches!(value, Value::Bool(true)));
        Values::Bool(values.iter().map(is).collect())
    } else if all(|value| matches!(value, Value::Int(_))) {
        let int = |value: &Option<&Value>| match value {
            Some(Value::Int(n)) => Some(*n),
            _ => None,
        };
        Values::Int(values.iter().map(int).collect())
    } else if all(|value| matches!(value, Value::Int(_) | Value::Float(_))) {
        let float = |value: &Option<&Value>| match value {
            Some(Value::Int(n)) => Some(*n as f64),
            Some(Value::Float(x)) => Some(*x),
            _ => None,
        };
        Values::Float(values.iter().map(float).collect())
    } else {
        Values::Text(values.iter().map(|value| value.map(Value::to_string)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_the_common_type_of_its_values() {
        let (int, float, bool) = (Value::Int(1), Value::Float(0.5), Value::Bool(true));
        let text = Value::Text("a".to_owned());
        assert_eq!(column(&[Some(&int), None]), Values::Int(vec![Some(1), None]));
        assert_eq!(column(&[Some(&int), Some(&float)]), Values::Float(vec![Some(1.0), Some(0.5)]));
        assert_eq!(column(&[None, Some(&bool)]), Values::Bool(vec![None, Some(true)]));
        let texts = ["1", "true", "a"].map(|text| Some(text.to_owned()));
        assert_eq!(column(&[Some(&int), Some(&bool), Some(&text)]), Values::Text(texts.into()));
    }
}
