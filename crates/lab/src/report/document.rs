// SPDX-License-Identifier: GPL-2.0-only
//! A report before it has a form: texts and tables, whose cells say what they mean. Forms of it are
//! plain text that fits a width, with or without colour, and Markdown.
//!
//! Owns: the layout, through the crate `comfy-table`; the escaping of control characters.
//! Does not: look at the terminal; the caller passes a `Screen`.

use std::borrow::Cow;

use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{
    Attribute, Cell as Drawn, CellAlignment, Color, ContentArrangement, Table as Grid,
};

/// The place that a report is printed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// Number of columns; None if lines may have any length.
    pub width: Option<u16>,
    pub has_colour: bool,
}

/// Texts and tables, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document(pub Vec<Block>);

#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Lines, as they are to be printed.
    Text(String),
    Table(Table),
}

/// A table, whose columns after the first few come in groups. A screen that is too narrow for the
/// table shows the groups one below the other, each beside the first columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub head: Vec<Cell>,
    pub rows: Vec<Vec<Cell>>,
    pub aligns: Vec<Align>,
    /// Number of first columns that every part of a divided table repeats.
    pub fixed: usize,
    /// Number of columns that stay side by side in a divided table.
    pub group: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub mark: Mark,
}

/// Meaning of a cell, which colour shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    #[default]
    Plain,
    Head,
    /// The best value of its row, or one that cannot be told from the best.
    Best,
    /// A change for the better, and in `Worse` for the worse.
    Better,
    Worse,
    /// A difference that cannot be told from noise.
    Noise,
    /// A failure, such as an ejection.
    Failure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

impl Cell {
    pub fn new(text: impl Into<String>, mark: Mark) -> Cell {
        Cell { text: text.into(), mark }
    }

    pub fn plain(text: impl Into<String>) -> Cell {
        Cell::new(text, Mark::Plain)
    }

    pub fn head(text: impl Into<String>) -> Cell {
        Cell::new(text, Mark::Head)
    }
}

impl Document {
    pub fn push_text(&mut self, text: impl Into<String>) {
        let text = text.into();
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Block::Text(last)) => last.push_str(&text),
            _ => self.0.push(Block::Text(text)),
        }
    }

    pub fn push(&mut self, table: Table) {
        self.0.push(Block::Table(table));
    }

    pub fn append(&mut self, other: Document) {
        for block in other.0 {
            match block {
                Block::Text(text) => self.push_text(text),
                Block::Table(table) => self.push(table),
            }
        }
    }

    /// Returns the report as text for a screen. Nothing in it but styles controls a terminal.
    pub fn text(&self, screen: Screen) -> String {
        let block = |block: &Block| match block {
            Block::Text(text) => visible(text).into_owned(),
            Block::Table(table) => table.text(screen),
        };
        self.0.iter().map(block).collect()
    }

    /// Returns the report in Markdown: tables, and all other text as it is, indented.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for block in &self.0 {
            match block {
                Block::Text(lines) => {
                    let lines = visible(lines.trim_matches('\n')).into_owned();
                    let indent = |line: &str| match line.is_empty() {
                        true => "\n".to_owned(),
                        false => format!("    {line}\n"),
                    };
                    text.push_str(&lines.lines().map(indent).collect::<String>());
                }
                Block::Table(table) => text.push_str(&table.markdown()),
            }
            text.push('\n');
        }
        text.trim_end().to_owned() + "\n"
    }
}

impl Table {
    /// Returns a table whose first column is to the left and whose other columns are to the right.
    pub fn new(head: Vec<Cell>, fixed: usize, group: usize) -> Table {
        let align = |at| if at == 0 { Align::Left } else { Align::Right };
        let aligns = (0..head.len()).map(align).collect();
        Table { head, rows: Vec::new(), aligns, fixed, group }
    }

    fn text(&self, screen: Screen) -> String {
        let columns = |from: usize, to: usize| (0..self.fixed).chain(from..to).collect::<Vec<_>>();
        let end = self.head.len();
        let Some(width) = screen.width else {
            return self.drawn(&columns(self.fixed, end), screen);
        };
        let widths = self.widths();
        let wide = |columns: &[usize]| {
            columns.iter().map(|at| widths[*at] + GAP).sum::<usize>().saturating_sub(GAP)
        };
        let mut parts = Vec::new();
        let mut from = self.fixed.min(end);
        loop {
            // Each part has at least one group, even if it is too wide.
            let mut to = (from + self.group.max(1)).min(end);
            while to < end {
                let next = (to + self.group.max(1)).min(end);
                if wide(&columns(from, next)) > usize::from(width) {
                    break;
                }
                to = next;
            }
            let columns = columns(from, to);
            parts.push(self.drawn(&columns, screen));
            from = to;
            if from >= end {
                return parts.join("\n");
            }
        }
    }

