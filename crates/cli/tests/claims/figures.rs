// SPDX-License-Identifier: GPL-2.0-only
//! Formatting of numbers for pages: three significant digits, with a unit.

/// Formats the range of values over all seeds; a dash if any seed lacks the value.
pub fn range(values: &[Option<f64>], unit: &str) -> String {
    let Some(values) = values.iter().copied().collect::<Option<Vec<f64>>>() else {
        return "-".into();
    };
    let low = values.iter().copied().reduce(f64::min).map(|v| figure(v, unit));
    let high = values.iter().copied().reduce(f64::max).map(|v| figure(v, unit));
    match (low, high) {
        (Some(low), Some(high)) => between(&low, &high),
        _ => "-".into(),
    }
}

/// Formats two figures. A common unit is written once.
pub fn between(low: &str, high: &str) -> String {
    if low == high {
        return low.into();
    }
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    let number = low.split(' ').next().filter(|_| unit(low) == unit(high));
    format!("{} to {high}", number.unwrap_or(low))
}

pub fn figure(value: f64, unit: &str) -> String {
    match unit {
        "ns" if value.abs() >= 1e9 => format!("{} s", digits(value / 1e9)),
        "ns" if value.abs() >= 1e6 => format!("{} ms", digits(value / 1e6)),
        "ns" if value.abs() >= 1e3 => format!("{} us", digits(value / 1e3)),
        "1" => digits(value),
        unit => format!("{} {unit}", digits(value)),
    }
}

/// Formats three significant digits, with commas between thousands.
fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let places = 2 - value.abs().log10().floor() as i32;
    if places > 0 {
        let text = format!("{value:.*}", places.min(6) as usize);
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let step = 10f64.powi(-places);
    let whole = format!("{:.0}", (value / step).round() * step);
    let first = whole.len() % 3;
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && at % 3 == first && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn figures_are_short() {
    let shown = [
        (0.0, "1", "0"),
        (0.125, "1", "0.125"),
        (1.0, "%", "1 %"),
        (98.62, "%", "98.6 %"),
        (339.4, "1", "339"),
        (15747.4, "round/s", "15,700 round/s"),
        (1_508_844.0, "1", "1,510,000"),
        (399.6, "ns", "400 ns"),
        (172_799.0, "ns", "173 us"),
        (29_114_367.0, "ns", "29.1 ms"),
    ];
    for (value, unit, text) in shown {
        assert_eq!(figure(value, unit), text);
    }
    assert_eq!(range(&[Some(3.0), Some(1.0)], "1"), "1 to 3");
    assert_eq!(range(&[Some(3.0), None], "1"), "-");
    assert_eq!(range(&[Some(1500.0), Some(2e6)], "ns"), "1.5 us to 2 ms");
    assert_eq!(range(&[Some(1500.0), Some(2e3)], "ns"), "1.5 to 2 us");
}
