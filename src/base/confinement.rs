//! Restricts what this process can access, with landlock(7), which needs no root rights.
//!
//! This is for a process that talks with every client: an attacker who takes it over does not get all rights of its user.
//!
//! Files that are open stay open. Landlock restricts neither connections to sockets with a path, nor any protocol other than TCP.
//! A rule applies to an inode: a file that was replaced by another one cannot be read any more.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use std::path::PathBuf;

/// The newest rights that this module uses. An older kernel knows fewer.
const KNOWN: ABI = ABI::V6;

/// Folders and files, and the operations allowed on them. Nothing else can be opened, created or removed. No program can be
/// started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confinement {
    /// These can be read.
    pub(crate) read: Vec<PathBuf>,
    /// Sockets can be created in these, and any file can be removed. The files in them cannot be read.
    pub(crate) sockets: Vec<PathBuf>,
    /// These can be listed, and files can be created in them and appended to.
    pub(crate) append: Vec<PathBuf>,
    /// Beneath these, all file operations are allowed except for executing programs and creating devices.
    pub(crate) all: Vec<PathBuf>,
    pub(crate) connects_to: Ports,
    /// Whether processes outside of the confinement can be sent signals.
    pub(crate) signals: bool,
}

/// The TCP ports that can be connected to, at any address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    These(Vec<u16>),
    Any,
}

impl Default for Ports {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

/// How much of a [`Confinement`] the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confined {
    /// All of it.
    Whole,
    /// All of it except for TCP connections, which kernels before 6.7 do not restrict.
    FilesOnly,
    /// None of it. The kernel is older than 5.19, was started without landlock, or a container has disabled it.
    Not,
}

impl Confinement {
    /// Confines this thread and the threads that it starts from now on. Call it while the process has no other thread: landlock
    /// restricts threads, not processes.
    ///
    /// # Errors
    /// If the kernel supports landlock and the call fails.
    pub(crate) fn begin(&self) -> Result<Confined, RulesetError> {
        let all = AccessFs::from_all(KNOWN) & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock);
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
        let append: BitFlags<AccessFs> = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::ReadDir;
        let scope = if self.signals { Scope::AbstractUnixSocket.into() } else { Scope::from_all(KNOWN) };
        let (ports, held_back): (&[u16], BitFlags<AccessNet>) = match &self.connects_to {
            Ports::These(ports) => (ports, AccessNet::ConnectTcp.into()),
            Ports::Any => (&[], BitFlags::empty()),
        };
        let ports = ports.iter().map(|port| Ok::<_, RulesetError>(NetPort::new(*port, AccessNet::ConnectTcp)));
        // Only landlock version 2 (Linux 5.19) knows `Refer`. Before it, no rule could allow renames into another folder.
        let renames = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer);
        let Ok(ruleset) = renames else { return Ok(Confined::Not) };
        let mut ruleset =
            ruleset.set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::from_all(KNOWN))?;
        // landlock accepts no ruleset that handles an empty set of rights.
        if !held_back.is_empty() {
            ruleset = ruleset.handle_access(held_back)?;
        }
        let created = ruleset.scope(scope)?.create()?;
        let status = created
            .add_rules(path_beneath_rules(&self.read, read))?
            .add_rules(path_beneath_rules(&self.sockets, sockets))?
            .add_rules(path_beneath_rules(&self.append, append))?
            .add_rules(path_beneath_rules(&self.all, all))?
            .add_rules(ports)?
            .restrict_self()?;
        Ok(match status.landlock {
            LandlockStatus::Available { effective_abi, .. } if effective_abi >= ABI::V4 => Confined::Whole,
            LandlockStatus::Available { .. } => Confined::FilesOnly,
            LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => Confined::Not,
        })
    }
}
