// SPDX-License-Identifier: GPL-2.0-only
//! Numbers with few digits and a suitable unit.

use crate::stats::Summary;

/// Cell text for a missing value.
pub const ABSENT: &str = "-";

/// Unit and divisor that suit the largest value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    divisor: f64,
    unit: &'static str,
    /// Whether `unit` is a power of ten. It then stands in front of the unit that the label already
    /// has, as in `10^6 loop/s`.
    is_factor: bool,
}

impl Scale {
    /// Returns the unit of time that suits `largest`, in ns.
    pub fn time(largest: f64) -> Scale {
        let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
        let found = units.into_iter().find(|(divisor, _)| largest.abs() >= *divisor);
        let (divisor, unit) = found.unwrap_or((1.0, "ns"));
        Scale { divisor, unit, is_factor: false }
    }

    pub fn count(largest: f64) -> Scale {
        let units = [(1e10, 1e9, "10^9"), (1e7, 1e6, "10^6"), (1e5, 1e3, "10^3")];
        let found = units.into_iter().find(|(from, ..)| largest.abs() >= *from);
        let (_, divisor, unit) = found.unwrap_or((0.0, 1.0, ""));
        Scale { divisor, unit, is_factor: true }
    }

    pub fn percent() -> Scale {
        Scale { divisor: 1.0, unit: "%", is_factor: false }
    }

    /// Returns the unit of fractions of 1, which are shown in percent.
    pub fn share() -> Scale {
        Scale { divisor: 0.01, unit: "%", is_factor: false }
    }

    pub fn label(&self, label: &str) -> String {
        match (self.unit, self.is_factor) {
            ("", _) => label.to_owned(),
            (unit, true) if label.contains(", ") => label.replacen(", ", &format!(", {unit} "), 1),
            (unit, _) => format!("{label}, {unit}"),
        }
    }

    pub fn with_unit(&self, value: f64) -> String {
        let scaled = value / self.divisor;
        let digits = if scaled == scaled.round() { 0 } else { digits(scaled.abs()) };
        format!("{scaled:.digits$} {}", self.unit)
    }

    /// Formats a summary as `12.3 ±0.4`, with the longer arm of the interval. Both numbers have the
    /// number of decimals that suits the larger number. Returns `-` if there is no mean.
    pub fn summary(&self, summary: &Summary) -> String {
        let Some(mean) = summary.mean else {
            return ABSENT.into();
        };
        let mean = mean / self.divisor;
        let arm = summary.longer_arm().map(|arm| arm / self.divisor);
        let digits = digits(mean.abs().max(arm.unwrap_or(0.0)));
        match arm {
            Some(arm) => format!("{mean:.digits$} ±{arm:.digits$}"),
            None => format!("{mean:.digits$}"),
        }
    }
}

/// Returns the number of decimals that leaves about three significant digits.
fn digits(largest: f64) -> usize {
    match largest {
        0.0 => 0,
        x if x < 0.01 => 4,
        x if x < 0.1 => 3,
        x if x < 10.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    }
}
