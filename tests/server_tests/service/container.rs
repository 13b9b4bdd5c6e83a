//! The service in a container, as docs/service.md has it: of docs/Containerfile, by an ordinary user, on a file system that
//! cannot be written. Mail comes in by a unix socket that is shared, and it ends after the messages in progress.

use crate::support::container;
use crate::support::database::Engine;
use crate::support::lmtp::Lmtp;
use crate::support::own_server::docker;
use crate::support::pages::{command_lines, words};
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::{LISA, Scene};
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// The user in the image.
const USER: u32 = 980;

/// What there is of it on this machine; dropped, nothing is.
struct Made {
    name: String,
    has_container: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.has_container {
            if std::thread::panicking() {
                eprintln!("{:?}", docker(&["logs", &self.name]));
            }
            let _ = docker(&["rm", "--force", "--volumes", &self.name]);
        }
        let _ = docker(&["rmi", "--force", &self.name]);
    }
}

impl Made {
    /// The image, on Debian's newest that is here: programs that were built on this machine or another run on it.
    fn build(name: String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (program, built) in [
            ("maildropd", env!("CARGO_BIN_EXE_maildropd")),
            ("maildrop_command", env!("CARGO_BIN_EXE_maildrop_command")),
        ] {
            fs::copy(built, folder.path().join(program)).unwrap();
        }
        let images = docker(&["images", "--format", "{{.Repository}}:{{.Tag}}", "maildrop-test/base-trixie"]).unwrap();
        let base = format!("BASE={}", images.lines().next().expect("an image of Debian 13"));
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/Containerfile");
        let context = folder.path().to_str().unwrap();
        docker(&["build", "--force-rm", "--tag", &name, "--build-arg", &base, "--file", file, context]).unwrap();
        Self { name, has_container: false }
    }

    /// As the page says, with these folders for its own.
    fn run(&mut self, network: &str, folders: &[(&Path, &str)]) {
        let lines = command_lines();
        let line = lines.iter().find(|line| line.text.starts_with("podman run")).expect("docs/service.md has it");
        let command = words(&line.text).remove(0);
        let options = command[2..command.len() - 1].iter().scan("", |before, word| {
            let of_ours = std::mem::replace(before, word);
            Some((of_ours, word.as_str()))
        });
        // But for its name, and the volumes, which are a test's own here.
        let kept = options.filter(|(before, word)| {
            !["--name", "--volume"].contains(word) && !["--name", "--volume"].contains(before)
        });
        let mut all = vec!["run", "--detach", "--name", &self.name, "--network", network];
        all.extend(kept.map(|(_, word)| word));
        assert!(all.contains(&"--read-only") && all.contains(&"--cap-drop=ALL"), "{all:?}");
        let volumes: Vec<String> = folders.iter().map(|(here, there)| format!("{}:{there}", here.display())).collect();
        all.extend(volumes.iter().flat_map(|volume| ["--volume", volume.as_str()]));
        all.push(&self.name);
        docker(&all).unwrap();
        self.has_container = true;
    }

    fn inside(&self, command: &[&str]) -> Result<String, String> {
        docker(&[&["exec", &self.name], command].concat())
    }
}

#[test]
fn in_a_container_it_needs_no_rights_and_ends_after_the_messages_in_progress() {
    let network = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}";
    let network = docker(&["inspect", "--format", network, &container("DOVECOT")]).unwrap();
    let mut scene = Scene::for_mail_hosts(Engine::Postgres17);
    scene.configure(|settings| {
        settings.more = "[service]\nlmtp = [\"/run/lmtp/maildropd\"]\nworkers = 2\nslow_mailbox_timeout = \"60s\"\n\
                         [log]\nto = \"file\"\nfile = \"/var/lib/maildropd/log\"\n"
            .into();
    });
    let other = scene.other_configuration("config-here.toml", |settings| settings.more = String::new());
    let text = fs::read_to_string(&other).unwrap().replace(&scene.seen(""), &scene.path(""));
    fs::write(&other, text).unwrap();
    let migrated = program(&["migrate", "--config", &other]).output().unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    let names = ["doug", "scuba", "kim"];
    for name in names.iter().chain([&"lisa"]) {
        scene.member(name);
    }
    let [lmtp, state] = ["lmtp", "state"].map(|name| {
        let folder = Path::new(&scene.path(name)).to_owned();
        fs::create_dir(&folder).unwrap();
        chown(&folder, Some(USER), Some(USER)).unwrap();
        folder
    });
    // Where it looks for it, by the image's own command line.
    let configuration = Path::new(&scene.path("")).to_owned();
    let seen = scene.seen("");
    let mut made = Made::build(format!("maildrop-test-in-a-container-{}", scene.run));
    made.run(
        network.trim(),
        &[
            (&configuration, "/etc/maildrop_command:ro"),
            (&configuration, &format!("{}:ro", seen.trim_end_matches('/'))),
            (&lmtp, "/run/lmtp"),
            (&state, "/var/lib/maildropd"),
        ],
    );
    wait_until("it is well", || made.inside(&["maildrop_command", "service", "status"]).is_ok());
    let status = made.inside(&["cat", "/proc/1/status"]).unwrap();
    assert!(status.contains(&format!("Uid:\t{USER}\t")) && status.contains("CapBnd:\t0000000000000000"), "{status}");
    assert!(made.inside(&["touch", "/etc/anything"]).is_err());

    let recipients = names.map(|name| format!("{name}@mail.axial.net"));
    let socket = lmtp.join("maildropd");
    let replies = Lmtp::connect(&socket).deliver(LISA, &recipients, &scene.message("first"));
    assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 INBOX appended")), "{replies:?}");

    let holder = scene.hold(&scene.message_id("in-progress"));
    let mut session = Lmtp::connect(&socket);
    session.give(LISA, &recipients, &scene.message("in-progress"));
    wait_until("it waits for its lock", || {
        scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL") > 0
    });
    let mut stopping = Command::new("docker").args(["stop", &made.name]).spawn().unwrap();
    let is_ending = || fs::read_to_string(state.join("log")).unwrap().contains("the service ends");
    wait_until("it is asked to end", is_ending);
    drop(holder);
    let replies = session.replies(3);
    assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 INBOX appended")), "{replies:?}");
    assert!(stopping.wait().unwrap().success());
    assert_eq!(docker(&["inspect", "--format", "{{.State.ExitCode}}", &made.name]).unwrap().trim(), "0");
    for name in names {
        let there: Vec<String> = scene.inbox(name).iter().map(|copy| copy.field("Subject")).collect();
        assert_eq!(there, ["first", "in-progress"], "{name}");
    }
}
