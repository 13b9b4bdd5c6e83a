//! The sockets of LMTP: made by systemd or by the master, they outlive each front.

use crate::support::test_master::{Stage, pids, send};
use command_fds::{CommandFdExt, FdMapping};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first line of the listener.
fn greeting(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn nobody_is_refused_while_one_front_follows_another() {
    let socket = tempfile::tempdir().unwrap();
    let lmtp = socket.path().join("lmtp");
    let stage = Stage::started(&format!("lmtp = [{lmtp:?}]"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connect = || {
            let mut connected = 0_u32;
            while !over.load(Ordering::Relaxed) {
                // A client without a greeting, since the front died with its connection, was not refused.
                UnixStream::connect(&lmtp).unwrap();
                connected += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            connected
        };
        let connected = scope.spawn(connect);
        for _ in 0..3 {
            assert_eq!(stage.service(&["restart"]).status.code(), Some(0));
            let front = pids(&stage.wait_until_well())[0];
            send("KILL", front);
            stage.wait("another front", |status| {
                status["processes"][0]["ready"] == true && status["processes"][0]["pid"] != front
            });
        }
        over.store(true, Ordering::Relaxed);
        assert!(connected.join().unwrap() > 0);
    });
    assert_eq!(greeting(UnixStream::connect(&lmtp).unwrap()), "220\r\n");
}

#[test]
fn a_socket_that_systemd_made_is_used_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (of_systemd, own) = (folder.path().join("systemd"), folder.path().join("own"));
    let listener = UnixListener::bind(&of_systemd).unwrap();
    // Named in the configuration, too: that is no second one.
    let mut stage = Stage::new(&format!("lmtp = [{of_systemd:?}, {own:?}, \"{}\"]", free_address()));
    let mut command = stage.command();
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "lmtp");
    command.fd_mappings(vec![FdMapping { parent_fd: listener.try_clone().unwrap().into(), child_fd: 3 }]).unwrap();
    stage.start_as(command);
    let status = stage.wait_until_well();
    let listeners: Vec<&str> =
        status["listeners"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(listeners[..2], [of_systemd.to_str().unwrap(), own.to_str().unwrap()]);
    for socket in [&of_systemd, &own] {
        assert_eq!(greeting(UnixStream::connect(socket).unwrap()), "220\r\n", "{socket:?}");
    }
    assert_eq!(greeting(TcpStream::connect(listeners[2]).unwrap()), "220\r\n");

    assert_eq!(stage.service(&["stop"]).status.code(), Some(0));
    assert_eq!(stage.end().code(), Some(0));
    assert!(!own.exists());
    // Who comes now waits for the next one.
    let waits = UnixStream::connect(&of_systemd).unwrap();
    let mut command = stage.command();
    command.env("LISTEN_FDS", "1");
    command.fd_mappings(vec![FdMapping { parent_fd: listener.into(), child_fd: 3 }]).unwrap();
    stage.start_as(command);
    assert_eq!(greeting(waits), "220\r\n");
}

/// LMTP carries no SASL name.
#[test]
fn lmtp_is_not_opened_where_it_would_silently_end_sent_copies() {
    let folder = tempfile::tempdir().unwrap();
    let lmtp = folder.path().join("lmtp");
    let without = format!("workers = 2\nlmtp = [{lmtp:?}]\n[sent]\nauthor_check = \"authenticated\"");
    let mut stage = Stage::new("");
    stage.configure(&without);
    stage.start();
    assert!(!stage.end().success());
    assert!(!lmtp.exists());
    // A filter vouches for authors.
    stage.configure(&format!("{without}\nauthserv_id = \"mx.example.com\""));
    stage.start();
    stage.wait_until_well();
    stage.configure(&without);
    let output = stage.service(&["reload"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("sent.authserv_id"));
    assert_eq!(greeting(UnixStream::connect(&lmtp).unwrap()), "220\r\n");
}

/// Where nobody listens. All of 127.0.0.0/8 is this machine (RFC 1122 section 3.2.1.3), and all others take ports of 127.0.0.1: nobody
/// takes this one before it is used.
fn free_address() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let place = SocketAddr::from(([127, 64 | high, middle, low], 0));
    let socket = std::net::TcpListener::bind(place).unwrap();
    socket.local_addr().unwrap()
}

#[test]
fn a_reload_makes_and_removes_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let stage = Stage::started(&format!("lmtp = [{first:?}]"));
    stage.configure(&format!("workers = 2\nlmtp = [{:?}]", Path::new("/proc/nowhere")));
    let output = stage.service(&["reload"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("listening at /proc/nowhere"));
    assert_eq!(greeting(UnixStream::connect(&first).unwrap()), "220\r\n");

    stage.configure(&format!("workers = 2\nlmtp = [{second:?}]"));
    assert_eq!(stage.service(&["reload"]).status.code(), Some(0));
    assert!(!first.exists());
    assert_eq!(greeting(UnixStream::connect(&second).unwrap()), "220\r\n");
}
