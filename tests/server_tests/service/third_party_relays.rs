//! Servers that others wrote and that hand mail on by LMTP: Dovecot's proxy, and Exim, by a unix socket and by TCP. Nine
//! of ten recipients are served, and the tenth comes back when he can be.

use crate::support::database::Engine;
use crate::support::peers::{Peer, own_sockets};
use crate::support::program::wait_until;
use crate::support::server;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const NINE: [&str; 9] = ["doug", "scuba", "kim", "anna", "bert", "carl", "dora", "emil", "fred"];
/// Nobody bears this address at first.
const LATE: &str = "late";

/// A service for the peers: by a unix socket, and by TCP for their address alone.
struct Met {
    scene: Scene,
    service: Service,
    /// What the peers call the unix socket.
    socket: String,
    host: String,
    port: String,
    _folder: tempfile::TempDir,
}

fn met() -> Met {
    let mut scene = Scene::with(Engine::Postgres17, &NINE);
    scene.member("lisa");
    let (folder, inside) = own_sockets();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (host, port, theirs) = here("PEERS");
    let serve = format!("workers = 2\nlmtp_clients = [\"{theirs}\"]\n");
    let places = [folder.path().join("lmtp"), format!("{host}:{port}").into()];
    let service = Service::start_with(&mut scene, &serve, &places.each_ref().map(AsRef::<Path>::as_ref));
    Met { scene, service, socket: format!("{inside}/lmtp"), host, port, _folder: folder }
}

/// Where a container reaches this machine, with a port that nobody has; and where this machine sees it.
pub(super) fn here(container: &str) -> (String, String, String) {
    let theirs = server(container);
    let (network, _) = theirs.rsplit_once('.').unwrap();
    let host = format!("{network}.1");
    let port = TcpListener::bind((host.as_str(), 0)).unwrap().local_addr().unwrap().port().to_string();
    (host, port, theirs)
}

fn ten() -> Vec<String> {
    NINE.iter().chain([&LATE]).map(|name| format!("{name}@mail.axial.net")).collect()
}

impl Met {
    /// A message with a date. Without one it would be identified by its Received lines, and Dovecot puts another on top
    /// each time.
    fn message(&self, id: &str) -> String {
        format!("Date: Mon, 23 Nov 2026 10:00:00 +0000\n{}", self.scene.message(id))
    }

    /// One copy each, of one message.
    fn end(mut self, subject: &str) {
        for name in NINE.iter().chain([&LATE]) {
            let there: Vec<String> = self.scene.inbox(name).iter().map(|copy| copy.field("Subject")).collect();
            assert_eq!(there, [subject], "{name}");
        }
        assert_eq!(self.scene.sent("lisa").len(), 1);
        assert_eq!(self.scene.database.count("SELECT count(*) FROM messages"), 1);
        assert_eq!(self.scene.database.count("SELECT count(*) FROM copies"), 11);
        self.service.end();
    }
}

/// Starts Dovecot in a folder of its own, and hands it the message: at once, and once more on a line of input.
const THROUGH_DOVECOT: &str = r#"
import smtplib, socket, subprocess, tempfile, time
host, port, sender, message, *recipients = sys.argv[1:]
folder = tempfile.mkdtemp()
os.chmod(folder, 0o755)
with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    own = free.getsockname()[1]
with open(folder + '/dovecot.conf', 'w') as configuration:
    configuration.write(f'''
dovecot_config_version = 2.4.1
dovecot_storage_version = 2.4.1
base_dir = {folder}/run
log_path = /dev/stderr
protocols = lmtp
ssl = no
lmtp_proxy = yes
passdb static {{
  fields {{
    nopassword = yes
    proxy = yes
    host = {host}
    port = {port}
  }}
}}
service lmtp {{
  inet_listener lmtp {{
    listen = 127.0.0.1
    port = {own}
  }}
}}
''')
dovecot = subprocess.Popen(['setpriv', '--pdeathsig', 'TERM', 'dovecot', '-F', '-c', folder + '/dovecot.conf'])
while True:
    try:
        session = smtplib.LMTP('127.0.0.1', own)
        break
    except ConnectionRefusedError:
        assert dovecot.poll() is None
        time.sleep(0.05)
