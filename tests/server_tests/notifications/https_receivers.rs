//! Receivers by HTTPS that nobody here wrote: Python's own server, behind certificates of every kind. Only who proves to be the host of
//! the callback is notified anything.

use crate::notifications::event_delivery::{KEY, Notifier, happen, subscribe};
use crate::notifications::event_schema::hold_to_the_document;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use maildrop_command::webhook::MasterKey;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Answers each POST with 204, and prints it. It ends with its input.
const SERVER: &str = "
import http.server, json, os, ssl, sys, threading
one_at_a_time = threading.Lock()
class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length'])).decode()
        with one_at_a_time:
            print(json.dumps({'headers': {name.lower(): value for name, value in self.headers.items()}, 'body': body}), flush=True)
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Receiver)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
server.serve_forever()
";

/// Speaks HTTP/2 (RFC 9113) and nothing else, whatever the client offers: SETTINGS, and after the first bytes that came, which are no
/// preface, GOAWAY with PROTOCOL_ERROR. It prints nothing, for it is notified nothing that it understands.
const SERVER_OF_HTTP2: &str = "
import os, socket, ssl, sys, threading
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
tls.set_alpn_protocols(['h2'])
def serve(connection):
    try:
        with tls.wrap_socket(connection, server_side=True) as stream:
            stream.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            stream.recv(65536)
            stream.sendall(bytes([0, 0, 8, 7, 0, 0, 0, 0, 0] + [0, 0, 0, 0, 0, 0, 0, 1]))
            while stream.recv(65536): pass
    except OSError:
        pass
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

struct Receiver {
    port: u16,
    came: Arc<Mutex<Vec<Value>>>,
    server: Child,
    _ends_with_stdin: ChildStdin,
}

impl Receiver {
    fn start(proof: &(PathBuf, PathBuf)) -> Self {
        Self::start_as(SERVER, proof)
    }

    fn start_as(program: &str, (certificate, key): &(PathBuf, PathBuf)) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", program]).args([certificate, key]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = python.spawn().expect("Python is here");
        let stdin = server.stdin.take().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = lines.next().expect("it listens").unwrap().parse().unwrap();
        let came = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&came);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                shared.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { port, came, server, _ends_with_stdin: stdin }
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}/hook", self.port)
    }

    fn count(&self) -> usize {
        self.came.lock().unwrap().len()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Certificates of an authority of the test's own.
struct Authority(PathBuf);

impl Authority {
    fn new(folder: &Path) -> Self {
        fs::create_dir(folder).unwrap();
        let authority = Self(folder.to_owned());
        authority.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=CA -keyout ca.key -out ca.pem");
        authority
    }

    /// A certificate for this name, and its key.
    fn sign(&self, file: &str, name: &str, days: &str) -> (PathBuf, PathBuf) {
        fs::write(self.0.join("extensions"), format!("subjectAltName={name}")).unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x -keyout {file}.key -out {file}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -extfile extensions -out {file}.pem"
        ));
        (self.0.join(format!("{file}.pem")), self.0.join(format!("{file}.key")))
    }

    fn openssl(&self, arguments: &str) {
        let printed = Command::new("openssl").args(arguments.split(' ')).current_dir(&self.0).output().unwrap();
        assert!(printed.status.success(), "{arguments}: {printed:?}");
    }
}

#[test]
fn only_who_proves_to_be_the_host_is_notified() {
    let mut scene = Scene::with(Engine::Postgres17, &[]);
    let trusted = Authority::new(Path::new(&scene.path("trusted")));
    let stranger = Authority::new(Path::new(&scene.path("stranger")));
    let good = Receiver::start(&trusted.sign("good", "IP:127.0.0.1", "2"));
    let impostors = [
        Receiver::start(&trusted.sign("other", "DNS:receiver.example,IP:127.0.0.2", "2")),
        Receiver::start(&trusted.sign("expired", "IP:127.0.0.1", "-1")),
        Receiver::start(&stranger.sign("unknown", "IP:127.0.0.1", "2")),
    ];
    let id = subscribe(&mut scene, ("all", ""), &good.url(), &[]);
    for impostor in &impostors {
        subscribe(&mut scene, ("all", ""), &impostor.url(), &[]);
    }
    happen(&mut scene, 2, "message.delivered");
    let notifier = Notifier::start_with(&mut scene, &format!("ca_file = {:?}\n", trusted.0.join("ca.pem")));
    wait_until("the good one has both", || good.count() == 2);
    // By the third failure the retries of the test are over.
    let failed = "SELECT count(*) FROM notifications WHERE tries >= 3 OR due_at IS NULL";
    wait_until("the others were tried", || scene.database.count(failed) >= 3);
    notifier.end();
    assert!(impostors.iter().all(|impostor| impostor.count() == 0), "nothing was sent to an impostor");
    let why = scene.database.texts("SELECT DISTINCT last_error FROM notifications WHERE last_error IS NOT NULL");
    // What is wrong with a certificate is for the log: a subscriber may ask about hosts that are none of its business.
    assert_eq!(why, ["not called: its host has no public address, or TLS failed"]);
    assert!(scene.log().matches("invalid peer certificate").count() >= 3, "{}", scene.log());

    let bodies = good.came.lock().unwrap().iter().map(|came| came["body"].as_str().unwrap().to_owned()).collect();
    hold_to_the_document(&bodies, &[]);
    for came in good.came.lock().unwrap().iter() {
        let mut headers = axum::http::HeaderMap::new();
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            headers.insert(name, came["headers"][name].as_str().unwrap().parse().unwrap());
        }
        let secret = MasterKey::new(&KEY).secret(id, 1).expose();
        crate::fixtures::signature_verifier::verify(&secret, &headers, came["body"].as_str().unwrap().as_bytes())
            .unwrap();
    }
}

#[test]
fn who_speaks_only_http2_is_notified_nothing_and_what_is_for_it_waits() {
    let mut scene = Scene::with(Engine::Postgres17, &[]);
    let trusted = Authority::new(Path::new(&scene.path("trusted")));
    let proof = trusted.sign("good", "IP:127.0.0.1", "2");
    let (newer, good) = (Receiver::start_as(SERVER_OF_HTTP2, &proof), Receiver::start(&proof));
    let id = subscribe(&mut scene, ("all", ""), &newer.url(), &[]);
    subscribe(&mut scene, ("all", ""), &good.url(), &[]);
    happen(&mut scene, 3, "message.delivered");
    let notifier = Notifier::start_with(&mut scene, &format!("ca_file = {:?}\n", trusted.0.join("ca.pem")));
    wait_until("the other one has all", || good.count() == 3);
    let tried = format!("SELECT count(*) FROM notification_attempts WHERE subscription = '{id}'");
    wait_until("this one was tried", || scene.database.count(&tried) >= 3);
    notifier.end();
    assert_eq!(scene.database.count(&format!("{tried} AND outcome NOT LIKE 'HTTP: %'")), 0, "TLS is not to blame");
    assert_eq!(scene.database.count(&format!("SELECT count(*) FROM notifications WHERE subscription = '{id}'")), 3);
}
