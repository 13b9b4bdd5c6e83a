//! What all screens share.

use super::assets;
use crate::base::timestamp::{exact, told};
use crate::ledger::AttemptResult;
use crate::ledger::web_sessions::{WebRole, WebSession};
use crate::message::Role;
use axum::response::Html;
use maud::{DOCTYPE, Markup, html};
use std::time::Duration;

/// The screens that stand in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Screen {
    Activity,
    Statistics,
    Locks,
    Service,
    Logins,
}

impl Screen {
    const ALL: [Self; 5] = [Self::Activity, Self::Statistics, Self::Locks, Self::Service, Self::Logins];

    /// The least role that may see it.
    pub(super) fn least(self) -> WebRole {
        match self {
            Self::Activity | Self::Statistics | Self::Locks => WebRole::Viewer,
            Self::Service => WebRole::Operator,
            Self::Logins => WebRole::Admin,
        }
    }

    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Activity => ("/", "Activity"),
            Self::Statistics => ("/statistics", "Statistics"),
            Self::Locks => ("/locks", "Locks"),
            Self::Service => ("/service", "Service"),
            Self::Logins => ("/logins", "Logins"),
        }
    }
}

/// A whole page. `title` may be anybody's text.
pub(super) fn page(title: &str, screen: Option<Screen>, viewer: Option<&WebSession>, main: &Markup) -> Html<String> {
    let may = |screen: &Screen| viewer.is_some_and(|viewer| viewer.role >= screen.least());
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
                header {
                    a .brand href="/" { "maildrop" }
                    @if let Some(viewer) = viewer {
                        nav aria-label="Main" {
                            ul {
                                @for one in Screen::ALL.into_iter().filter(may) {
                                    @let (path, name) = one.place();
                                    li { a href=(path) aria-current=[(screen == Some(one)).then_some("page")] { (name) } }
                                }
                            }
                        }
                        form method="post" action="/logout" {
                            button { "Log out " (viewer.name) }
                        }
                    }
                }
                main #main {
                    h1 { (title) }
                    (main)
                }
            }
        }
    };
    Html(markup.into_string())
}

/// A page that has the browser ask for `path` once more, from here.
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

/// A moment, to the second, in UTC.
pub(super) fn moment(microseconds: i64) -> Markup {
    html! { time datetime=(exact(microseconds)) { (told(microseconds)) } }
}

/// Milliseconds for people: `28 ms`, `4.2 s`.
pub(super) fn milliseconds(took: f64) -> String {
    if took < 10.0 {
        format!("{took:.1} ms")
    } else if took < 1000.0 {
        format!("{took:.0} ms")
    } else if took < 60_000.0 {
        format!("{:.1} s", took / 1000.0)
    } else {
        crate::base::timestamp::span(Duration::from_secs_f64(took / 1000.0))
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

/// How good it is what became of something: the class of its words, which say the same.
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
    fn what_strangers_write_stays_text() {
        let hostile = "</title><script>alert(1)</script>\"'&";
        for page in [page(hostile, None, None, &html! {}).0, onward(hostile).0] {
            assert!(!page.contains("<script>alert"), "{page}");
        }
    }
}
