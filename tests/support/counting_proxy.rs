//! A TCP proxy that counts round trips: how often the client speaks after the server has spoken, or first.

use crate::support::program::wait_until;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Default)]
struct Count {
    round_trips: usize,
    bytes_sent: usize,
    /// Clients that have not gone.
    clients: usize,
}

/// For any number of clients.
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
                count.lock().unwrap().clients += 1;
                let client_spoke_last = Arc::new(AtomicBool::new(false));
                let (count, spoke) = (count.clone(), client_spoke_last.clone());
                thread::spawn(move || {
                    pump(from, to, |length| {
                        let mut count = count.lock().unwrap();
                        count.bytes_sent += length;
                        count.round_trips += usize::from(!spoke.swap(true, Ordering::SeqCst));
                    });
                    count.lock().unwrap().clients -= 1;
                });
                thread::spawn(move || pump(server, client, |_| client_spoke_last.store(false, Ordering::SeqCst)));
            }
        });
        proxy
    }

    /// The round trips since this was last asked.
    pub fn round_trips(&self) -> usize {
        std::mem::take(&mut self.count.lock().unwrap().round_trips)
    }

    /// The same, once every client has gone: its farewell is among them.
    pub fn round_trips_in_all(&self) -> usize {
        wait_until("all clients have gone", || self.count.lock().unwrap().clients == 0);
        self.round_trips()
    }

    /// The bytes that the client has sent since this was last asked.
    pub fn bytes_sent(&self) -> usize {
        std::mem::take(&mut self.count.lock().unwrap().bytes_sent)
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, passing: impl Fn(usize)) {
    let mut buffer = [0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        passing(length);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
