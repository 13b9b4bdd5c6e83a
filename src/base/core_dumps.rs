//! Prevents core dumps. A dump of this process would write the passwords of the database and the mailbox store to a disk. The
//! people who handle crashes can read dumps. The [watchdog](crate::pipe::deadline_watchdog) may abort the process,
//! which dumps core.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// The soft limit with which the process was started.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Switches core dumps off for this process. [`are_possible`] reports later whether that worked, since there is no log yet.
///
/// The soft limit counts (core(5)); the hard one stays, for programs that this process starts. The kernel ignores the limit for
/// dumps that it pipes to a program (core(5), "Piping core dumps to a program"). systemd-coredump and apport apply it.
///
/// So on Linux the process is also made undumpable (PR_SET_DUMPABLE(2const)). That also keeps other processes of the same user
/// from reading its memory.
pub(crate) fn switch_off() {
    let Rlimit { current, maximum } = getrlimit(Resource::Core);
    let _ = BEFORE.set(current);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Restores the original limit for programs that this process starts. This process stays undumpable.
pub(crate) fn leave_to_others() {
    if let Some(&current) = BEFORE.get() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Core);
        let _ = setrlimit(Resource::Core, Rlimit { current, maximum });
    }
}

/// Whether this process may leave a core dump.
pub(crate) fn are_possible() -> bool {
    let limited = getrlimit(Resource::Core).current == Some(0);
    #[cfg(target_os = "linux")]
    let limited = limited
        && rustix::process::dumpable_behavior()
            .is_ok_and(|behavior| behavior == rustix::process::DumpableBehavior::NotDumpable);
    !limited
}
