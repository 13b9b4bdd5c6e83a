//! What this process may still reach, as far as the kernel holds it to that: landlock(7), which needs no rights of root's.
//!
//! It is for a process that talks with everybody, so that whoever takes it over does not have what the user that it runs as has.
//! What is open already stays open. Sockets with a path can be connected to as before (Linux knows no rule for them), and so can
//! whatever is not TCP. A rule is for an inode: a file that another one has replaced cannot be read any more.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use std::path::PathBuf;

/// The rights that there are, of which an older kernel knows fewer.
const KNOWN: ABI = ABI::V6;

/// Folders and files, and what may be done there. Nothing else can be opened, made or removed, and no program be started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confinement {
    /// May be read.
    pub(crate) read: Vec<PathBuf>,
    /// Sockets may be made in these, and anything be removed. What is there cannot be read.
    pub(crate) sockets: Vec<PathBuf>,
    /// These may be listed, and files be made in them, and be appended to.
    pub(crate) append: Vec<PathBuf>,
    /// All may be done beneath these that one does with files.
    pub(crate) all: Vec<PathBuf>,
    pub(crate) connects_to: Ports,
    /// Whether processes outside may be sent signals.
    pub(crate) signals: bool,
}

/// The ports that may be connected to by TCP, at whatever address.
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

/// How far the kernel holds this process to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confined {
    /// In all.
    Whole,
    /// But for TCP connections, which a kernel before 6.7 does not hold back.
    FilesOnly,
    /// The kernel is older than 5.19, or was started without landlock, or a container has taken it away.
    Not,
}

impl Confinement {
    /// Confines this thread and those that it starts from now on: to be called while there is no other.
    ///
    /// # Errors
    /// Where the kernel can, and does not.
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
        // A kernel that knows no `Refer` would let no file be renamed into another folder, by whatever rule.
        let renames = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer);
        let Ok(ruleset) = renames else { return Ok(Confined::Not) };
        let mut ruleset =
            ruleset.set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::from_all(KNOWN))?;
        // A ruleset cannot be told to hold back nothing of a kind.
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
