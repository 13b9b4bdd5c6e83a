//! Positions in the file: an error names the line and the key, in one line of text.

use super::servers::Section;
use crate::base::terminal::printable;
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// A configuration error and its fix, in one line without a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{}: {problem}", file.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
pub struct ConfigError {
    pub file: PathBuf,
    /// The line, counted from 1, if the error belongs to one.
    pub line: Option<usize>,
    /// The key, the error and the fix.
    pub problem: String,
}

pub(super) struct Source<'a> {
    pub file: &'a Path,
    pub text: &'a str,
}

impl Source<'_> {
    /// An error about this key (`imap.append_grace`), whether or not it is in the file.
    pub(crate) fn error(&self, key: &str, problem: &str) -> ConfigError {
        let (tables, path) = (self.tables(), key.split('.').collect::<Vec<_>>());
        let line = tables.as_ref().and_then(|table| key_span(table.get_ref(), &path)).map(|span| self.line(span.start));
        self.at(line, format!("{key}: {problem}"))
    }

    /// The error about this key, if its value `is_wrong`.
    pub(super) fn refuse_if(
        &self,
        is_wrong: bool,
        key: &str,
        problem: impl FnOnce() -> String,
    ) -> Result<(), ConfigError> {
        if is_wrong { Err(self.error(key, &problem())) } else { Ok(()) }
    }

    pub(super) fn section<'a>(&'a self, name: &'a str) -> Section<'a> {
        Section { source: self, name }
    }

    /// The error of the TOML parser, with the key that it concerns.
    pub(crate) fn toml_error(&self, error: &toml::de::Error) -> ConfigError {
        let start = error.span().map(|span| span.start);
        let line = start.map(|start| self.line(start));
        let tables = self.tables();
        let path = start.zip(tables.as_ref()).and_then(|(start, table)| path_at(table.get_ref(), start));
        let text = error.message().lines().collect::<Vec<_>>().join(" ");
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return self.at(line, text);
        };
        // The keys of `database.roles` are the variants of an enum.
        let of_roles = path.iter().any(|key| key == "roles").then(|| text.strip_prefix("unknown variant `")).flatten();
        let unknown = text.strip_prefix("unknown field `").or(of_roles).and_then(|rest| rest.split_once("`, "));
        let problem = match unknown {
            Some(("password", _)) => {
                "a password does not belong into this file: write it into a file of its own, that \
                nobody else can read, and name that as password_file"
                    .to_owned()
            }
            Some((key, expected)) => match nearest(key, expected.split('`').skip(1).step_by(2)) {
                Some(nearest) => format!("there is no such key here, `{nearest}` perhaps: {expected}"),
                None => format!("there is no such key here: {expected}"),
            },
            None => text,
        };
        self.at(line, format!("{}: {problem}", path.join(".")))
    }

    /// A quoted value may contain anything: the message stays one line, and contains no control characters.
    fn at(&self, line: Option<usize>, problem: String) -> ConfigError {
        ConfigError { file: self.file.to_owned(), line, problem: printable(&problem.replace('\n', " ")) }
    }

    /// `None` if the text is not TOML.
    fn tables(&self) -> Option<toml::Spanned<DeTable<'_>>> {
        DeTable::parse(self.text).ok()
    }

    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|&&b| b == b'\n').count()
    }
}

/// The most similar known key, if at most half of its letters differ.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = known.map(|known| (strsim::levenshtein(key, known), known)).min();
    alike.filter(|(distance, known)| *distance <= key.len().min(known.len()) / 2).map(|(_, known)| known)
}

/// The span of the key; if the key is missing, that of the table it belongs to.
fn key_span(table: &DeTable<'_>, path: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    let deeper = match value.get_ref() {
        DeValue::Table(table) => key_span(table, rest),
        _ => None,
    };
    Some(deeper.unwrap_or(key.span()))
}

/// The path of the key or value at this offset.
fn path_at(table: &DeTable<'_>, offset: usize) -> Option<Vec<String>> {
    for (key, value) in table {
        let mut deeper = None;
        match value.get_ref() {
            DeValue::Table(table) => deeper = path_at(table, offset),
            DeValue::Array(array) => {
                let mut tables = array.iter().filter_map(|item| item.get_ref().as_table());
                deeper = tables.find_map(|table| path_at(table, offset));
            }
            _ => {}
        }
        if deeper.is_none() && (key.span().contains(&offset) || value.span().contains(&offset)) {
            deeper = Some(Vec::new());
        }
        if let Some(deeper) = deeper {
            return Some(std::iter::once(key.get_ref().to_string()).chain(deeper).collect());
        }
    }
    None
}
