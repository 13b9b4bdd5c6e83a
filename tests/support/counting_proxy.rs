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
    /// Clients that have not gone, and all.
    clients: usize,
    connections: usize,
    /// What each client has said, in the order in which they came, once somebody wants to know.
    statements: Option<Vec<Said>>,
}

/// What a client has said since this was last asked.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub words: Vec<u8>,
    pub round_trips: usize,
}

impl Said {
    /// How often it has said this. Nothing may be encrypted.
    pub fn times(&self, words: &str) -> usize {
        self.words.windows(words.len()).filter(|piece| *piece == words.as_bytes()).count()
    }
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
                let number = {
                    let mut count = count.lock().unwrap();
                    count.clients += 1;
                    count.connections += 1;
                    count.connections - 1
                };
                let client_spoke_last = Arc::new(AtomicBool::new(false));
                let (count, spoke) = (count.clone(), client_spoke_last.clone());
                thread::spawn(move || {
                    pump(from, to, |words| {
                        let mut count = count.lock().unwrap();
                        let round_trips = usize::from(!spoke.swap(true, Ordering::SeqCst));
                        count.bytes_sent += words.len();
                        count.round_trips += round_trips;
                        if let Some(statements) = &mut count.statements {
                            statements.resize_with(statements.len().max(number + 1), Said::default);
                            statements[number].words.extend_from_slice(words);
                            statements[number].round_trips += round_trips;
                        }
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

    /// What each client has said since this was last asked; nothing, when it is asked for the first time.
    pub fn new_statements(&self) -> Vec<Said> {
        self.count.lock().unwrap().statements.replace(Vec::new()).unwrap_or_default()
    }

    /// The bytes that the client has sent since this was last asked.
    pub fn bytes_sent(&self) -> usize {
        std::mem::take(&mut self.count.lock().unwrap().bytes_sent)
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, passing: impl Fn(&[u8])) {
    let mut buffer = [0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        passing(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
