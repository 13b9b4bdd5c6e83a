use super::*;
use crate::base::endpoint::Endpoint;
use crate::config::Service;
use rustix::net::sockopt::socket_send_buffer_size;
use std::os::unix::net::UnixStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn what_is_configured_is_opened_and_none_of_the_sockets_keeps_the_others_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["1", "2", "3"].map(|name| folder.path().join(name));
    let lmtp = paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    let service = Service { lmtp, ..Service::default() };
    assert_eq!(service.lmtp_endpoints(), paths.clone().map(Endpoint::Socket));
    let listeners = Open::open_all(&service.lmtp_endpoints())
        .unwrap()
        .into_iter()
        .map(Listener::new)
        .collect::<io::Result<Vec<_>>>();
    let listeners = listeners.unwrap();
    // At each listener one client always waits, which sends the listener's number.
    let mut clients = Vec::new();
    for (path, at) in paths.iter().zip(0_u8..) {
        for _ in 0..6 {
            let client = UnixStream::connect(path).unwrap();
            io::Write::write_all(&mut &client, &[at]).unwrap();
            clients.push(client);
        }
    }
    let mut order = Vec::new();
    for turn in 0..6 {
        let mut connection = accept(&listeners, turn).await.unwrap();
        assert_eq!(connection.address, None);
        order.push(connection.stream.read_u8().await.unwrap());
        connection.stream.write_all(b"x").await.unwrap();
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
}

#[tokio::test]
async fn a_client_by_tcp_that_reads_nothing_has_few_replies_held_for_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listeners = [Listener::new(Open::Tcp(listener)).unwrap()];
    let _client = std::net::TcpStream::connect(address).unwrap();
    let Either::Right(stream) = accept(&listeners, 0).await.unwrap().stream else { panic!() };
    // Linux doubles the size, for its own overhead (socket(7)).
    assert_eq!(socket_send_buffer_size(&stream).unwrap(), 2 * SEND_BUFFER);
}