for _ in range(2):
    session.ehlo()
    session.mail(sender)
    for recipient in recipients:
        code, text = session.rcpt(recipient)
        assert code == 250, text
    replies = [session.data(message.encode())] + [session.getreply() for _ in recipients[1:]]
    for code, text in replies:
        print(code, text.decode().replace('\n', ' | '))
    print('done')
    lines.get()
print(session.quit()[0])
dovecot.terminate()
dovecot.wait()
"#;

#[test]
fn the_lmtp_proxy_of_dovecot() {
    let mut met = met();
    let message = met.message("dovecot");
    let recipients = ten();
    let mut arguments = vec![met.host.as_str(), &met.port, LISA, &message];
    arguments.extend(recipients.iter().map(String::as_str));
    let mut dovecot = Peer::python(THROUGH_DOVECOT, &arguments);
    let replies: Vec<String> = (0..10).map(|_| dovecot.line()).collect();
    assert_eq!(dovecot.line(), "done");
    assert!(replies[..9].iter().all(|reply| reply.starts_with("250 2.0.0 ")), "{replies:?}");
    assert!(replies[9].starts_with("451 4.1.1 "), "{replies:?}");
    met.scene.member(LATE);
    dovecot.say("again");
    let replies: Vec<String> = (0..10).map(|_| dovecot.line()).collect();
    assert_eq!(dovecot.line(), "done");
    assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 ")), "{replies:?}");
    dovecot.say("end");
    assert_eq!(dovecot.line(), "221");
    dovecot.end();
    met.end("dovecot");
}

/// Exim with a queue of its own, which delivers at once what it is handed; what is left is tried again by a queue run.
const EXIM: &str = r#"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chown Debian-exim "$folder"
cat >"$folder/exim.conf" <<CONF
primary_hostname = exim.example
spool_directory = $folder
log_file_path = $folder/%s.log
no_message_logs
keep_environment =
begin routers
all:
  driver = accept
  transport = $1
begin transports
socket:
  driver = lmtp
  socket = $2
  user = Debian-exim
  batch_max = 100
tcp:
  driver = smtp
  protocol = lmtp
  hosts = $3
  hosts_override
  port = $4
begin retry
* * F,1h,1s
CONF
sender=$5 message=$6
shift 6
printf '%s' "$message" | exim4 -C "$folder/exim.conf" -odf -f "$sender" "$@"
exim4 -C "$folder/exim.conf" -bpru | grep @ || true
echo waiting
read -r go
until [ "$(exim4 -C "$folder/exim.conf" -bpc)" = 0 ]; do
    exim4 -C "$folder/exim.conf" -qff
done
grep -E ' (=>|->) ' "$folder/main.log"
echo done
"#;

fn exim(by: &str) {
    let mut met = met();
    let message = met.message("exim");
    let recipients = ten();
    let mut command = vec!["bash", "-euc", EXIM, "bash", by, &met.socket, &met.host, &met.port, LISA, &message];
    command.extend(recipients.iter().map(String::as_str));
    let mut exim = Peer::start(&command);
    let left: Vec<String> = std::iter::from_fn(|| Some(exim.line()).filter(|line| line != "waiting")).collect();
    // The message, with its sender; what is delivered of it has a `D`.
    let still: Vec<&str> = left.iter().skip(1).map(|line| line.trim()).filter(|line| !line.starts_with("D ")).collect();
    assert_eq!(still, ["late@mail.axial.net"], "{left:?}");
    met.scene.member(LATE);
    exim.say("go");
    let delivered: Vec<String> = std::iter::from_fn(|| Some(exim.line()).filter(|line| line != "done")).collect();
    assert_eq!(delivered.len(), 10, "{delivered:#?}");
    assert!(delivered.iter().all(|line| line.contains("2.0.0 INBOX appended")) || by == "socket", "{delivered:#?}");
    exim.end();
    wait_until("it is recorded", || {
        met.scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == 0
    });
    met.end("exim");
}

#[test]
fn exim_by_a_unix_socket() {
    exim("socket");
}

#[test]
fn exim_by_tcp() {
    exim("tcp");
}
