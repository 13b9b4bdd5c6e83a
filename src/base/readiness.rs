//! A process of the service reports to its master whether it accepts work. The report is a line that it writes to its standard
//! input, which the master has made a socket.

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io;
use tracing::warn;

/// The two reports, as `service::master::front_channel` reads them.
pub(crate) const READY: &str = "{\"kind\":\"ready\",\"ready\":true}\n";
pub(crate) const UNREADY: &str = "{\"kind\":\"ready\",\"ready\":false}\n";

/// Reports to the master, if there is one.
pub fn report_readiness(ready: bool) {
    let line = if ready { READY } else { UNREADY };
    match send(io::stdin(), line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // Without a master, or after its end, no process needs the report.
        Ok(_) | Err(Errno::NOTSOCK | Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {}
        Err(error) => warn!(%error, "the master was not notified whether this process is ready"),
    }
}
