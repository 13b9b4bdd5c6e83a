//! A wire between the program and a server, on which a test listens and interferes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    Program,
    Server,
}

/// What becomes of what was said.
pub enum Fate {
    /// It goes on, as it is by now.
    Pass,
    /// It stays on the way, and so does everything after it; the connection stays.
    Hold,
    /// It is lost, and the connection with it.
    Cut,
}

type Ear = dyn Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync;

/// The wire.
pub struct Wire {
    pub address: SocketAddr,
    cut: Arc<AtomicBool>,
}

impl Wire {
    /// A wire to `server` (host and port) that is heard by `ear`, piece by piece.
    pub fn to(server: (String, u16), ear: impl Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ear: Arc<Ear> = Arc::new(ear);
        let cut = Arc::new(AtomicBool::new(false));
        std::thread::spawn({
            let cut = cut.clone();
            move || {
                for here in listener.incoming() {
                    let Ok(here) = here else { return };
                    if cut.load(Ordering::SeqCst) {
                        continue;
                    }
                    let there = TcpStream::connect((server.0.as_str(), server.1)).unwrap();
                    let (from, to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
                    let (for_program, for_server) = (ear.clone(), ear.clone());
                    std::thread::spawn(move || pump(Speaker::Program, from, to, &*for_program));
                    std::thread::spawn(move || pump(Speaker::Server, there, here, &*for_server));
                }
            }
        });
        Self { address, cut }
    }

    /// From now on, whoever connects is hung up on.
    pub fn down(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

/// A server that accepts connections and never says a word.
pub fn silent_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let _heard: Vec<_> = listener.incoming().collect();
    });
    address
}

fn pump(speaker: Speaker, mut from: TcpStream, mut to: TcpStream, ear: &Ear) {
    let mut buffer = vec![0; 65536];
    let mut held = false;
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut piece = buffer[..length].to_vec();
        if held {
            continue;
        }
        match ear(speaker, &mut piece) {
            Fate::Pass if to.write_all(&piece).is_ok() => {}
            Fate::Hold => held = true,
            Fate::Pass | Fate::Cut => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Whether `piece` holds `text`.
pub fn says(piece: &[u8], text: &str) -> bool {
    piece.windows(text.len()).any(|window| window == text.as_bytes())
}
