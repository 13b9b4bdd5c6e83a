//! The pages for people, and the commands in them: which test runs each, or why none does.
#![allow(dead_code, reason = "every test target uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};

/// The project's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages whose commands are run.
pub fn pages() -> Vec<PathBuf> {
    let fixed = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "postfix/README.md"]
        .map(|page| root().join(page));
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut docs: Vec<PathBuf> = docs.filter(|path| is_page(path)).collect();
    docs.sort();
    fixed.into_iter().chain(docs).collect()
}

pub fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// A fenced example of a page.
pub struct Block {
    /// `docs/operate.md:57`.
    pub place: String,
    pub language: String,
    /// What stands behind that: who runs it whole, in place of line by line.
    pub run_by: String,
    /// Its lines, as indented as its fence is not.
    pub lines: Vec<String>,
}

/// What a page has outside its fenced examples, and these.
pub fn read(page: &Path) -> (String, Vec<Block>) {
    let (mut prose, mut blocks, mut within) = (String::new(), Vec::<Block>::new(), None);
    let name = page.strip_prefix(root()).unwrap().display();
    for (number, line) in fs::read_to_string(page).unwrap().lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), within) {
            (Some(info), None) => {
                within = Some(line.len() - line.trim_start().len());
                let (place, info) = (format!("{name}:{}", number + 2), info.split_once(' ').unwrap_or((info, "")));
                let (language, run_by) = (info.0.to_owned(), info.1.to_owned());
                blocks.push(Block { place, language, run_by, lines: Vec::new() });
            }
            (Some(_), Some(_)) => within = None,
            (None, Some(indent)) => blocks.last_mut().unwrap().lines.push(line.get(indent..).unwrap_or("").to_owned()),
            (None, None) => {
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    assert_eq!(within, None, "{name}: a fence is not closed");
    (prose, blocks)
}

/// The fenced examples of all pages.
pub fn blocks() -> Vec<Block> {
    pages().iter().flat_map(|page| read(page).1).collect()
}

/// A command line, or a statement, as a reader pastes it; without a comment at its end.
#[derive(Clone, Debug)]
pub struct Line {
    pub place: String,
    pub text: String,
}

/// The page that tests/package/on_debian runs from its first command to its last, texts for files among them.
const RUN_WHOLE: &str = "docs/debian.md:";

/// The command lines of all examples in shell, but for those that are run whole.
pub fn command_lines() -> Vec<Line> {
    let mut lines = Vec::new();
    let whole = |block: &Block| block.place.starts_with(RUN_WHOLE) || !block.run_by.is_empty();
    let by_line = |block: &Block| block.language == "sh" && !whole(block);
    for block in blocks().into_iter().filter(by_line) {
        let mut begun = String::new();
        for line in &block.lines {
            begun += line;
            if begun.ends_with('\\') {
                begun.push('\n');
                continue;
            }
            let text = std::mem::take(&mut begun);
            let text = text[..command_ends_at(&text)].trim_end();
            if !text.is_empty() {
                lines.push(Line { place: block.place.clone(), text: text.to_owned() });
            }
        }
    }
    lines
}

/// The statements of all examples in SQL.
pub fn statements() -> Vec<Line> {
    let sql = |block: &Block| block.language == "sql";
    let all = |block: Block| {
        let text = block.lines.join("\n");
        let statements: Vec<String> = text.split(';').map(|statement| statement.trim().to_owned()).collect();
        statements.into_iter().map(move |text| Line { place: block.place.clone(), text })
    };
    blocks().into_iter().filter(sql).flat_map(all).filter(|line| !line.text.is_empty()).collect()
}

/// What stands in the text itself, between backticks.
pub fn spans() -> Vec<Line> {
    let mut spans = Vec::new();
    for page in pages() {
        let prose = read(&page).0;
        let place = page.strip_prefix(root()).unwrap().display().to_string();
        for text in prose.split('`').skip(1).step_by(2) {
            // In a table `\|` is a `|`.
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace("\\|", "|");
            spans.push(Line { place: place.clone(), text });
        }
    }
    spans
}

/// The subcommands, by which an excerpt in the text is known as one of ours though it leaves out the program's name.
const SUBCOMMANDS: [&str; 15] = [
    "migrate",
    "check",
    "trace",
    "stats",
    "audit",
    "prune",
    "replay",
    "lock",
    "queue",
    "inject",
    "shunt",
    "notify",
    "subscription",
    "token",
    "web",
];

/// The command lines of this program in the text itself: `maildrop_command trace`, `replay --owed`.
pub fn commands_in_the_text() -> Vec<Line> {
    let mut commands = Vec::new();
    for Line { place, text } in spans() {
        let first = text.split(' ').next().unwrap_or_default();
        if text.contains("maildrop_command ") {
            commands.push(Line { place, text });
        } else if SUBCOMMANDS.contains(&first) && text.contains(' ') {
            commands.push(Line { place, text: format!("maildrop_command {text}") });
        }
    }
    commands
}

/// What is done with a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Treatment {
    /// tests/embedded/project/documented_commands.rs runs it.
    RunWithoutServers,
    /// tests/server_tests/commands/documented_commands_on_servers.rs runs it.
    RunOnServers,
    /// tests/server_tests/postfix/postfix_fragments.rs runs it.
    RunUnderPostfix,
    /// It runs tests: what it asks for is there.
    RunsTests,
    /// It is not run here, because.
    NotRun(&'static str),
}

/// What is done with a command line; `None`: nobody has said.
pub fn treatment(text: &str) -> Option<Treatment> {
    if let Some((_, why)) = NOT_RUN.iter().find(|(written, _)| *written == text) {
        return Some(Treatment::NotRun(why));
    }
    if QUICKSTART.iter().any(|beginning| text.starts_with(beginning)) {
        return Some(Treatment::RunWithoutServers);
    }
    if UNDER_POSTFIX.contains(&text) {
        return Some(Treatment::RunUnderPostfix);
    }
    if words(text).iter().flatten().any(|word| word == "tests/run") {
        return Some(Treatment::RunsTests);
    }
    (!ours(text).is_empty()).then_some(Treatment::RunOnServers)
}

/// The command lines of this program in one line of a page, run as another user or not.
pub fn ours(text: &str) -> Vec<Vec<String>> {
    let program = |word: &String| word.rsplit('/').next() == Some("maildrop_command");
    let begins = |command: &Vec<String>| match command[0].as_str() {
        "setpriv" => command.iter().position(program),
        _ => program(&command[0]).then_some(0),
    };
    words(text).iter().filter_map(|command| Some(command[begins(command)?..].to_vec())).collect()
}

/// All that is listed word by word.
pub fn listed() -> Vec<&'static str> {
    NOT_RUN.iter().map(|(written, _)| *written).chain(UNDER_POSTFIX).collect()
}

