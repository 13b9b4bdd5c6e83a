//! A name that has more than one address: /etc/hosts says so, in a mount namespace of the test's own.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Set in the run inside the namespace.
const INSIDE: &str = "MAILDROP_TEST_TWO_ADDRESSES";

/// Whether this is the run in which the name has the addresses.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs the test of this path once more, where `name` has these addresses. It has to pass.
pub fn run_inside(test: &str, name: &str, addresses: [&str; 2]) {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), addresses.map(|address| format!("{address} {name}\n")).concat()).unwrap();
    let script = "mount --bind \"$1\" /etc/hosts && exec \"$2\" --exact \"$3\" --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(hosts.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .output()
        .expect("unshare(1), to give a name two addresses");
    let errors = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("1 passed"), "{errors}");
}

/// An address of this machine at which nothing answers, as behind a firewall, or with an IPv6 that leads nowhere.
pub struct SilentAddress {
    pub ip: IpAddr,
    _listener: std::os::fd::OwnedFd,
    _filling: [std::os::fd::OwnedFd; 4],
}

impl SilentAddress {
    /// At this port. A listener whose queue is full drops what more comes (tcp(7)).
    pub fn at(port: u16) -> Self {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
        static NUMBER: AtomicU8 = AtomicU8::new(9);
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, high, low, NUMBER.fetch_add(1, Ordering::SeqCst)], port));
        let new = || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let listener = new();
        bind(&listener, &address).unwrap();
        listen(&listener, 0).unwrap();
        let filling = [new(), new(), new(), new()];
        for socket in &filling {
            // On its way (EINPROGRESS), or there.
            let _ = connect(socket, &address);
        }
        Self { ip: address.ip(), _listener: listener, _filling: filling }
    }
}
