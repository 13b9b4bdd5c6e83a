use super::*;
use crate::protocol::control::{Counted, End, State as Service, Task};
use crate::queue::Queue;
use crate::service::broker::Gauges;
use std::path::Path;
use std::time::Instant;
use tokio::io::Lines;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

/// The longest wait for something that must happen.
const LONG: Duration = Duration::from_mins(1);

/// The master's end, and the channels behind the front's end.
struct Scene {
    says: OwnedWriteHalf,
    lines: Lines<BufReader<OwnedReadHalf>>,
    broker: watch::Sender<Broker>,
    started: watch::Receiver<Started>,
    ended: mpsc::Receiver<WorkerEnd>,
    stop: watch::Sender<bool>,
    service: watch::Receiver<Option<Status>>,
    front: JoinHandle<io::Result<()>>,
}

impl Scene {
    fn new(folder: &Path) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        ours.set_nonblocking(true).unwrap();
        let (ask, mut asked) = mpsc::channel::<oneshot::Sender<Broker>>(1);
        let (ended_sender, ended) = mpsc::channel(1);
        let (started_sender, started) = watch::channel(Started::new());
        let ((stop, stops), (service_sender, service)) = (watch::channel(false), watch::channel(None));
        let (broker, is) = watch::channel(Broker::default());
        tokio::spawn(async move {
            while let Some(reply) = asked.recv().await {
                let report = is.borrow().clone();
                let _ = reply.send(report);
            }
        });
        let disk = DiskFiguresReader::of(&crate::service::configured(folder).service);
        let front = tokio::spawn(async move {
            report_to_master(theirs, ask, started_sender, ended_sender, stops, service_sender, disk).await
        });
        let (lines, says) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
        Self { says, lines: BufReader::new(lines).lines(), broker, started, ended, stop, service, front }
    }

    async fn say(&mut self, notice: &ToFront) {
        self.says.write_all(line(notice).as_bytes()).await.unwrap();
    }

    /// The next report: whether the front accepts, whether the database is unavailable, the figures, and the timer's tasks.
    async fn next_report(&mut self) -> (bool, bool, Map<String, Value>, Vec<Task>) {
        let text = tokio::time::timeout(LONG, self.lines.next_line()).await.unwrap().unwrap().unwrap();
        match serde_json::from_str(&text).unwrap() {
            FromFront::Status(FrontReport { accepting, database_away, known, timer }) => {
                (accepting, database_away.is_some(), known, timer)
            }
            FromFront::Ready { .. } => panic!("{text}"),
        }
    }
}

#[tokio::test]
async fn it_says_how_it_stands_when_it_is_asked() {
    let mut scene = Scene::new(Path::new("/nonexistent"));
    scene.say(&ToFront::Ask).await;
    let (accepting, away, known, _) = scene.next_report().await;
    assert_eq!((accepting, away, known.get("busy")), (true, false, Some(&Value::from(0))));
    let gauges = Gauges { busy: 3, ready: 2, ..Gauges::default() };
    scene.broker.send_modify(|broker| broker.gauges = gauges);
    scene.broker.send_modify(|broker| broker.database_away = Some("no".into()));
    scene.stop.send_replace(true);
    scene.say(&ToFront::Ask).await;
    let (accepting, away, known, _) = scene.next_report().await;
    assert_eq!((accepting, away), (false, true));
    assert_eq!((known.get("busy"), known.get("ready")), (Some(&Value::from(3)), Some(&Value::from(2))));
    drop((scene.says, scene.lines));
    assert_eq!(scene.front.await.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn what_the_master_says_reaches_whom_it_is_for() {
    let mut scene = Scene::new(Path::new("/nonexistent"));
    scene.says.write_all(b"nonsense\n").await.unwrap();
    for pid in [7, 8, u32::MAX] {
        scene.say(&ToFront::WorkerStarted { pid }).await;
    }
    scene.started.wait_for(|started| *started == Started::from([7, 8])).await.unwrap();
    let end = WorkerEnd { pid: 7, end: End::Signal(11), by_us: false, output: vec!["x".to_owned()] };
    scene.say(&ToFront::WorkerEnded(end.clone())).await;
    assert_eq!(scene.ended.recv().await, Some(end));
    // Another process may have this id by now.
    assert_eq!(*scene.started.borrow(), Started::from([8]));
    let status = Status {
        version: "1".into(),
        pid: 6,
        since: "2026-11-20T10:00:00Z".into(),
        up_s: 1.0,
        configuration: "/x".into(),
        state: Service::Well,
        reasons: Vec::new(),
        listeners: Vec::new(),
        http: Vec::new(),
        processes: Vec::new(),
        front: Value::Null,
        timer: Vec::new(),
        counted: Counted::default(),
    };
    scene.say(&ToFront::Service { status: Box::new(status) }).await;
    let shown = scene.service.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(shown.map(|shown| (shown.pid, shown.state)), Some((6, Service::Well)));
}

#[tokio::test]
async fn what_the_timer_has_written_down_is_reported_as_soon_as_it_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("state")).unwrap();
    let written = r#"[{"task":"finish_owed","every_s":300.0,"next_at":"2026-11-22T10:05:00Z","failed_runs":1,
        "last":{"at":"2026-11-22T10:00:00Z","took_s":2.0,"well":false,"result":"no database"}}]"#;
    std::fs::write(folder.path().join("state/timer.json"), written).unwrap();
    let mut scene = Scene::new(folder.path());
    let until = Instant::now() + LONG;
    let timer = loop {
        scene.say(&ToFront::Ask).await;
        let (.., timer) = scene.next_report().await;
        if !timer.is_empty() {
            break timer;
        }
        assert!(Instant::now() < until);
    };
    assert_eq!(timer, serde_json::from_str::<Vec<Task>>(written).unwrap());
}

#[tokio::test]
async fn what_is_in_the_file_queue_is_reported_as_soon_as_it_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    Queue::open(&folder.path().join("state/queue")).unwrap();
    let mut scene = Scene::new(folder.path());
    let until = Instant::now() + LONG;
    loop {
        scene.say(&ToFront::Ask).await;
        let (_, _, known, _) = scene.next_report().await;
        if known.contains_key("file_queue_new") {
            break;
        }
        assert!(Instant::now() < until, "{known:?}");
    }
}
