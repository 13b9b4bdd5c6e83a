use super::*;
use std::os::unix::net::UnixListener;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// Serves HTTP at this socket, with a broker that sends an empty report.
fn serve(socket: &Path, folder: &Path) -> (JoinHandle<io::Result<()>>, watch::Sender<bool>) {
    let (ask, mut asked) = mpsc::channel::<oneshot::Sender<Report>>(1);
    let ((_, service), (stop, stops)) = (watch::channel(None), watch::channel(false));
    let disk = DiskFiguresReader::of(&crate::service::configured(folder).service);
    let sources = Sources { ask, service, stop: stops, tally: LmtpTally::default(), max_connections: 1, disk };
    let listening = vec![Open::Unix(UnixListener::bind(socket).unwrap())];
    tokio::spawn(async move {
        while let Some(reply) = asked.recv().await {
            let _ = reply.send(Report::default());
        }
    });
    (tokio::spawn(run(listening, sources)), stop)
}

/// The whole answer to this request, up to the end of the connection.
async fn answered(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn each_connection_has_one_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http");
    let (server, _stop) = serve(&socket, folder.path());
    // More connections in sequence than are served at once.
    for _ in 0..=MOST_CONNECTIONS {
        let answer = answered(&socket, "GET /healthz?x HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nalive\n"), "{answer}");
    }
    let answer = answered(&socket, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.contains("\r\ncontent-type: text/plain; version=0.0.4; "), "{answer}");
    let answer = answered(&socket, "nonsense\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(!server.is_finished());
    server.abort();
}

#[tokio::test]
async fn who_connects_and_sends_nothing_gives_way_to_who_asks() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http");
    let (server, _stop) = serve(&socket, folder.path());
    let mut silent = Vec::new();
    for _ in 0..MOST_CONNECTIONS {
        silent.push(UnixStream::connect(&socket).await.unwrap());
    }
    let answer = answered(&socket, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    // The first connection had to give way; the last one did not.
    assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0);
    let last = silent.last_mut().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(last.read(&mut [0]).await.unwrap() > 0);
    server.abort();
}
