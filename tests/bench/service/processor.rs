//! The processor time that this container has used, by the kernel's own count (its cgroup), and which programs have used it. It
//! says what a delivery costs however busy the machine is with other things.

use super::ground::until;
use crate::figures::rest;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
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
        Self { all: in_all().saturating_sub(TICK * own), by }
    }

    pub fn since(&self, earlier: &Self) -> Self {
        let by = self.by.iter().map(|(program, used)| {
            let before = earlier.by.get(program).copied().unwrap_or_default();
            (*program, used.saturating_sub(before))
        });
        Self { all: self.all.saturating_sub(earlier.all), by: by.collect() }
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

/// Counts the context switches of each program, by perf(1). Those of processes that start meanwhile seem to be missed.
pub struct SwitchCounter(Vec<(&'static str, Child)>);

impl SwitchCounter {
    pub fn start() -> Self {
        // What has been served just now ends.
        rest();
        let processes = processes();
        let mut pids: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (pid, process) in &processes {
            if let Some(program) = program_of(process, &processes) {
                pids.entry(program).or_default().push(pid.to_string());
            }
        }
        let start = |pids: &[String]| {
            let mut perf = Command::new("perf");
            perf.args(["stat", "-x,", "-e", "context-switches", "-p", &pids.join(",")]).stderr(Stdio::piped());
            perf.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("perf is in the image")
        };
        let mut counters: Vec<_> = pids.into_iter().map(|(program, pids)| (program, start(&pids))).collect();
        until("perf counts", || {
            counters
                .iter_mut()
                .all(|(_, perf)| has_events(perf.id()) || perf.try_wait().is_ok_and(|ended| ended.is_some()))
        });
        rest();
        Self(counters)
    }

    /// `None` where the kernel does not let perf count.
    pub fn stop(self) -> Option<BTreeMap<&'static str, f64>> {
        let count = |mut perf: Child| {
            // It may have ended by itself, and then has said why.
            let _ = kill_process(Pid::from_child(&perf), Signal::INT);
            let mut said = String::new();
            perf.stderr.take()?.read_to_string(&mut said).ok()?;
            perf.wait().ok()?;
            let line = said.lines().find(|line| line.contains("context-switches"))?;
            match line.split(',').next()? {
                // None of them has run at all.
                "<not counted>" => Some(0.0),
                count => count.parse().ok(),
            }
        };
        let counted: Vec<_> = self.0.into_iter().map(|(program, perf)| (program, count(perf))).collect();
        counted.into_iter().map(|(program, count)| Some((program, count?))).collect()
    }
}

fn has_events(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file.to_string_lossy().contains("[perf_event]"))
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
