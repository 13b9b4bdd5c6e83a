//! The service of a scene as its operator runs it: `maildropd` with a front and two workers, on real servers.

use crate::support::program::{PATIENCE, program, wait_for, wait_until};
use crate::support::site_fixture::Scene;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A service that runs. Dropped, it is killed; where the test fails, what it wrote is shown.
pub struct Service {
    /// Where LMTP is spoken, as this machine calls it.
    pub socket: PathBuf,
    config: String,
    stderr: PathBuf,
    master: Child,
}

impl Service {
    /// Starts it for this scene, with LMTP on `lmtp` in the scene's folder, and waits until it is well. Sections that the
    /// scene's configuration has already stay as they are; `[service]` is none of them.
    pub fn start(scene: &mut Scene) -> Self {
        Self::start_with(scene, "workers = 2\n", &[])
    }

    /// The same with these lines of `[service]`, and LMTP on these sockets as well.
    pub fn start_with(scene: &mut Scene, serve: &str, sockets: &[&Path]) -> Self {
        let mut places = vec![scene.seen("lmtp")];
        places.extend(sockets.iter().map(|socket| socket.display().to_string()));
        let (run, state) = (scene.seen("run"), scene.seen("state"));
        // What is owed stays so, where a test is about that.
        let timer = if serve.contains("finish_owed_every") { "" } else { "finish_owed_every = \"0s\"\n" };
        // No mailbox hangs, where a test is not about that: on a busy machine each may take its time.
        let patience = if serve.contains("slow_mailbox_timeout") { "" } else { "slow_mailbox_timeout = \"60s\"\n" };
        scene.configure(|settings| {
            settings.more += &format!(
                "[service]\nlmtp = {places:?}\nruntime_directory = \"{run}\"\nstate_directory = \"{state}\"\n{timer}{patience}{serve}"
            );
        });
        scene.configuration_here();
        Self::start_again(scene)
    }

    /// Starts one in this scene by the configuration of the one that has ended.
    pub fn start_again(scene: &Scene) -> Self {
        let (config, stderr) = (scene.path("config-here.toml"), PathBuf::from(scene.path("maildropd.stderr")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", &config]).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
        let master = command.stderr(std::fs::File::create(&stderr).unwrap()).spawn().expect("maildropd starts");
        let mut service = Self { socket: scene.path("lmtp").into(), config, stderr, master };
        service.wait_until_well();
        service
    }

    /// Waits until it says of itself that it is well.
    #[track_caller]
    pub fn wait_until_well(&mut self) {
        wait_until("the service is well", || {
            let ended = self.master.try_wait().unwrap();
            assert!(ended.is_none(), "maildropd ended: {ended:?}");
            self.status()["state"] == "well"
        });
    }

    /// What `service status --json` says.
    pub fn status(&self) -> Value {
        let mut reported = None;
        // On a machine that does too much else the master may take longer than the command waits for it.
        wait_until("the master answers", || {
            let output = program(&["service", "status", "--json", "--config", &self.config]).output().unwrap();
            let is_silent = String::from_utf8_lossy(&output.stderr).contains("it does not answer: timed out");
            reported = Some(output);
            !is_silent
        });
        let shown = reported.expect("it was asked");
        serde_json::from_slice(&shown.stdout).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
    }

    /// The master's process.
    pub fn master(&self) -> Pid {
        Pid::from_child(&self.master)
    }

    /// `maildrop_command service …`, which does what it says.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) {
        let mut command = program(&["service"]);
        let printed = command.args(arguments).args(["--config", &self.config]).output().unwrap();
        assert!(printed.status.success(), "{arguments:?}: {printed:?}");
    }

    /// The processes of this role, `front` or `worker`.
    pub fn processes(&self, role: &str) -> Vec<Pid> {
        let status = self.status();
        let of_role = status["processes"].as_array().unwrap().iter().filter(|process| process["role"] == role);
        of_role.filter_map(|process| Pid::from_raw(i32::try_from(process["pid"].as_i64()?).unwrap())).collect()
    }

    /// Waits until it is well again with none of these processes.
    #[track_caller]
    pub fn wait_until_replaced(&mut self, old: &[Pid]) {
        wait_until("the processes are new", || {
            let now = [self.processes("front"), self.processes("worker")].concat();
            !now.is_empty() && !now.iter().any(|pid| old.contains(pid))
        });
        self.wait_until_well();
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.master), signal).unwrap();
    }

    /// Ends it as `systemctl stop` does: it takes its time, and is content.
    #[track_caller]
    pub fn end(mut self) {
        self.signal(Signal::TERM);
        let mut status = None;
        wait_for("maildropd ends", PATIENCE, || {
            status = self.master.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0));
        assert!(!self.socket.exists(), "the socket that it made is left");
        let errors = std::fs::read_to_string(&self.stderr).unwrap();
        assert_eq!(errors, "", "stderr");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = program(&["service", "status", "--config", &self.config]).output();
            let status = status.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            eprintln!("the service: {status}{}", std::fs::read_to_string(&self.stderr).unwrap_or_default());
        }
        // All that it has started ends with it.
        let _ = self.master.kill();
        let _ = self.master.wait();
    }
}
