//! Tables for people: as wide as the terminal; elsewhere one line for each row, for grep. On a terminal, outcomes have colours.

use super::facts;
use crate::base::terminal::printable;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use std::io::IsTerminal;

/// The spaces beside the text of a cell.
const PADDING: u16 = 2;

const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const PLAIN: &str = "\u{1b}[0m";

/// The outcomes, as cells begin with them, or sentences in capitals.
const OUTCOMES: [(&str, &str); 30] = [
    ("STILL DEFERRED", YELLOW),
    ("UNDER WAY", YELLOW),
    ("DELIVERED", GREEN),
    ("REFUSED", RED),
    ("NEVER SEEN HERE", RED),
    ("BAD", RED),
    ("LOST", RED),
    ("TWICE", RED),
    ("OWED", YELLOW),
    ("EDITED since it was applied", RED),
    ("already there", GREEN),
    ("appended", GREEN),
    ("adopted", GREEN),
    ("delivered", GREEN),
    ("deferred", YELLOW),
    ("refused", RED),
    ("never ended", YELLOW),
    ("not ended", YELLOW),
    ("died", RED),
    ("owed", YELLOW),
    ("ok", GREEN),
    ("warning", YELLOW),
    ("bad", RED),
    ("held", YELLOW),
    ("active", GREEN),
    ("paused", YELLOW),
    ("disabled", RED),
    ("valid", GREEN),
    ("expired", YELLOW),
    ("revoked", RED),
];

/// A column: its name, and its cells.
struct TableColumn<'a> {
    name: &'a str,
    cells: Vec<String>,
}

impl TableColumn<'_> {
    fn widest(&self, width: fn(&str) -> usize) -> usize {
        self.cells.iter().map(String::as_str).chain([self.name]).map(width).max().unwrap_or_default()
            + usize::from(PADDING)
    }

    fn has_values(&self) -> bool {
        self.cells.iter().any(|cell| !is_empty(cell))
    }
}

fn is_empty(cell: &str) -> bool {
    matches!(cell, "" | "-")
}

fn line_width(cell: &str) -> usize {
    cell.lines().map(|line| line.chars().count()).max().unwrap_or_default()
}

fn word_width(cell: &str) -> usize {
    cell.split_whitespace().map(|word| word.chars().count()).max().unwrap_or_default()
}

pub(super) fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut columns = header.map(|name| TableColumn { name, cells: Vec::new() });
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.cells.push(printable(&cell));
        }
    }
    paint(&fit(columns.into(), terminal_width()))
}

/// `None` if the output is no terminal.
fn terminal_width() -> Option<u16> {
    let size = terminal_size::terminal_size().filter(|_| std::io::stdout().is_terminal());
    size.map(|(width, _)| width.0)
}

/// Sentences, wrapped between words on a terminal.
pub(super) fn sentences(text: &str) -> String {
    terminal_width().map_or_else(|| text.to_owned(), |width| wrap(text, width))
}

fn wrap(text: &str, width: u16) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width.saturating_add(PADDING)).add_row([text]);
    table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The table in this width: with all columns; or with those that have values, wrapped between words; or with a line for each value.
fn fit(mut columns: Vec<TableColumn<'_>>, width: Option<u16>) -> String {
    let Some(limit) = width else { return lay_out(&columns, None) };
    let fits = |columns: &[TableColumn<'_>], width| {
        columns.iter().map(|column| column.widest(width)).sum::<usize>() <= usize::from(limit)
    };
    if fits(&columns, line_width) {
        return lay_out(&columns, None);
    }
    columns.retain(TableColumn::has_values);
    if fits(&columns, word_width) {
        return lay_out(&columns, width);
    }
    let names =
        columns.iter().map(|column| column.name.chars().count()).max().unwrap_or_default() + usize::from(PADDING);
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or_default();
    let row = |row: usize| {
        let value = |column: &TableColumn<'_>| column.cells.get(row).filter(|cell| !is_empty(cell)).cloned();
        facts(names, columns.iter().filter_map(|column| Some((column.name, value(column)?))))
    };
    (0..rows).map(row).collect::<Vec<_>>().join("\n\n")
}

fn lay_out(columns: &[TableColumn<'_>], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.name));
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or_default();
    for row in 0..rows {
        table.add_row(columns.iter().filter_map(|column| column.cells.get(row)));
    }
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        for (cells, column) in table.column_iter_mut().zip(columns) {
            let least = u16::try_from(column.widest(word_width)).unwrap_or(u16::MAX);
            cells.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The text with colours for outcomes, on a terminal that shows them (<https://no-color.org>).
pub(super) fn paint(text: &str) -> String {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    if !std::io::stdout().is_terminal() || is_set("NO_COLOR") || is_dumb {
        return text.to_owned();
    }
    text.lines().map(paint_line).collect::<Vec<_>>().join("\n")
}

/// The line with a colour for the first outcome that is a cell, or that a sentence begins with.
fn paint_line(line: &str) -> String {
    let painted = OUTCOMES.iter().find_map(|(outcome, color)| {
        let (before, after) = line.split_once(outcome)?;
        let is_cell = before.trim().is_empty() || before.ends_with("  ");
        let ends = after.is_empty() || after.starts_with("  ") || after.starts_with(": ");
        let is_sentence = before.is_empty() && outcome.starts_with(char::is_uppercase) && after.starts_with([' ', ':']);
        (is_cell && (ends || is_sentence)).then(|| format!("{before}{color}{outcome}{PLAIN}{after}"))
    });
    painted.unwrap_or_else(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<TableColumn<'static>> {
        let column = |name, cells: [&str; 2]| TableColumn { name, cells: cells.map(str::to_owned).to_vec() };
        vec![
            column("id", ["0123456789", "9876543210"]),
            column("reason", ["a mailbox is full", "-"]),
            column("none", ["-", ""]),
        ]
    }

    #[test]
    fn a_table_keeps_its_words_whole_and_loses_no_value_in_any_width() {
        let wide = " id          reason             none\n 0123456789  a mailbox is full  -\n 9876543210  -";
        assert_eq!(fit(columns(), None), wide);
        assert_eq!(fit(columns(), Some(40)), wide);
        assert_eq!(
            fit(columns(), Some(25)),
            " id          reason\n 0123456789  a mailbox\n              is full\n 9876543210  -"
                .replace("\n              is", "\n             is")
        );
        assert_eq!(fit(columns(), Some(15)), "id      0123456789\nreason  a mailbox is full\n\nid      9876543210");
        for width in 1..60 {
            let text = fit(columns(), Some(width));
            assert!(["0123456789", "9876543210", "mailbox"].iter().all(|word| text.contains(word)), "{width}: {text}");
        }
    }

    #[test]
    fn sentences_are_wrapped_between_words() {
        assert_eq!(wrap("a word, and another\nnext", 9), "a word,\nand\nanother\nnext");
    }

    #[test]
    fn an_outcome_has_a_colour_where_it_is_a_cell_or_begins_a_sentence() {
        for line in ["BAD", " lock  BAD  refused it", "x  deferred: busy", "DELIVERED to doug@x."] {
            assert!(paint_line(line).contains(PLAIN), "{line}");
        }
        for line in [" subject  it was deferred", "delivered to all", "  BADLY", "lock   okay"] {
            assert_eq!(paint_line(line), line);
        }
    }
}
