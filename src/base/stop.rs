//! SIGTERM and SIGINT ask a process of the service to end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether this process should end. The signal sets a flag, and wakes code that waits for a descriptor.
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    woken: UnixStream,
}

impl Stop {
    pub(crate) fn on_signals() -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            // The flag is registered before the pipe: code that the pipe wakes reads the flag.
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { flag, woken })
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Sets the flag as a signal does.
    pub(crate) fn request(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// The flag, for code that polls it.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Becomes readable with the first signal, and stays so.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Waits for a signal, in a runtime.
    pub(crate) async fn until_requested(self) {
        // The stream never closes before this process ends, so only a signal ends this wait.
        let waited = async {
            self.woken.set_nonblocking(true)?;
            tokio::io::AsyncReadExt::read_u8(&mut tokio::net::UnixStream::from_std(self.woken)?).await
        };
        let _: io::Result<u8> = waited.await;
    }

    /// Waits for `span`, or until a signal comes.
    pub(crate) fn wait(&self, span: Duration) -> io::Result<()> {
        let until = Instant::now() + span;
        retry_on_intr(|| {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
            poll(&mut [PollFd::new(&self.woken, PollFlags::IN)], Some(&left))
        })?;
        Ok(())
    }
}
