//! Our own ZMTP held to ZeroMQ's library (pyzmq): as a client, as a server, with heartbeats, and with peers that do not fit.

use crate::support::peers::{Peer, own_sockets};
use maildrop_command::protocol::zmtp::{
    Blocking, BlockingError, Connection, Settings, SocketType, ZmtpError, from_client, to_client,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Says where it is, and sends back what it gets, the sender's identity as a frame more at the end.
const ROUTER: &str = "
import sys, zmq
context = zmq.Context()
router = context.socket(zmq.ROUTER)
router.bind(sys.argv[1])
print(router.getsockopt_string(zmq.LAST_ENDPOINT))
while True:
    frames = router.recv_multipart()
    router.send_multipart(frames + [frames[0]])
    if frames[1:] == [b'end']:
        break
# Python ends without this, and what has not been sent by then is lost.
context.destroy(60000)
";

/// Sends messages of many sizes, and wants each of them back.
const CLIENT: &str = "
import sys, zmq
client = zmq.Context().socket(getattr(zmq, sys.argv[2]))
if sys.argv[3]:
    client.setsockopt(zmq.IDENTITY, sys.argv[3].encode())
client.connect(sys.argv[1])
bodies = [bytes([7]) * size for size in (0, 1, 255, 256, 70000, 1000000)]
messages = [[body] for body in bodies] + [bodies, [b'', b''], [b'end']]
for message in messages:
    client.send_multipart(message)
    if client.recv_multipart() != message:
        sys.exit('another message came back')
";

/// Sends heartbeats of ZMTP's own; says what it gets, or that it has hung up.
const BEATING: &str = "
import sys, zmq
client = zmq.Context().socket(zmq.DEALER)
client.setsockopt(zmq.HEARTBEAT_IVL, 20)
client.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
client.setsockopt(zmq.HEARTBEAT_TTL, 10000)
client.setsockopt(zmq.RECONNECT_IVL, -1)
monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
client.connect(sys.argv[1])
poller = zmq.Poller()
poller.register(client, zmq.POLLIN)
poller.register(monitor, zmq.POLLIN)
print('hung up' if monitor in dict(poller.poll()) else client.recv().decode())
";

/// Connects as a socket of some type, and waits to be killed.
const OF_TYPE: &str = "
import sys, time, zmq
socket = zmq.Context().socket(getattr(zmq, sys.argv[2]))
socket.connect(sys.argv[1])
time.sleep(60)
";

fn settings(socket_type: SocketType, identity: Option<&[u8]>) -> Settings {
    let identity = identity.map(<[u8]>::to_vec);
    Settings { socket_type, identity, longest_frame: 4 << 20, most_frames: 16, longest_message: 8 << 20 }
}

fn patience() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn messages() -> Vec<Vec<Vec<u8>>> {
    let bodies: Vec<Vec<u8>> = [0, 1, 255, 256, 70_000, 1_000_000].map(|size| vec![7; size]).to_vec();
    let mut messages: Vec<_> = bodies.iter().map(|body| vec![body.clone()]).collect();
    messages.extend([bodies, vec![Vec::new(), Vec::new()], vec![b"end".to_vec()]]);
    messages
}

/// A socket that programs in the container may connect to.
fn listen(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(path.parent().unwrap(), std::fs::Permissions::from_mode(0o777)).unwrap();
    listener
}

fn exchange(mut dealer: Blocking, identity: Option<&[u8]>) {
    assert_eq!(dealer.peer().unwrap().socket_type, SocketType::Router);
    // All of them before the first answer is read: it has to come in its turn.
    for message in messages() {
        let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
        dealer.send(&frames, patience()).unwrap();
    }
    for message in messages() {
        let mut answer = dealer.receive(patience()).unwrap().expect("an answer");
        let named = answer.pop().unwrap();
        // One without a name gets one of five bytes, which begins with a zero.
        assert!(identity.map_or(named.len() == 5 && named[0] == 0, |identity| named == identity), "{named:?}");
        assert!(answer == message, "another message came back");
    }
}

#[test]
fn our_dealer_talks_with_libzmqs_router_on_a_unix_socket() {
    let (folder, inside) = own_sockets();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for identity in [None, Some(&b"worker 1"[..])] {
        let mut router = Peer::python(ROUTER, &[&format!("ipc://{inside}/router")]);
        router.line();
        let stream = UnixStream::connect(folder.path().join("router")).unwrap();
        let dealer = Blocking::handshake(stream, settings(SocketType::Dealer, identity), patience()).unwrap();
        exchange(dealer, identity);
        router.end();
    }
}

#[test]
fn libzmqs_dealer_and_req_talk_with_our_router() {
    let (folder, inside) = own_sockets();
    let listener = listen(&folder.path().join("ours"));
    for (name, identity) in [("DEALER", ""), ("DEALER", "worker 1"), ("REQ", ""), ("REQ", "client")] {
        let client = Peer::python(CLIENT, &[&format!("ipc://{inside}/ours"), name, identity]);
        let stream = listener.accept().unwrap().0;
        let mut router = Blocking::handshake(stream, settings(SocketType::Router, None), patience()).unwrap();
        let peer = router.peer().unwrap().clone();
        let expected = if name == "REQ" { SocketType::Req } else { SocketType::Dealer };
        assert_eq!((peer.socket_type, peer.identity.unwrap_or_default()), (expected, identity.as_bytes().to_vec()));
        loop {
            let message = router.receive(patience()).unwrap().expect("a message");
            let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
            router.send(&frames, patience()).unwrap();
            if message.last().unwrap() == b"end" {
                break;
            }
        }
        client.end();
    }
}

#[test]
fn a_lazy_pirates_words_are_those_of_a_req() {
    let (folder, inside) = own_sockets();
    let listener = listen(&folder.path().join("ours"));
    let client = Peer::python(
        "import sys, zmq
client = zmq.Context().socket(zmq.REQ)
client.connect(sys.argv[1])
client.send(b'17')
sys.exit(0 if client.recv() == b'18' else 1)",
        &[&format!("ipc://{inside}/ours")],
    );
    let stream = listener.accept().unwrap().0;
    let mut router = Blocking::handshake(stream, settings(SocketType::Router, None), patience()).unwrap();
    let request = router.receive(patience()).unwrap().expect("a request");
    assert_eq!(from_client(request), Ok(b"17".to_vec()));
    router.send(&to_client(b"18"), patience()).unwrap();
    client.end();
}

/// Takes what a beating client sends, until there were so many PINGs; what is to be answered is, if `answer`. `false`: the client
/// has hung up before.
fn pings(stream: &mut TcpStream, connection: &mut Connection, count: usize, answer: bool) -> bool {
    let (mut seen, mut piece) = (0, [0; 4096]);
    while seen < count {
        // The handshake has to be done in any case.
        if answer || connection.peer().is_none() || seen == 0 {
            stream.write_all(connection.outgoing()).unwrap();
            connection.wrote(connection.outgoing().len());
        }
        let length = stream.read(&mut piece).unwrap_or(0);
        if length == 0 {
            return false;
        }
        // A PING is 9 bytes or a few more, written at once: on this network it comes whole.
        seen += piece[..length].windows(5).filter(|bytes| bytes == b"\x04PING").count();
        connection.feed(&piece[..length]).unwrap();
    }
    true
}

#[test]
fn libzmqs_heartbeats_are_answered_and_a_peer_that_does_not_is_left() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    // The container's network has this machine at its first address.
    let server = crate::support::server("PEERS");
    let gateway = format!("{}.1", server.rsplit_once('.').unwrap().0);
    let address = format!("tcp://{gateway}:{}", listener.local_addr().unwrap().port());

    let mut client = Peer::python(BEATING, &[&address]);
    let mut stream = listener.accept().unwrap().0;
    let mut connection = Connection::new(settings(SocketType::Router, None));
    // 300 of them take longer than it waits for an answer.
    assert!(pings(&mut stream, &mut connection, 300, true), "it hung up, although it was answered");
    connection.send(&[b"still here"]);
    stream.write_all(connection.outgoing()).unwrap();
    assert_eq!(client.line(), "still here");
    client.end();

    // What was seen above were our answers: without them it hangs up.
    let mut client = Peer::python(BEATING, &[&address]);
    let mut stream = listener.accept().unwrap().0;
    let mut connection = Connection::new(settings(SocketType::Router, None));
    assert!(!pings(&mut stream, &mut connection, usize::MAX, false));
    assert_eq!(client.line(), "hung up");
}

#[test]
fn a_socket_of_another_type_is_distinguished() {
    let (folder, inside) = own_sockets();
    for (theirs, ours) in [("REP", SocketType::Router), ("PUSH", SocketType::Router), ("REQ", SocketType::Dealer)] {
        let listener = listen(&folder.path().join(theirs));
        let _peer = Peer::python(OF_TYPE, &[&format!("ipc://{inside}/{theirs}"), theirs]);
        let stream = listener.accept().unwrap().0;
        let error = Blocking::handshake(stream, settings(ours, None), patience()).unwrap_err();
        let expected = ZmtpError::Incompatible { ours, theirs: theirs.into() };
        assert!(matches!(&error, BlockingError::Protocol(error) if *error == expected), "{error}");
    }
}