/// README.md, "Try it".
pub const QUICKSTART: [&str; 2] = ["cargo run --release -- --embedded /tmp/maildrop-demo ", "find /tmp/maildrop-demo "];

/// postfix/README.md, from step 4 on.
const UNDER_POSTFIX: [&str; 16] = [
    "install -m 644 postfix/header-checks.maildrop /etc/postfix/maildrop-header-checks",
    "install -m 640 -g postfix postfix/pgsql-recipients.cf /etc/postfix/maildrop-recipients.cf",
    "install -m 600 -o postfix postfix/pgsql-recipients.pgpass /etc/postfix/maildrop-recipients.pgpass",
    "postmap -q scuba@mail.axial.net pgsql:/etc/postfix/maildrop-recipients.cf",
    "cat postfix/master.cf.maildrop >>/etc/postfix/master.cf",
    "postconf -e virtual_transport=lmtp:unix:private/dovecot-lmtp",
    "postconf -e unknown_virtual_mailbox_reject_code=450",
    "grep -v '^virtual_transport' postfix/main.cf.maildrop >>/etc/postfix/main.cf",
    "postfix check && postfix reload",
    "postconf -e \"transport_maps = inline:{scuba@mail.axial.net=maildrop:} $(postconf -h transport_maps)\" && postfix reload",
    "postconf -e virtual_transport=maildrop \"transport_maps = $(postconf -h transport_maps | sed 's/^inline:{[^}]*=maildrop:} *//')\" && postfix reload",
    "postconf -PX maildrop/unix/soft_bounce && postconf -X unknown_virtual_mailbox_reject_code && postfix reload",
    "mailq",
    "grep 'relay=maildrop' /var/log/mail.log",
    "postqueue -i QUEUE-ID",
    "postconf -e virtual_transport=lmtp:unix:private/dovecot-lmtp && postfix reload && postqueue -f",
];

