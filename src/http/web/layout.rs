//! Layout shared by all screens.

use super::assets;
use crate::base::log::is_unsafe;
pub(super) use crate::base::timestamp::milliseconds;
use crate::base::timestamp::{exact, since, time_text};
use crate::ledger::web_sessions::{WebRole, WebSession};
use crate::ledger::{AttemptResult, Outcome};
use crate::message::Role;
use axum::response::Html;
use maud::{DOCTYPE, Markup, Render, html};

/// The screens of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Screen {
    Activity,
    Statistics,
    Locks,
    Again,
    Subscriptions,
    Service,
    Operations,
    Logins,
}

impl Screen {
    /// In the order of the navigation: path, name, and the least role that may see the screen.
    const ALL: [(Self, &'static str, &'static str, WebRole); 8] = [
        (Self::Activity, "/", "Activity", WebRole::Viewer),
        (Self::Statistics, "/statistics", "Statistics", WebRole::Viewer),
        (Self::Locks, "/locks", "Locks", WebRole::Viewer),
        (Self::Again, "/again", "Deliver again", WebRole::Operator),
        // A callback URL may contain a password.
        (Self::Subscriptions, "/subscriptions", "Subscriptions", WebRole::Operator),
        (Self::Service, "/service", "Service", WebRole::Operator),
        (Self::Operations, "/log", "Operations", WebRole::Operator),
        (Self::Logins, "/logins", "Logins", WebRole::Admin),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(screen, ..)| *screen == self).map_or("", |(_, _, name, _)| *name)
    }

    /// The least role that may see the screen.
    pub(super) fn least(self) -> WebRole {
        Self::ALL.iter().find(|(screen, ..)| *screen == self).map_or(WebRole::Admin, |(.., least)| *least)
    }
}

/// A whole page. `title` may be text from a stranger.
pub(super) fn page(title: &str, screen: Option<Screen>, viewer: Option<&WebSession>, main: &Markup) -> Html<String> {
    let title = visible(title);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) " · maildrop" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                link rel="stylesheet" href=(assets::style());
                link rel="icon" type="image/svg+xml" href=(assets::icon());
                script src=(assets::script()) defer {}
            }
            body {
                a .skip href="#main" { "To the content" }
                @if screen == Some(Screen::Activity) { a .skip href="#results" { "To the results" } }
                header {
                    a .brand href="/" { "maildrop" }
                    @if let Some(viewer) = viewer {
                        nav aria-label="Main" {
                            ul {
                                @for (one, path, name, _) in Screen::ALL.into_iter().filter(|(.., least)| viewer.role >= *least) {
                                    li { a href=(path) aria-current=[(screen == Some(one)).then_some("page")] { (name) } }
                                }
                            }
                        }
                        @if viewer.id.is_empty() {
                            p .who { (viewer.name) }
                        } @else {
                            form method="post" action="/logout" {
                                span .who { "Logged in as " (viewer.name) } " " button { "Log out" }
                            }
                        }
                    }
                }
                main #main {
                    h1 { (title) }
                    (main)
                }
                // The script replaces these words: it shows times in the browser's time zone.
                @if viewer.is_some() { footer { p .hint { span data-zone { "Times are UTC." } } } }
            }
        }
    };
    Html(markup.into_string())
}

/// A page that makes the browser request `path` again, from this site.
pub(super) fn onward(path: &str) -> Html<String> {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "maildrop" }
                meta http-equiv="refresh" content=(format!("0; url={path}"));
            }
            body { main { h1 { "maildrop" } p { a href=(path) { "Go on" } } } }
        }
    };
    Html(markup.into_string())
}

/// A stranger's text in which characters that change how the surrounding text is read become visible. Characters that reverse
/// or embed text (Unicode Bidirectional Algorithm, UAX 9 section 2), and control characters, are replaced by their names. Line
/// ends and tabs stay.
pub(super) fn visible(text: &str) -> String {
    // Marks that only set the direction of a word occur in legitimate text.
    let hidden = |c: char| is_unsafe(c) && !matches!(c, '\n' | '\t' | '\u{200e}' | '\u{200f}' | '\u{061c}');
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) {
            visible.push_str(&format!("[U+{:04X}]", u32::from(c)));
        } else {
            visible.push(c);
        }
    }
    visible
}

/// A moment, to the second, in UTC. The script adds the time in the browser's time zone.
pub(super) fn moment(microseconds: i64) -> Markup {
    let utc = time_text(microseconds);
    html! { time datetime=(exact(microseconds)) title=(utc) { (utc) } }
}

/// A text of ours, in which each moment that [`time_text`] has written is shown as [`moment`] shows it.
pub(super) fn with_moments(text: &str) -> Markup {
    const LENGTH: usize = "2026-11-20 03:00:00Z".len();
    let split = |piece: &str| {
        let (before, time) = piece.split_at_checked(piece.len().checked_sub(LENGTH)?)?;
        Some((before.to_owned(), since(time).ok().filter(|_| time.ends_with('Z'))?))
    };
    html! {
        @for piece in text.split_inclusive('Z') {
            @match split(piece) { Some((before, at)) => { (before) (moment(at)) } None => (piece) }
        }
    }
}

/// `1,204`.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A column of a table: its name, and the class of its cells (`n`: a number, `t`: a time).
pub(super) type Column = (&'static str, &'static str);

