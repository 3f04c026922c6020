// SPDX-License-Identifier: GPL-2.0-only
//! Number formats of the report.

use super::document::{Block, Screen};
use super::format::Scale;
use super::*;
use crate::stats::change;

fn change_of(pairs: &[(f64, f64)]) -> String {
    change_text(&change(pairs))
}

#[test]
fn changes_say_what_is_noise() {
    assert_eq!(change_of(&[(100.0, 110.0), (200.0, 220.0)]), "+10.0 % ±0.0");
    assert_eq!(change_of(&[(100.0, 90.0), (100.0, 112.0), (100.0, 100.0)]), "~ +0.7 % ±27.4");
    assert_eq!(change_of(&[(5.0, 5.0), (6.0, 6.0)]), "=");
    assert_eq!(change_of(&[(100.0, 150.0)]), "+50.0 %");
    assert_eq!(change_of(&[(1.0, 30.0), (1.0, 30.0)]), "+2900 % ±0.0");
    assert_eq!(change_of(&[(1.0, 250.0), (1.0, 250.0)]), "x 250 ±0.0");
    assert_eq!(change_of(&[(1.0, 400.0), (1.0, 200.0)]), "~ x 300 ±1271");
    assert_eq!(change_of(&[(0.0, 1.0), (0.0, 2.0), (0.0, 30.0)]), "~");
}

#[test]
fn units_suit_the_largest_value() {
    let s = |n, mean: f64, below: Option<f64>, above: Option<f64>| {
        let (low, high) = (below.map(|b| mean - b), above.map(|a| mean + a));
        Summary { n, mean: Some(mean), low, high }
    };
    assert_eq!(Scale::time(1_500.0).label("wait"), "wait, us");
    assert_eq!(Scale::time(1_500.0).summary(&s(3, 1500.0, Some(20.0), Some(20.0))), "1.50 ±0.02");
    let skewed = s(3, 1500.0, Some(20.0), Some(90.0));
    assert_eq!(Scale::time(1_500.0).summary(&skewed), "1.50 ±0.09");
    assert_eq!(Scale::time(0.0).label("wait"), "wait, ns");
    assert_eq!(Scale::time(0.0).summary(&s(1, 0.0, None, None)), "0");
    assert_eq!(Scale::count(2.5e7).label("throughput, loop/s"), "throughput, 10^6 loop/s");
    assert_eq!(Scale::count(2.5e7).summary(&s(2, 2.5e7, Some(0.0), Some(0.0))), "25.0 ±0.0");
    assert_eq!(Scale::count(99_999.0).label("kicks"), "kicks");
    assert_eq!(Scale::time(2e9).with_unit(2e9), "2 s");
    assert_eq!(Scale::time(8_326_000.0).with_unit(8_326_000.0), "8.33 ms");
}

#[test]
fn columns_line_up() {
    let mut table = Table::new(vec![Cell::default(); 2], 2, 0);
    let row = |cells: [&str; 2]| cells.map(Cell::plain).to_vec();
    table.rows = vec![row(["a", "1"]), row(["long", "±10"]), row(["x", ""])];
    let text = Document(vec![Block::Table(table)]).text(Screen::default());
    assert_eq!(text, "a       1\nlong  ±10\nx\n");
}

/// Numbers for random tables: a fixed sequence (xorshift).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn cell(&mut self, words: usize) -> Cell {
        let words = (0..=self.below(words)).map(|_| "abcdefghij"[..=self.below(10)].to_owned());
        let marks = [Mark::Plain, Mark::Best, Mark::Worse, Mark::Noise, Mark::Failure];
        Cell::new(words.collect::<Vec<_>>().join(" "), marks[self.below(marks.len())])
    }

    fn table(&mut self) -> Table {
        let groups = 1 + self.below(8);
        let columns = 2 + 2 * groups;
        let row = |draws: &mut Draws| (0..columns).map(|_| draws.cell(2)).collect::<Vec<_>>();
        let mut table = Table::new(row(self), 2, 2);
        table.rows = (0..1 + self.below(6)).map(|_| row(self)).collect();
        table
    }
}

fn without_styles(text: &str) -> String {
    let mut plain = String::new();
    let mut parts = text.split('\u{1b}');
    plain.push_str(parts.next().unwrap());
    parts.for_each(|part| plain.push_str(part.split_once('m').unwrap().1));
    plain
}

/// No line of a table is longer than the screen is wide, every cell is shown at least once, and
/// colours change nothing but colours.
#[test]
fn tables_fit_every_width() {
    let mut draws = Draws(1);
    for _ in 0..300 {
        let table = draws.table();
        let width = 60 + draws.below(200) as u16;
        let screen = |has_colour| Screen { width: Some(width), has_colour };
        let document = Document(vec![Block::Table(table.clone())]);
        let text = document.text(screen(false));
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(width), "{width}: {line:?}\n{text}");
        }
        let coloured = document.text(screen(true));
        let trimmed = |text: &str| text.lines().map(|l| format!("{}\n", l.trim_end())).collect();
        let plain: String = trimmed(&without_styles(&coloured));
        assert_eq!(plain, text);
        let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).count();
        let cells = table.head.iter().chain(table.rows.iter().flatten());
        let wanted: usize = cells.map(|cell| letters(&cell.text)).sum();
        assert!(letters(&text) >= wanted, "{text}");
    }
}