const PACKAGE: &str =
    "it changes the machine; tests/package/check installs the package, which does the same, on Debian 12 and 13";
const PASSWORDS: &str =
    "it changes the machine; tests/package/first_hour installs the same files, which quickstart writes";
const RIGHTS: &str = "tests/package/first_hour gives the same rights, by the SQL that quickstart writes";
const MASTER_USER: &str = "tests/package/on_debian runs it, or the same, as docs/debian.md has it";
const DOVECOT: &str = "tests/package/first_hour does the same, with the files that quickstart writes";
const BY_THE_GUIDE: &str = "tests/server_tests/notifications/receiver_from_the_guide.rs runs it";
/// It is run on a notification that came.
const ON_A_NOTIFICATION: &str = "tests/server_tests/notifications/event_delivery.rs runs it";
const BY_REST: &str =
    "tests/server_tests/notifications/rest_api.rs and submission_by_http.rs ask the same, without a proxy";
const BY_AN_APPLICATION: &str =
    "tests/server_tests/notifications/application_receiver.rs does the same, without a proxy";
const CI: &str = "it builds; .ci/run runs it";
const HOURS: &str = "it takes longer than a test may";
const DUMP_OR_RESTORE: &str = "it saves or loads a site's whole database";

const CONTAINER: &str = "tests/server_tests/service/container.rs does it with docker, by these options";

const SERVICE: &str = "tests/embedded/service/service_commands.rs runs it, on a service of its own";

const INJECT: &str =
    "tests/embedded/commands/inject_embedded.rs and tests/server_tests/service/inject_and_queue.rs run it";
const QUEUE: &str = "tests/embedded/commands/queue_commands.rs runs it, on a queue of its own";

const SHUNT: &str = "tests/embedded/service/shunted_messages.rs runs it, on a service of its own";

