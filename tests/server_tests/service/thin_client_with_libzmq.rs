//! `deliver --via` on a ROUTER of ZeroMQ's own library, which plays the broker.

use crate::support::peers::{Peer, own_sockets};
use crate::support::program::{feed, program};
use std::os::unix::fs::PermissionsExt;

/// Takes a message as the broker does, says what it got, and that it was delivered. The first try it leaves unanswered. (It sends many
/// heartbeats, and a busy machine may take its time to answer them: as a rule it would wait as long as the next one is away.)
const BROKER: &str = "
import json, sys, zmq
context = zmq.Context()
router = context.socket(zmq.ROUTER)
router.setsockopt(zmq.HEARTBEAT_IVL, 20)
router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60000)
router.bind(sys.argv[1])
print('bound')
def hear():
    client, empty, body = router.recv_multipart()
    assert empty == b'' and body[:4] == b'MDR1'
    end = 8 + int.from_bytes(body[4:8], 'big')
    return client, json.loads(body[8:end]), body[end:]
def say(client, **header):
    header = json.dumps(header).encode()
    router.send_multipart([client, b'', b'MDR1' + len(header).to_bytes(4, 'big') + header])
first = hear()
client, request, message = hear()
assert first[0] != client and first[1]['id'] == request['id'] and first[2] == message
say(client, kind='received', id=request['id'])
assert hear() == (client, {'kind': 'go', 'id': request['id']}, b'')
print(request['kind'], request['sender'], request['recipients'][0]['address'], len(message))
text = 'INBOX appended (uid 17)'
say(client, kind='reply', id=request['id'], results=[{'code': '2.0.0', 'text': text}])
# Python ends without this, and what has not been sent by then is lost.
context.destroy(60000)
";

#[test]
fn a_message_of_a_megabyte_is_handed_over_to_a_router_of_libzmqs() {
    let (folder, inside) = own_sockets();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut broker = Peer::python(BROKER, &[&format!("ipc://{inside}/clients.sock")]);
    assert_eq!(broker.line(), "bound");
    let socket = folder.path().join("clients.sock");
    let (directory, socket) = (directory.path().to_str().unwrap(), socket.to_str().unwrap());
    let envelope = ["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", "doug@x"];
    let message = [b"Subject: x\n\n".as_slice(), &vec![b'x'; 1 << 20]].concat();
    let outcome = feed(program(&[&envelope[..], &["--via", socket]].concat()), &message);
    assert_eq!(outcome.delivered(), "INBOX appended (uid 17)");
    assert_eq!(broker.line(), format!("deliver lisa@gmail.com doug@x {}", message.len()));
    broker.end();
    assert!(!std::path::Path::new(directory).join("ledger.sqlite").exists(), "it was delivered from here as well");
}
