//! A TCP proxy that counts round trips: how often the client speaks after the server has spoken, or first.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Default)]
struct Count {
    client_spoke_last: bool,
    round_trips: usize,
    bytes_sent: usize,
}

/// For one client at a time.
pub struct CountingProxy {
    pub port: u16,
    count: Arc<Mutex<Count>>,
}

impl CountingProxy {
    /// Stands between `127.0.0.1` and a server.
    pub fn before(host: &str, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), count: Arc::default() };
        let (count, server) = (proxy.count.clone(), (host.to_owned(), port));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let sent = count.clone();
                thread::spawn(move || pump(from, to, &sent, true));
                let answered = count.clone();
                thread::spawn(move || pump(server, client, &answered, false));
            }
        });
        proxy
    }

    /// The round trips since this was last asked.
    pub fn round_trips(&self) -> usize {
        std::mem::take(&mut self.count.lock().unwrap().round_trips)
    }

    /// The bytes that the client has sent since this was last asked.
    pub fn bytes_sent(&self) -> usize {
        std::mem::take(&mut self.count.lock().unwrap().bytes_sent)
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, count: &Mutex<Count>, is_client: bool) {
    let mut buffer = [0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        {
            let mut count = count.lock().unwrap();
            if is_client {
                count.bytes_sent += length;
                count.round_trips += usize::from(!count.client_spoke_last);
            }
            count.client_spoke_last = is_client;
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
