use super::*;
use crate::base::endpoint::Endpoint;
use crate::config::Service;
use rustix::net::sockopt::socket_send_buffer_size;
use std::os::unix::net::UnixStream;
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn what_is_configured_is_opened() {
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
    for (path, listener) in paths.iter().zip(listeners) {
        let client = UnixStream::connect(path).unwrap();
        io::Write::write_all(&mut &client, b"x").unwrap();
        let mut connection = listener.accept().await.unwrap();
        assert_eq!((connection.address, connection.stream.read_u8().await.unwrap()), (None, b'x'));
    }
}

#[tokio::test]
async fn a_client_by_tcp_that_reads_nothing_has_few_replies_held_for_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::new(Open::Tcp(listener)).unwrap();
    let _client = std::net::TcpStream::connect(address).unwrap();
    let Either::Right(stream) = listener.accept().await.unwrap().stream else { panic!() };
    // Linux doubles the size, for its own overhead (socket(7)).
    assert_eq!(socket_send_buffer_size(&stream).unwrap(), 2 * SEND_BUFFER);
}