/// A table of this class. On a narrow screen each cell has the name of its column beside it.
pub(super) fn table<const N: usize>(
    class: &str,
    caption: impl Render,
    columns: [Column; N],
    rows: impl IntoIterator<Item = [Markup; N]>,
) -> Markup {
    table_with_ids(class, caption, columns, rows.into_iter().map(|cells| (None, cells)))
}

/// The same, with ids of rows for the script.
pub(super) fn table_with_ids<const N: usize>(
    class: &str,
    caption: impl Render,
    columns: [Column; N],
    rows: impl IntoIterator<Item = (Option<String>, [Markup; N])>,
) -> Markup {
    let class_of = |class: &'static str| (!class.is_empty()).then_some(class);
    html! {
        table class={ "rows " (class) } {
            caption { (caption) }
            thead { tr { @for (name, class) in columns { th class=[class_of(class)] scope="col" { (name) } } } }
            tbody {
                @for (id, cells) in rows {
                    tr id=[id] {
                        @for ((name, class), cell) in columns.into_iter().zip(cells) {
                            td class=[class_of(class)] data-label=(name) { (cell) }
                        }
                    }
                }
            }
        }
    }
}

/// The link to the next page of a list.
pub(super) fn pager(path: &str, name: &str) -> Markup {
    html! { nav .pager aria-label="Pages" { a href=(path) rel="next" { (name) } } }
}

/// A value, or a dash if it is missing.
pub(super) fn or_dash(value: Option<impl Render>) -> Markup {
    html! { @match value { Some(value) => (value), None => "–" } }
}

/// The text of a message's field, unless it is missing or blank.
pub(super) fn not_blank(field: Option<&str>) -> Option<&str> {
    field.filter(|text| !text.trim().is_empty())
}

/// A message by its subject. Its Message-ID stands for a missing subject only.
pub(super) fn message_name(subject: Option<&str>, message_id: &str, is_recorded: bool) -> Markup {
    html! {
        @match not_blank(subject) {
            Some(subject) => bdi { (subject) },
            None if is_recorded => { "(no subject) " code { (message_id) } }
            None => code { (message_id) },
        }
    }
}

/// The author of a message, as its From field names them.
pub(super) fn author(from: Option<&str>, is_recorded: bool) -> Markup {
    html! {
        @match not_blank(from) {
            Some(from) => bdi { (from) },
            None if is_recorded => "(no sender)",
            None => "author not recorded yet",
        }
    }
}

/// A state in its colour, and the reason after its colon in the colour of text.
pub(super) fn state(class: &str, words: &str) -> Markup {
    html! {
        @match words.split_once(": ") {
            Some((state, reason)) => { span class=(class) { (state) ":" } " " (reason) }
            None => span class=(class) { (words) },
        }
    }
}

/// The outcome of a try, with the text of the server or the system folded.
pub(super) fn folded(outcome: &Outcome) -> Markup {
    let words = state(class(AttemptResult::of_copy(Some(outcome))), &outcome.without_detail().to_string());
    html! {
        @match outcome {
            Outcome::Deferred(_, Some(detail)) => details { summary { (words) } (detail) },
            _ => (words),
        }
    }
}

/// One sentence on each of these words, unfolded on request.
pub(super) fn help(words: &[(&str, &str)]) -> Markup {
    html! {
        details .help {
            summary { "What these words mean" }
            dl { @for (word, meaning) in words { dt { (word) } dd { (meaning) } } }
        }
    }
}

/// The CSS class of a result. The text says the same.
pub(super) fn class(result: AttemptResult) -> &'static str {
    match result {
        AttemptResult::Delivered => "good",
        AttemptResult::Busy | AttemptResult::Deferred(_) | AttemptResult::Open | AttemptResult::Audit => "wait",
        AttemptResult::Refused | AttemptResult::Died => "bad",
    }
}

pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::Recipient => "recipient",
        Role::Sender => "Sent copy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_for_people() {
        assert_eq!([0, 999, 1204, 1_000_000].map(number), ["0", "999", "1,204", "1,000,000"]);
        assert_eq!([0.25, 28.4, 4200.0, 240_000.0].map(milliseconds), ["0.2 ms", "28 ms", "4.2 s", "4m"]);
    }

    #[test]
    fn moments_in_a_text_are_shown_as_all_others() {
        let text = "next at 2026-11-20 03:00:00Z; Zoë, of 1Z";
        let shown = format!("next at {}; Zoë, of 1Z", moment(since("2026-11-20T03:00:00Z").unwrap()).0);
        assert_eq!(with_moments(text).0, shown);
        for text in ["", "2d", "Z", "ein <b> vor 12 Tagen um 1Z"] {
            assert_eq!(with_moments(text).0, text.replace('<', "&lt;").replace('>', "&gt;"));
        }
    }

    #[test]
    fn what_turns_text_around_is_named() {
        assert_eq!(
            visible("in\u{202e}fdp.exe\u{2066}\u{1b}[2J\r\n\tשלום"),
            "in[U+202E]fdp.exe[U+2066][U+001B][2J[U+000D]\n\tשלום"
        );
        assert!(!page("a\u{202e}b", None, None, &html! {}).0.contains('\u{202e}'));
    }

    #[test]
    fn what_strangers_write_stays_text() {
        let hostile = "</title><script>alert(1)</script>\"'&";
        for page in [page(hostile, None, None, &html! {}).0, onward(hostile).0] {
            assert!(!page.contains("<script>alert"), "{page}");
        }
    }
}
