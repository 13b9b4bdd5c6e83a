//! How a process of the service tells its master whether it takes work: by a line on its standard input, which the master has made a
//! socket.

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io;
use tracing::warn;

/// The two things that it says, as `service::master::front_channel` reads them.
pub(crate) const READY: &str = "{\"kind\":\"ready\",\"ready\":true}\n";
pub(crate) const UNREADY: &str = "{\"kind\":\"ready\",\"ready\":false}\n";

/// Tells the master, if there is one.
pub fn tell_master(ready: bool) {
    let line = if ready { READY } else { UNREADY };
    match send(io::stdin(), line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // Without a master, or after its end, nobody asks.
        Ok(_) | Err(Errno::NOTSOCK | Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {}
        Err(error) => warn!(%error, "the master cannot be told whether this process is ready"),
    }
}