/// Command lines that no test runs, and why. What stands in a page and is neither run nor here fails the test.
const NOT_RUN: [(&str, &str); 88] = [
    (
        "TOKEN=$(maildrop_command token create --name crm --scope subscriptions:write --scope events:read \
         --domain mail.axial.net --json | jq -r .token)",
        BY_REST,
    ),
    ("python3 receiver.py 8077", BY_AN_APPLICATION),
    ("curl -H \"Authorization: Bearer $TOKEN\" 'https://mail.example.com/api/v1/events?after=now'", BY_AN_APPLICATION),
    (
        "curl -H \"Authorization: Bearer $TOKEN\" --json '{\"callback_url\": \"https://shop.example.com/mail\", \"resource\": \"domain\", \
         \"resource_id\": \"mail.axial.net\", \"types\": [\"message.delivered\"]}' \
         https://mail.example.com/api/v1/subscriptions >subscription.json",
        BY_AN_APPLICATION,
    ),
    (
        "curl -H \"Authorization: Bearer $TOKEN\" \"https://mail.example.com/api/v1/messages/$MESSAGE/source\"",
        BY_AN_APPLICATION,
    ),
    (
        "curl -H \"Authorization: Bearer $TOKEN\" \"https://mail.example.com/api/v1/events?after=$NEXT\"",
        BY_AN_APPLICATION,
    ),
    ("install -m 644 postfix/dovecot-delivery.conf /etc/dovecot/", DOVECOT),
    ("install -m 644 postfix/dovecot-delivery.service /etc/systemd/system/", DOVECOT),
    ("doveconf -c /etc/dovecot/dovecot-delivery.conf >/dev/null && systemctl daemon-reload", DOVECOT),
    ("systemctl enable --now dovecot-delivery.service", DOVECOT),
    (
        "pg_dump --data-only --exclude-table=maildrop_migrations --exclude-table=epochs --file=/root/ledger.sql maildrop",
        DUMP_OR_RESTORE,
    ),
    (
        "mysqldump --no-create-info --complete-insert --hex-blob --single-transaction --set-gtid-purged=OFF \
         --ignore-table=maildrop.maildrop_migrations --ignore-table=maildrop.epochs maildrop >/root/ledger.sql",
        DUMP_OR_RESTORE,
    ),
    ("psql --set=ON_ERROR_STOP=1 --single-transaction --file=/root/ledger.sql maildrop", DUMP_OR_RESTORE),
    ("mysql maildrop </root/ledger.sql", DUMP_OR_RESTORE),
    ("maildrop_command web sessions --end ID", "tests/embedded/web_ui/screens_embedded.rs runs it"),
    (
        "cargo run --release --bin maildropd -- --embedded /tmp/maildrop-demo --web 127.0.0.1:8025",
        "it stays in the foreground; tests/embedded/web_ui/screens_embedded.rs runs it",
    ),
    (
        "curl -H \"Authorization: Bearer $TOKEN\" --json '{\"callback_url\": \"https://example.com/mail\", \"resource\": \"all\"}' \
         https://mail.example.com/api/v1/subscriptions",
        BY_REST,
    ),
    (
        "curl -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: message/rfc822' --data-binary @message.eml \
         'https://mail.example.com/api/v1/messages?recipient=doug@mail.axial.net'",
        BY_REST,
    ),
    (
        "maildrop_command subscription create --callback https://example.com/mail --domain mail.axial.net",
        "tests/server_tests/notifications/event_delivery.rs runs it, with a key and a receiver",
    ),
    (
        "maildrop_command quickstart --domain mail.axial.net --database postgresql://db.axial.net/maildrop --imap imap.axial.net \
         going-live",
        "tests/embedded/commands/quickstart.rs runs it, and tests/package/first_hour what it writes",
    ),
    ("python3 receiver.py", BY_THE_GUIDE),
    (
        "maildrop_command subscription create --callback http://127.0.0.1:8077/ --json \
         >subscription.json",
        BY_THE_GUIDE,
    ),
    ("key=$(printf %s \"${SECRET#whsec_}\" | base64 -d | od -An -v -tx1 | tr -d ' \\n')", ON_A_NOTIFICATION),
    (
        "(printf '%s.%s.' \"$ID\" \"$TIMESTAMP\"; cat body) | openssl dgst -sha256 -mac HMAC -macopt \"hexkey:$key\" -binary | base64",
        ON_A_NOTIFICATION,
    ),
    ("cargo build", CI),
    ("cargo fmt --check", CI),
    ("cargo clippy --locked --all-targets --all-features -- -D warnings", CI),
    ("cargo nextest run --test simulation", "it is one of the tests"),
    (
        "MAILDROP_TEST_OTHERS=1000 cargo nextest run --features test-faults --test embedded -E 'test(crashing_messages)'",
        "it takes minutes; with fewer others it is one of the tests",
    ),
    (
        "cargo nextest run --features test-faults --test embedded -E 'test(by_a_bug)'",
        "it builds the program with bugs to order, which no other test is to see",
    ),
    (
        "SIMULATION_PREEMPTIONS=3 SIMULATION_RETRIES=3 cargo test --profile simulation --test simulation every_schedule -- \
         --nocapture",
        HOURS,
    ),
    (
        "SIMULATION_SCHEDULES=30000 cargo test --profile simulation --test simulation random_schedules -- --nocapture",
        HOURS,
    ),
    (
        "SIMULATION_PREEMPTIONS=2 cargo test --profile simulation --test simulation all_schedules_of_two_fronts -- --nocapture",
        HOURS,
    ),
    (
        "SIMULATION_SCHEDULES=10000 cargo test --profile simulation --test simulation service_tests::random_schedules -- \
         --nocapture",
        HOURS,
    ),
    ("tests/mutants/run", HOURS),
    ("tests/mutants/run imap src/site/mod.rs", HOURS),
    ("tests/mutants/run --by \"--lib -- zmtp::\" zmtp", HOURS),
    ("tests/mutants/run --servers", HOURS),
    ("tests/mutants/run --servers imap", HOURS),
    ("tests/mutants/run --slice", ".ci/run runs it"),
    ("tests/mutants/run --slice delivery", HOURS),
    (
        "useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin maildrop",
        "it changes the machine; tests/support/postfix.rs runs it on the mail hosts",
    ),
    ("install -m 755 target/release/maildrop_command target/release/maildropd /usr/bin/", PACKAGE),
    ("groupadd --system maildrop-operator", PACKAGE),
    ("tests/package/build", PACKAGE),
    ("apt-get install --yes ./target/debian/maildrop-command_*.deb", PACKAGE),
    ("cargo build --release", "tests/package/build does it, by cargo-deb"),
    ("install -d -m 755 /etc/maildrop_command", PACKAGE),
    ("install -m 640 -g maildrop /dev/null /etc/maildrop_command/database.password", PACKAGE),
    ("install -m 640 -g maildrop /dev/null /etc/maildrop_command/imap.password", PACKAGE),
    ("install -m 640 -g maildrop-operator /dev/null /etc/maildrop_command/operator.password", PASSWORDS),
    ("install -m 600 /dev/null /etc/maildrop_command/owner.password", PASSWORDS),
    (
        "for name in database imap operator owner; do openssl rand -hex 24 >/etc/maildrop_command/$name.password; done",
        PASSWORDS,
    ),
    (
        "cat sql/postgres/grants.sql | runuser -u postgres -- psql --set=ON_ERROR_STOP=1 --set=role=maildrop maildrop",
        RIGHTS,
    ),
    (
        "cat sql/postgres/grants.sql sql/postgres/grants-operator.sql | runuser -u postgres -- psql --set=ON_ERROR_STOP=1 \
         --set=role=maildrop_operator maildrop",
        RIGHTS,
    ),
    ("runuser -u postgres -- psql --command='GRANT SELECT ON addresses TO postfix_maps' maildrop", RIGHTS),
    ("install -m 640 -g dovecot /dev/null /etc/dovecot/maildrop-masters", MASTER_USER),
    ("hash=$(doveadm pw -s BLF-CRYPT -p \"$(cat /etc/maildrop_command/imap.password)\")", MASTER_USER),
    ("echo \"maildrop:$hash::::::allow_nets=127.0.0.1,::1\" >/etc/dovecot/maildrop-masters", MASTER_USER),
    ("doveconf >/dev/null && doveadm reload", MASTER_USER),
    (
        "printf 'Subject: the first one\\n\\nHello\\n' | sendmail scuba@mail.axial.net",
        "tests/server_tests/postfix/postfix_fragments.rs sends its message by SMTP",
    ),
    (
        "install -m 755 target/release/maildrop_command /usr/bin/maildrop_command.new && mv \
         /usr/bin/maildrop_command.new /usr/bin/maildrop_command",
        PACKAGE,
    ),
    ("systemctl enable --now maildropd.socket maildropd.service", PACKAGE),
    ("maildrop_command service status", SERVICE),
    ("maildrop_command service reload", SERVICE),
    ("maildrop_command service restart", SERVICE),
    ("maildrop_command service reopen", SERVICE),
    ("maildrop_command service stop", SERVICE),
    ("maildrop_command queue list", QUEUE),
    ("maildrop_command queue show ID", QUEUE),
    ("maildrop_command queue show --message ID", QUEUE),
    ("maildrop_command queue hold ID", QUEUE),
    ("maildrop_command queue release ID", QUEUE),
    ("maildrop_command queue drop --yes ID", QUEUE),
    ("maildrop_command shunt list", SHUNT),
    ("maildrop_command shunt show", SHUNT),
    ("maildrop_command shunt show ID", SHUNT),
    ("maildrop_command shunt show --message ID", SHUNT),
    ("maildrop_command shunt retry ID", SHUNT),
    ("maildrop_command shunt retry --all", SHUNT),
    ("maildrop_command shunt drop ID", SHUNT),
    ("maildrop_command inject --sender ADDRESS --recipient ADDRESS FILE", INJECT),
    (
        "docker compose --file docs/compose/compose.yml up",
        "tests/package/compose runs it, with programs that are built already",
    ),
    ("podman build --tag maildropd --file docs/Containerfile target/release", CONTAINER),
    ("podman exec maildropd maildrop_command service status", CONTAINER),
    (
        "podman run --name maildropd --read-only --cap-drop=ALL --security-opt no-new-privileges \\\n    \
         --tmpfs /run/maildropd:uid=980,gid=980,mode=0700 --stop-timeout 300 \\\n    \
         --volume /etc/maildrop_command:/etc/maildrop_command:ro --volume maildropd:/var/lib/maildropd --volume \
         lmtp:/run/lmtp maildropd",
        CONTAINER,
    ),
    ("journalctl --grep relay=maildrop", "the test's mail hosts have no journald"),
    (
        "setpriv --reuid 1000 --regid 1000 --clear-groups maildrop_command …",
        "what to run is for the reader to say; tests/embedded/delivery/root_and_other_users.rs has it",
    ),
];

