use super::*;
use crate::protocol::control::Counted;
use crate::service::broker::Gauges;
use crate::service::disk_figures::DiskFiguresReader;
use crate::service::lmtp::LmtpTally;
use tokio::sync::{mpsc, oneshot, watch};

fn service(state: State, reasons: &[&str]) -> Status {
    Status {
        version: "1".into(),
        pid: 6,
        since: "2026-11-20T10:00:00Z".into(),
        up_s: 1.0,
        configuration: "/x".into(),
        state,
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        listeners: Vec::new(),
        http: Vec::new(),
        processes: Vec::new(),
        front: serde_json::Value::Null,
        timer: Vec::new(),
        counted: Counted::default(),
    }
}

fn report(ready: usize, busy: usize) -> Report {
    Report { gauges: Gauges { ready, busy, ..Gauges::default() }, ..Report::default() }
}

#[test]
fn it_is_ready_while_one_worker_is_there_and_names_the_problem() {
    let (well, degraded) = (service(State::Well, &[]), service(State::Degraded, &["no runner", "no timer"]));
    for (report, service, stops, answer) in [
        (Some(report(1, 0)), None, false, Ok("ready")),
        (Some(report(0, 1)), Some(&well), false, Ok("ready")),
        (Some(report(1, 1)), Some(&degraded), false, Ok("ready, and degraded:\nno runner\nno timer")),
        (Some(report(0, 0)), Some(&degraded), false, Err("no worker is ready\nno runner\nno timer")),
        (Some(report(0, 0)), None, false, Err("no worker is ready")),
        (Some(report(1, 0)), Some(&well), true, Err("this process is being stopped")),
        (Some(report(1, 0)), Some(&service(State::Stopping, &[])), false, Err("this process is being stopped")),
        (Some(report(1, 0)), Some(&service(State::Starting, &[])), false, Ok("ready")),
        (None, Some(&degraded), true, Err("the broker does not answer\nno runner\nno timer")),
    ] {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(ready(report.as_ref(), service, stops), answer, "{report:?}");
    }
}

/// The handlers, and the broker's end of their requests.
struct Scene {
    answers: Answers,
    service: watch::Sender<Option<Status>>,
    _stop: watch::Sender<bool>,
    asked: mpsc::Receiver<oneshot::Sender<Report>>,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ask, asked) = mpsc::channel(1);
        let ((service, printed), (stop, stops)) = (watch::channel(None), watch::channel(false));
        let disk = DiskFiguresReader::of(&crate::service::configured(folder.path()).service);
        let sources =
            Sources { ask, service: printed, stop: stops, tally: LmtpTally::default(), max_connections: 77, disk };
        let answers = Answers(sources);
        Self { answers, service, _stop: stop, asked, _folder: folder }
    }

    /// The answer, if the broker sends `report` at once.
    async fn get(&mut self, path: &str, report: &Report) -> Response<String> {
        let broker = async {
            while let Some(reply) = self.asked.recv().await {
                let _ = reply.send(report.clone());
            }
        };
        tokio::select! {
            answer = self.answers.to(&Method::GET, path) => answer,
            () = broker => panic!("nobody can ask any more"),
        }
    }
}

fn printed(answer: &Response<String>) -> (u16, &str, &str) {
    assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
    (answer.status().as_u16(), answer.headers()[CONTENT_TYPE].to_str().unwrap(), answer.body())
}

#[tokio::test]
async fn each_path_has_its_answer() {
    let mut scene = Scene::new();
    let one = report(1, 0);
    assert_eq!(printed(&scene.get("/healthz", &one).await), (200, TEXT, "alive\n"));
    assert_eq!(printed(&scene.get("/readyz", &one).await), (200, TEXT, "ready\n"));
    assert_eq!(printed(&scene.get("/readyz", &report(0, 0)).await), (503, TEXT, "no worker is ready\n"));
    scene.service.send_replace(Some(service(State::Stopping, &[])));
    assert_eq!(printed(&scene.get("/readyz", &one).await), (503, TEXT, "this process is being stopped\n"));
    assert_eq!(printed(&scene.get("/", &one).await).0, 404);
    let answer = scene.answers.to(&Method::POST, "/metrics").await;
    assert_eq!((printed(&answer).0, &answer.headers()[ALLOW]), (405, &HeaderValue::from_static("GET, HEAD")));
    scene.service.send_replace(Some(service(State::Well, &[])));
    let head = scene.answers.to(&Method::HEAD, "/elsewhere").await;
    assert_eq!(printed(&head).0, 404);
}

#[tokio::test]
async fn figures_are_those_of_this_moment() {
    let mut scene = Scene::new();
    scene.service.send_replace(Some(service(State::Well, &[])));
    let answer = scene.get("/metrics", &report(3, 2)).await;
    let (status, kind, body) = printed(&answer);
    assert_eq!((status, kind), (200, PROMETHEUS));
    for line in [
        "maildropd_workers{state=\"ready\"} 3",
        "maildropd_lmtp_connections_limit{socket=\"tcp\"} 77",
        "maildropd_service_state{state=\"well\"} 1",
    ] {
        assert!(body.lines().any(|shown| shown == line), "{line}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_answer_is_reported_in_time() {
    let scene = Scene::new();
    let began = tokio::time::Instant::now();
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = scene.answers.to(&Method::GET, path).await;
        assert_eq!(printed(&answer), (503, TEXT, "the broker does not answer\n"), "{path}");
    }
    // Timers are sometimes a millisecond late.
    assert!((3 * BROKER..4 * BROKER).contains(&began.elapsed()), "{:?}", began.elapsed());
}
