//! Nonsense at the sockets of a service that runs, and somebody who has no business there: nothing ends, and mail goes on.

use crate::lmtp::Lmtp;
use crate::program::{PATIENCE, wait_until};
use crate::support::test_front::{message, request};
use crate::support::test_master::send;
use crate::support::whole_service::Whole;
use std::fs::{Permissions, set_permissions};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

const NOBODY: u32 = 65_534;

/// Connects, and prints how many bytes it gets before the other side hangs up, or has sent its first line.
const HOW_MUCH_IS_SAID: &str = r"
    socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; connect($s, sockaddr_un($ARGV[0])) or die $!; print sysread($s, my $said, 64);
";

/// A megabyte that follows no rule, the same each time (xorshift64).
fn random_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    (0..1 << 17).flat_map(|_| next()).collect()
}

/// How a connection of ZMTP begins (RFC 23): signature, version, mechanism, the rest.
fn greeting(version: [u8; 2], mechanism: &[u8]) -> Vec<u8> {
    let mut greeting = b"\xff\0\0\0\0\0\0\0\0\x7f".to_vec();
    greeting.extend(version);
    greeting.extend(mechanism);
    greeting.resize(64, 0);
    greeting
}

/// The same to its end, as a DEALER.
fn begun() -> Vec<u8> {
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
    [&greeting([3, 0], b"NULL")[..], &[4, u8::try_from(ready.len()).unwrap()], ready].concat()
}

/// A frame of ZMTP that says of itself that it is so long, and is not.
fn frame_of(length: u64) -> Vec<u8> {
    [&[2][..], &length.to_be_bytes(), b"the beginning of it"].concat()
}

/// What nobody who means well says to a broker.
fn nonsense() -> Vec<Vec<u8>> {
    let after = |bytes: &[u8]| [&begun()[..], bytes].concat();
    vec![
        random_bytes(1),
        after(&random_bytes(2)),
        after(&frame_of(1 << 40)),
        after(&frame_of(u64::MAX)),
        // Two frames of a client's, the second of which is no header of ours, or one that is longer than any.
        after(b"\x01\x00\x00\x06MDR1{}"),
        after(b"\x01\x00\x00\x08MDR1\xff\xff\xff\xff"),
        greeting([1, 0], b"NULL"),
        greeting([2, 0], b"NULL"),
        greeting([0xff, 0xff], b"PLAIN"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        greeting([3, 0], b"NULL")[..20].to_vec(),
        Vec::new(),
    ]
}

/// Says all of it, and reads to the end: the listener hangs up, or ends as we do. It is never waited for without end.
#[track_caller]
fn pour(socket: &Path, bytes: &[u8]) {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let ended = |result: io::Result<()>| match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            panic!("{} neither hears nor hangs up", socket.display())
        }
        // It has hung up.
        _ => (),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            ended((&stream).write_all(bytes));
            let _ = stream.shutdown(Shutdown::Write);
        });
        ended((&stream).read_to_end(&mut Vec::new()).map(drop));
    });
}

/// Mail goes on by both ways, and by the processes that were there before.
#[track_caller]
fn mail_goes_on(service: &Whole, processes: &[Vec<u64>], number: usize) {
    let (raw, to) = (message(number), format!("user{number}@x"));
    let verdicts = service.client().deliver(&request(&[&to], &raw), &raw);
    assert!(verdicts[0].starts_with("2.0.0 INBOX appended"), "{verdicts:?}");
    let text = String::from_utf8(raw).unwrap().replace("\r\n", "\n");
    let replies = Lmtp::connect(&service.0.path("lmtp")).deliver("lisa@gmail.com", &[to], &text);
    assert!(replies[0].starts_with("250 2.0.0 INBOX already there"), "{replies:?}");
    assert_eq!(running(service), processes);
}

fn running(service: &Whole) -> Vec<Vec<u64>> {
    ["front", "worker", "runner"].iter().map(|role| service.pids(role)).collect()
}

#[test]
fn nothing_ends_of_it_and_mail_goes_on() {
    let service = Whole::started("");
    let processes = running(&service);
    for (number, socket) in ["run/clients.sock", "run/workers.sock", "lmtp"].into_iter().enumerate() {
        let socket = service.0.path(socket);
        for bytes in nonsense() {
            pour(&socket, &bytes);
        }
        // Many at once, while mail is delivered.
        thread::scope(|scope| {
            for seed in 3..7 {
                let socket = &socket;
                scope.spawn(move || pour(socket, &random_bytes(seed)));
            }
            mail_goes_on(&service, &processes, number);
        });
    }
    for bytes in [random_bytes(7), [&b"LHLO "[..], &[b'x'; 1 << 20], b"\r\n"].concat(), vec![b'\n'; 1 << 20]] {
        pour(&service.0.path("lmtp"), &bytes);
    }
    mail_goes_on(&service, &processes, 9);
    service.0.wait_until_well();
}

/// Of the service's own user are the processes that talk with strangers, too: one that was taken over takes nobody's mail as a worker.
#[test]
fn who_was_not_started_as_a_worker_is_handed_no_mail() {
    let service = Whole::started("");
    let processes = running(&service);
    // More than there are workers.
    let strangers = [(); 4].map(|()| UnixStream::connect(service.0.path("run/workers.sock")).unwrap());
    mail_goes_on(&service, &processes, 1);
    for mut stranger in strangers {
        let mut collected = Vec::new();
        stranger.read_to_end(&mut collected).unwrap();
        assert_eq!(collected, b"", "not even a greeting");
    }
    let refused = |line: &&String| line.contains("the master has started no such process");
    wait_until("the log says so", || service.0.lines("log").iter().filter(refused).count() == 4);
    // A new front knows the workers that there are.
    send("KILL", processes[0][0]);
    service
        .0
        .wait("there is a new front", |_| service.pids("front").first().is_some_and(|pid| *pid != processes[0][0]));
    service.0.wait_until_well();
    assert_eq!(service.pids("worker"), processes[1]);
    mail_goes_on(&service, &running(&service), 2);
}

/// The folder keeps others out. Where somebody has opened it, the broker still looks who connects: a client may name whose mail
/// it is, and a worker is handed everybody's.
#[test]
fn another_user_is_refused_by_the_broker_itself() {
    let service = Whole::started("");
    let probe = service.0.path("probe");
    std::fs::write(&probe, "").unwrap();
    if chown(&probe, Some(NOBODY), Some(NOBODY)).is_err() || Command::new("perl").arg("-v").output().is_err() {
        // Only root can be somebody else.
        return;
    }
    let open = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    open(service.0.folder.path(), 0o755);
    open(&service.0.path("run"), 0o755);
    let processes = running(&service);
    for socket in ["run/clients.sock", "run/workers.sock"] {
        let socket = service.0.path(socket);
        open(&socket, 0o666);
        let refused = || service.0.lines("log").iter().filter(|line| line.contains("a connection is refused")).count();
        let before = refused();
        // A program that everybody may start, which this test's own need not be.
        let mut stranger = Command::new("perl");
        stranger.args(["-MSocket", "-e", HOW_MUCH_IS_SAID]).arg(&socket).uid(NOBODY).gid(NOBODY).env_clear();
        let printed = stranger.output().unwrap();
        // Not even our greeting.
        assert_eq!(String::from_utf8_lossy(&printed.stdout), "0", "{printed:?}");
        wait_until("the log says so", || refused() == before + 1);
    }
    mail_goes_on(&service, &processes, 1);
}