/// Divides a command line into its commands, and these into words, as sh(1) does: at `|`, `&&` and `;`; quotes, backslashes and
/// comments are read, redirections left out.
pub fn words(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut redirected) = (vec![Vec::new()], false);
    let mut rest = line[..command_ends_at(line)].chars().peekable();
    while let Some(&next) = rest.peek() {
        match next {
            _ if next.is_whitespace() => drop(rest.next()),
            '\\' if rest.clone().nth(1) == Some('\n') => drop(rest.nth(1)),
            '|' | '&' | ';' => {
                while rest.next_if(|c| "|&;".contains(*c)).is_some() {}
                commands.push(Vec::new());
            }
            '<' | '>' => {
                while rest.next_if(|c| "<>".contains(*c)).is_some() {}
                redirected = true;
            }
            _ => {
                let word = word(&mut rest);
                if !std::mem::take(&mut redirected) {
                    commands.last_mut().unwrap().push(word);
                }
            }
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

fn word(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let (mut word, mut quote) = (String::new(), None);
    while let Some(&next) = rest.peek() {
        match quote {
            None if next.is_whitespace() || "|&;<>".contains(next) => break,
            None if next == '\'' || next == '"' => quote = Some(next),
            Some(end) if next == end => quote = None,
            _ => word.push(next),
        }
        rest.next();
    }
    word
}

/// Where a comment at the end of a command line begins.
fn command_ends_at(line: &str) -> usize {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match quote {
            None if c == '#' && before.is_whitespace() => return at,
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(end) if c == end => quote = None,
            _ => {}
        }
        before = c;
    }
    line.len()
}
