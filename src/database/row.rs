//! Reads the rows of answers. A column comes as text; the requested type parses it, and any other text is an error.

use super::DatabaseError;
use crate::base::hex;
use std::time::Duration;
use uuid::Uuid;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(pub(super) Vec<Option<String>>);

impl Row {
    /// A column as text; `None` for NULL.
    #[must_use]
    pub fn text(&self, index: usize) -> Option<&str> {
        self.0.get(index).and_then(Option::as_deref)
    }

    /// One column; `None` for NULL.
    ///
    /// # Errors
    /// If the text is no value of that type.
    pub fn value<T: FromColumn>(&self, index: usize) -> Result<Option<T>, DatabaseError> {
        let unreadable = |text: &str| unreadable(format!("column {} of the answer is {text:?}", index + 1));
        self.text(index).map(|text| T::from_column(text).ok_or_else(|| unreadable(text))).transpose()
    }

    /// Parses the columns from the first one on.
    ///
    /// # Errors
    /// If one of them holds another value, or none.
    pub fn read<T: FromRow>(&self) -> Result<T, DatabaseError> {
        T::from_row(&mut Columns { row: self, next: 0 })
    }
}

#[derive(Debug)]
pub struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

impl Columns<'_> {
    /// Parses the next columns.
    ///
    /// # Errors
    /// If one of them holds another value, or none.
    pub fn read<T: FromRow>(&mut self) -> Result<T, DatabaseError> {
        T::from_row(self)
    }

    /// Skips `columns` columns if the next one is NULL, or missing.
    pub(crate) fn skip_null(&mut self, columns: usize) -> bool {
        let is_null = self.row.text(self.next).is_none();
        self.next += if is_null { columns } else { 0 };
        is_null
    }

    fn column<T: FromColumn>(&mut self) -> Result<Option<T>, DatabaseError> {
        self.next += 1;
        self.row.value(self.next - 1)
    }
}

/// The value of one column.
pub trait FromColumn: Sized {
    /// `None`: the text is no such value.
    fn from_column(text: &str) -> Option<Self>;
}

/// The value of one column, or of several side by side.
pub trait FromRow: Sized {
    /// Parses it from the next columns.
    ///
    /// # Errors
    /// If one of them holds another value, or none.
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError>;
}

impl<T: FromColumn> FromRow for T {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        let missing = |index| unreadable(format!("column {index} of the answer is missing"));
        columns.column()?.ok_or_else(|| missing(columns.next))
    }
}

impl<T: FromColumn> FromRow for Option<T> {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        columns.column()
    }
}

macro_rules! tuples {
    ($first:ident $($rest:ident)*) => {
        impl<$first: FromRow, $($rest: FromRow),*> FromRow for ($first, $($rest,)*) {
            fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
                Ok((columns.read::<$first>()?, $(columns.read::<$rest>()?,)*))
            }
        }
        tuples! { $($rest)* }
    };
    () => {};
}

tuples! { A B C D E F G H I J K L }

/// The fields of a struct in the order of their columns; behind a semicolon, fields without a column.
macro_rules! columns_of {
    ($row:ident: $($field:ident),+ $(; $($other:ident: $value:expr),+)?) => {
        impl $crate::database::FromRow for $row {
            fn from_row(columns: &mut $crate::database::Columns<'_>) -> Result<Self, $crate::database::DatabaseError> {
                Ok(Self { $($field: columns.read()?,)+ $($($other: $value,)+)? })
            }
        }
    };
}
pub(crate) use columns_of;

macro_rules! from_text {
    ($($parsed:ty)*) => {$(
        impl FromColumn for $parsed {
            fn from_column(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}

from_text! { i64 u64 usize u32 u16 u8 f64 String Uuid }

impl FromColumn for bool {
    /// PostgreSQL writes a letter, or as text a word; the others a number.
    fn from_column(text: &str) -> Option<Self> {
        match text {
            "t" | "true" | "1" => Some(true),
            "f" | "false" | "0" => Some(false),
            _ => None,
        }
    }
}

impl FromColumn for Duration {
    /// In seconds; zero if it is negative because a clock was set back.
    fn from_column(text: &str) -> Option<Self> {
        f64::from_column(text).map(|seconds| Self::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

impl FromColumn for Vec<u8> {
    /// A column that was selected with [`Dialect::hex`](super::Dialect::hex).
    fn from_column(text: &str) -> Option<Self> {
        hex::decode(text)
    }
}

impl<const N: usize> FromColumn for [u8; N] {
    fn from_column(text: &str) -> Option<Self> {
        hex::decode(text)?.try_into().ok()
    }
}

/// The error for an answer of another shape than requested.
pub(crate) fn unreadable(detail: String) -> DatabaseError {
    DatabaseError::other("reading the ledger", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[Option<&str>]) -> Row {
        Row(cells.iter().map(|cell| cell.map(ToOwned::to_owned)).collect())
    }

    #[test]
    fn columns_are_read_in_their_order_and_what_is_missing_is_an_error() {
        let row = row(&[Some("7"), None, Some("t"), Some("0a0b"), Some("-1.5")]);
        type Read = (u32, Option<String>, (bool, [u8; 2]), Duration);
        let read: Read = row.read().unwrap();
        assert_eq!(read, (7, None, (true, [10, 11]), Duration::ZERO));
        assert!(row.read::<(u32, String)>().unwrap_err().detail.contains("column 2 of the answer is missing"));
        assert!(row.read::<bool>().unwrap_err().detail.contains("column 1 of the answer is \"7\""));
        assert_eq!(row.value::<u32>(1).unwrap(), None);
        assert!(row.value::<[u8; 3]>(3).is_err() && row.value::<u32>(4).is_err());
    }
}
