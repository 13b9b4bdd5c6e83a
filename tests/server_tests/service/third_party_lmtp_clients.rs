//! Clients of LMTP that others wrote, at the service on real servers: Python's smtplib, swaks, msmtp, OpenSMTPD's
//! mail.lmtp, and Postfix's smtp-source.

use crate::support::database::Engine;
use crate::support::peers::{Peer, own_sockets};
use crate::support::postfix::on;
use crate::support::program::program;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use std::os::unix::fs::PermissionsExt;

const THREE: [&str; 3] = ["doug", "scuba", "kim"];

/// A scene whose service listens where the peers see it, too; and what they call that socket.
struct Met {
    scene: Scene,
    service: Service,
    socket: String,
    _folder: tempfile::TempDir,
}

fn met() -> Met {
    let mut scene = Scene::with(Engine::Postgres17, &THREE);
    scene.member("lisa");
    let (folder, inside) = own_sockets();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let service = Service::start_with(&mut scene, "workers = 2\n", &[&folder.path().join("lmtp")]);
    Met { scene, service, socket: format!("{inside}/lmtp"), _folder: folder }
}

impl Met {
    /// Each of the three has all of these, once, and so has their author.
    #[track_caller]
    fn each_has(self, subjects: &[&str]) {
        let mailboxes = THREE.map(|name| self.scene.inbox(name)).into_iter().chain([self.scene.sent("lisa")]);
        for mailbox in mailboxes {
            let there: Vec<String> = mailbox.iter().map(|copy| copy.field("Subject")).collect();
            assert_eq!(there, subjects);
        }
        self.service.end();
    }
}

fn three() -> [String; 3] {
    THREE.map(|name| format!("{name}@mail.axial.net"))
}

/// One message to three, twice; and one more in the same session, to one of them and a stranger.
const SMTPLIB: &str = "
import smtplib
socket, sender, message, *recipients = sys.argv[1:]
session = smtplib.LMTP(socket)
print(session.lhlo()[0] if hasattr(session, 'lhlo') else session.ehlo()[0])
print(*sorted(session.esmtp_features))
def deliver(recipients):
    session.mail(sender, ['BODY=8BITMIME'])
    for recipient in recipients:
        assert session.rcpt(recipient)[0] == 250
    # It reads the first reply; the others are left to a caller that knows their number.
    replies = [session.data(message.encode())] + [session.getreply() for _ in recipients[1:]]
    for code, text in replies:
        print(code, text.decode())
deliver(recipients)
deliver(recipients)
deliver(['stranger@mail.axial.net'])
print(*session.quit())
";

#[test]
fn smtplib_of_python() {
    let met = met();
    let message = met.scene.message("smtplib");
    let [doug, scuba, kim] = three();
    let mut python = Peer::python(SMTPLIB, &[&met.socket, LISA, &message, &doug, &scuba, &kim]);
    assert_eq!(python.line(), "250");
    assert_eq!(python.line(), "8bitmime enhancedstatuscodes pipelining size smtputf8 xforward");
    assert_eq!(python.line(), "250 2.0.0 INBOX appended (uid 1), Sent appended (uid 1)");
    assert_eq!(python.line(), "250 2.0.0 INBOX appended (uid 1)");
    assert_eq!(python.line(), "250 2.0.0 INBOX appended (uid 1)");
    assert_eq!(python.line(), "250 2.0.0 INBOX already there, Sent already there");
    assert_eq!(python.line(), "250 2.0.0 INBOX already there");
    assert_eq!(python.line(), "250 2.0.0 INBOX already there");
    assert_eq!(python.line(), "451 4.1.1 no such recipient here; deferred by routing.unknown_recipient");
    assert_eq!(python.line(), "221 b'2.0.0 Bye'");
    python.end();
    met.each_has(&["smtplib"]);
}

#[test]
fn swaks() {
    let met = met();
    let data = met.scene.message("swaks");
    let to = three().join(",");
    let command =
        ["swaks", "--protocol", "LMTP", "--socket", &met.socket, "--from", LISA, "--to", &to, "--data", &data];
    Peer::start(&command).end();
    met.each_has(&["swaks"]);
}

#[test]
fn msmtp() {
    let met = met();
    let script = "printf '%s' \"$2\" | msmtp --protocol=lmtp --host=localhost --port=24 --socket=\"$1\" --from=\"$3\" \"$4\" \"$5\" \"$6\"";
    let message = met.scene.message("msmtp");
    let [doug, scuba, kim] = three();
    Peer::start(&["sh", "-ec", script, "sh", &met.socket, &message, LISA, &doug, &scuba, &kim]).end();
    met.each_has(&["msmtp"]);
}

/// It has one recipient at a time, takes its message from standard input, and ends with 75 whatever it is refused for: smtpd(8) then tries
/// again. It does not run as root.
const MAIL_LMTP: &str = r#"
socket=$1 message=$2 sender=$3
shift 3
for recipient; do
    ended=0
    printf '%s' "$message" | setpriv --reuid=nobody --regid=nogroup --clear-groups env RECIPIENT="$recipient" \
        /opt/opensmtpd/usr/libexec/opensmtpd/mail.lmtp -d "$socket" -l opensmtpd.example -f "$sender" -r || ended=$?
    echo "$recipient $ended"
done 2>&1
"#;

#[test]
fn mail_lmtp_of_opensmtpd() {
    let met = met();
    let message = met.scene.message("opensmtpd");
    let [doug, scuba, kim] = three();
    let stranger = "stranger@mail.axial.net".to_owned();
    let all = [&doug, &scuba, &kim, &doug, &stranger];
    let mut command = vec!["bash", "-euc", MAIL_LMTP, "bash", &met.socket, &message, LISA];
    command.extend(all.map(String::as_str));
    let mut peer = Peer::start(&command);
    for to in [&doug, &scuba, &kim, &doug] {
        assert_eq!(peer.line(), format!("{to} 0"));
    }
    let refused = peer.line();
    assert!(refused.contains("451 4.1.1 "), "{refused}");
    assert_eq!(peer.line(), format!("{stranger} 75"));
    peer.end();
    met.each_has(&["opensmtpd"]);
}

/// Twenty messages on twenty connections at once, each for ten who get no other. A reply that is missing, or one too many, ends it.
#[test]
fn smtp_source_of_postfix() {
    let mut scene = Scene::for_mail_hosts(Engine::Postgres17);
    let names: Vec<String> = (0..200).map(|number| format!("doug{number}")).collect();
    let migrated = program(&["migrate", "--config", &scene.configuration_here()]).output().unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    for name in names.iter().map(String::as_str).chain(["lisa"]) {
        scene.member(name);
    }
    let service = Service::start(&mut scene);
    let place = format!("unix:{}", scene.seen("lmtp"));
    let many =
        ["smtp-source", "-L", "-s", "20", "-m", "20", "-r", "10", "-f", LISA, "-t", "doug@mail.axial.net", &place];
    on("mx1", &many);
    for name in &names {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 20);
    service.end();
}