    /// Returns the width of each column without wrapping.
    fn widths(&self) -> Vec<usize> {
        let all: Vec<usize> = (0..self.head.len()).collect();
        let widths = self.grid(&all, Screen::default()).column_max_content_widths();
        widths.into_iter().map(usize::from).collect()
    }

    fn drawn(&self, columns: &[usize], screen: Screen) -> String {
        let mut grid = self.grid(columns, screen);
        let widths = grid.column_max_content_widths();
        let natural: usize = widths.iter().map(|w| usize::from(*w) + GAP).sum();
        if let Some(width) = screen.width.filter(|width| natural > usize::from(*width) + GAP) {
            grid.set_content_arrangement(ContentArrangement::Dynamic);
            grid.set_width(width.max(NARROWEST));
        }
        let lines = grid.to_string();
        lines.lines().map(|line| format!("{}\n", trimmed(line))).collect()
    }

    fn grid(&self, columns: &[usize], screen: Screen) -> Grid {
        let mut grid = Grid::new();
        grid.load_style(NOTHING);
        grid.set_content_arrangement(ContentArrangement::Disabled);
        if screen.has_colour {
            grid.enforce_styling();
            grid.style_text_only();
        } else {
            grid.force_no_tty();
        }
        let drawn = |row: &[Cell]| -> Vec<Drawn> {
            columns.iter().map(|at| row.get(*at).map_or(Drawn::new(""), draw)).collect()
        };
        if self.head.iter().any(|cell| !cell.text.is_empty()) {
            // Long names of schedulers break behind the values of their knobs.
            let head = drawn(&self.head).into_iter().map(|cell| cell.set_delimiter(','));
            grid.set_header(head.collect::<Vec<_>>());
        }
        for row in &self.rows {
            grid.add_row(drawn(row));
        }
        let last = columns.len().saturating_sub(1);
        for (at, column) in grid.column_iter_mut().enumerate() {
            column.set_padding((0, if at == last { 0 } else { GAP as u16 }));
            column.set_cell_alignment(match self.aligns[columns[at]] {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        grid
    }

    fn markdown(&self) -> String {
        let mut grid = Grid::new();
        grid.load_style(ASCII_MARKDOWN);
        grid.set_content_arrangement(ContentArrangement::Disabled);
        grid.force_no_tty();
        let cells = |row: &[Cell]| row.iter().map(markdown_cell).collect::<Vec<_>>();
        grid.set_header(cells(&self.head));
        for row in &self.rows {
            grid.add_row(cells(row));
        }
        format!("{grid}\n")
    }
}

/// Number of spaces between columns.
const GAP: usize = 2;

/// Narrowest width in columns that a table is broken into.
const NARROWEST: u16 = 20;

fn draw(cell: &Cell) -> Drawn {
    let text = visible(&cell.text).into_owned();
    let text = if cell.mark == Mark::Best { format!("{BEST} {text}") } else { text };
    let drawn = Drawn::new(text);
    match cell.mark {
        Mark::Plain => drawn,
        Mark::Head => drawn.add_attribute(Attribute::Bold),
        Mark::Best => drawn.add_attribute(Attribute::Bold).fg(Color::DarkGreen),
        Mark::Better => drawn.fg(Color::DarkGreen),
        Mark::Worse | Mark::Failure => drawn.fg(Color::DarkRed),
        Mark::Noise => drawn.add_attribute(Attribute::Dim),
    }
}

/// Sign in front of the best value of a row.
pub const BEST: &str = "✓";

fn markdown_cell(cell: &Cell) -> String {
    let text = visible(&cell.text).replace('|', "\\|").replace('\n', " ");
    match cell.mark {
        Mark::Best => format!("**{text}**"),
        _ => text.replace('*', "\\*").replace('~', "\\~"),
    }
}

/// Returns the line without the spaces at its end.
fn trimmed(line: &str) -> &str {
    line.trim_end_matches(' ')
}

/// Replaces control characters with their escape codes, because names and messages come from
/// objects, workloads and guests and must not control the terminal. Characters that change the
/// direction of writing are replaced too.
pub fn visible(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| {
        let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || (c.is_control() && c != '\n' && c != '\t')
    };
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if obeyed(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown.into()
}
