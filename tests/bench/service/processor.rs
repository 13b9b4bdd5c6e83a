//! The processor time that this container has used, by the kernel's own count (its cgroup), and which programs have used it. It
//! says what a delivery costs however busy the machine is with other things.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Where the kernel counts for the container that we are in, in versions 1 and 2 of cgroups.
const NANOSECONDS: &str = "/sys/fs/cgroup/cpuacct/cpuacct.usage";
const STATISTICS: &str = "/sys/fs/cgroup/cpu.stat";
/// The unit of /proc/PID/stat: USER_HZ, which is 100 on every Linux.
const TICK: Duration = Duration::from_millis(10);
/// Whose a process is, by the name of the nearest of its ancestors that has one of these.
const PROGRAMS: [(&str, &str); 8] = [
    ("maildropd", OURS),
    ("maildrop_comman", OURS),
    ("postgres", POSTGRESQL),
    ("mariadbd", MARIADB),
    ("cyrmaster", CYRUS),
    ("dovecot", DOVECOT),
    ("dovecot-lda", DOVECOT),
    ("master", POSTFIX),
];
pub const OURS: &str = "ours";
pub const POSTGRESQL: &str = "PostgreSQL";
pub const MARIADB: &str = "MariaDB";
pub const DOVECOT: &str = "Dovecot";
pub const CYRUS: &str = "Cyrus";
pub const POSTFIX: &str = "Postfix";

/// What was used up to a moment, or from one to another.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// By all processes of the container but this one, which gives them work.
    pub all: Duration,
    /// The same by program, to some hundredths of a second.
    by: BTreeMap<&'static str, Duration>,
    /// Context switches of the whole machine.
    pub switches: u64,
}

impl Used {
    pub fn now() -> Self {
        let processes = processes();
        let mut by = BTreeMap::new();
        for process in processes.values() {
            if let Some(program) = program_of(process, &processes) {
                *by.entry(program).or_default() += TICK * process.ticks;
            }
        }
        let own = processes.get(&std::process::id()).map_or(0, |process| process.own_ticks);
        Self { all: in_all().saturating_sub(TICK * own), by, switches: switches() }
    }

    pub fn since(&self, earlier: &Self) -> Self {
        let by = self.by.iter().map(|(program, used)| {
            let before = earlier.by.get(program).copied().unwrap_or_default();
            (*program, used.saturating_sub(before))
        });
        Self { all: self.all.saturating_sub(earlier.all), by: by.collect(), switches: self.switches - earlier.switches }
    }

    pub fn by(&self, program: &str) -> Duration {
        self.by.get(program).copied().unwrap_or_default()
    }
}

fn in_all() -> Duration {
    if let Ok(text) = fs::read_to_string(NANOSECONDS) {
        return Duration::from_nanos(text.trim().parse().expect("a number"));
    }
    let text = fs::read_to_string(STATISTICS).expect("the kernel counts what a container uses");
    let used = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).expect("usage_usec");
    Duration::from_micros(used.parse().expect("a number"))
}

/// Context switches since the machine has started, of all that runs on it: the kernel counts those of a process that has ended nowhere else
/// (proc_stat(5), `ctxt`).
fn switches() -> u64 {
    let text = fs::read_to_string("/proc/stat").expect("/proc");
    let count = text.lines().find_map(|line| line.strip_prefix("ctxt ")).expect("ctxt");
    count.trim().parse().expect("a number")
}

/// Whose a process is.
fn program_of<'a>(mut process: &'a Process, processes: &'a BTreeMap<u32, Process>) -> Option<&'static str> {
    loop {
        if let Some((_, program)) = PROGRAMS.iter().find(|(name, _)| *name == process.name) {
            return Some(*program);
        }
        process = processes.get(&process.parent)?;
    }
}

struct Process {
    name: String,
    parent: u32,
    /// With those of its children that have ended.
    ticks: u32,
    own_ticks: u32,
}

fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|pid: u32| Some((pid, process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// Reads proc_pid_stat(5). Its second field is the name in parentheses, which may have any character in it.
fn process(stat: &str) -> Option<Process> {
    let (before, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u32>().ok();
    let own_ticks = number(14)? + number(15)?;
    let ticks = own_ticks + number(16)? + number(17)?;
    Some(Process { name: before.split_once('(')?.1.to_owned(), parent: number(4)?, ticks, own_ticks })
}
