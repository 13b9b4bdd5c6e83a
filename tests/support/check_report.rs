//! What `check` says, as programs read it.

use crate::support::program::program;
use crate::support::site_fixture::Scene;
use serde_json::Value;

/// Its findings, and how it ended.
pub struct Checked {
    pub exit: Option<i32>,
    findings: Vec<Value>,
}

impl Checked {
    /// By the site's configuration.
    pub fn of(scene: &Scene) -> Self {
        Self::by(&scene.path("config.toml"))
    }

    /// By this configuration.
    pub fn by(config: &str) -> Self {
        let printed =
            program(&["check", "--json", "--config", config, "--recipient", "doug@mail.axial.net"]).output().unwrap();
        let findings = serde_json::from_slice(&printed.stdout).unwrap_or_else(|error| panic!("{error}: {printed:?}"));
        Self { exit: printed.status.code(), findings }
    }

    /// The states of `what`, and what was found.
    pub fn on(&self, what: &str) -> Vec<(&str, &str)> {
        let of = self.findings.iter().filter(|finding| finding["what"] == what);
        of.map(|finding| (text(finding, "state"), text(finding, "found"))).collect()
    }

    /// What fixes this, which was found.
    pub fn fix(&self, found: &str) -> &str {
        let of = self.findings.iter().find(|finding| finding["found"] == found);
        of.map(|finding| text(finding, "fix")).unwrap_or_else(|| panic!("no {found} in {:#?}", self.findings))
    }
}

fn text<'a>(finding: &'a Value, of: &str) -> &'a str {
    finding[of].as_str().unwrap_or_default()
}

/// What would go wrong at a fail-over is said beforehand: this finding on `what`, in these states where `database.durability`
/// is "local" and "replicated", with the exit status that belongs to it; and where something is wrong, what it costs. Where unknown
/// recipients are refused, that is said of them as well.
pub fn assert_reported_before(scene: &Scene, what: &str, found: &str, states: [&str; 2]) {
    for (durability, state) in ["local", "replicated"].into_iter().zip(states) {
        let config = scene.other_configuration("beforehand.toml", |settings| {
            settings.database_more =
                format!("{}\ndurability = {durability:?}\n", without_durability(&settings.database_more));
        });
        let checked = Checked::by(&config);
        assert_eq!(checked.on(what), [(state, found)], "durability = {durability}: {:#?}", checked.findings);
        let fix = checked.fix(found);
        let shown =
            if state == "ok" { fix.is_empty() } else { fix.contains("a fail-over forgets what has not arrived yet") };
        assert!(shown, "durability = {durability}: {fix}");
        // Nothing else is wrong with the site.
        assert_eq!(checked.exit, Some(if state == "bad" { 69 } else { 0 }), "{durability}: {:#?}", checked.findings);
        assert!(checked.on("routing.unknown_recipient").is_empty(), "{:#?}", checked.findings);
        let config = scene.other_configuration("strict.toml", |settings| {
            settings.database_more =
                format!("{}\ndurability = {durability:?}\n", without_durability(&settings.database_more));
            settings.more += "\n[routing]\nunknown_recipient = \"reject\"\n";
        });
        let refusing = Checked::by(&config);
        let alone = (state != "ok").then_some((state, "\"reject\", and a commit may wait for no other server"));
        assert_eq!(refusing.on("routing.unknown_recipient"), Vec::from_iter(alone), "durability = {durability}");
    }
}

fn without_durability(lines: &str) -> String {
    lines.lines().filter(|line| !line.starts_with("durability")).collect::<Vec<_>>().join("\n")
}
