//! A wire between the program and a server, on which a test listens and interferes.

use base64::Engine as _;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

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
    /// It goes on at a byte a second, and so does everything after it.
    Trickle,
    /// It is lost, and the connection with it.
    Cut,
    /// It is lost, and so is everything after it, either way, on every connection of this wire, and on those that are
    /// still to come: a network that drops packets. Neither end hears of the other's end.
    Silence,
}

type Ear = dyn Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync;

/// The wire.
pub struct Wire {
    pub address: SocketAddr,
    cut: Arc<AtomicBool>,
    first_heard: Arc<OnceLock<Instant>>,
}

/// Whether the wire has fallen silent, and the connections that are kept open then.
#[derive(Default)]
struct Silence {
    fell: AtomicBool,
    kept: Mutex<Vec<TcpStream>>,
}

impl Silence {
    fn has_fallen(&self) -> bool {
        self.fell.load(Ordering::SeqCst)
    }

    /// Keeps these for as long as the test runs.
    fn keep(&self, connections: impl IntoIterator<Item = TcpStream>) {
        self.kept.lock().unwrap().extend(connections);
    }
}

impl Wire {
    /// A wire to `server` (host and port) that is heard by `ear`, piece by piece.
    pub fn to(server: (String, u16), ear: impl Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1", server, ear)
    }

    /// The same, at another address of this machine.
    pub fn at(
        ip: &str,
        server: (String, u16),
        ear: impl Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self::on(TcpListener::bind((ip, 0)).unwrap(), server, ear)
    }

    fn on(
        listener: TcpListener,
        server: (String, u16),
        ear: impl Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let ear: Arc<Ear> = Arc::new(ear);
        let cut = Arc::new(AtomicBool::new(false));
        let first_heard = Arc::new(OnceLock::new());
        let silence = Arc::new(Silence::default());
        std::thread::spawn({
            let (cut, first_heard) = (cut.clone(), first_heard.clone());
            move || {
                for here in listener.incoming() {
                    let Ok(here) = here else { return };
                    first_heard.get_or_init(Instant::now);
                    if cut.load(Ordering::SeqCst) {
                        continue;
                    }
                    if silence.has_fallen() {
                        silence.keep([here]);
                        continue;
                    }
                    let there = TcpStream::connect((server.0.as_str(), server.1)).unwrap();
                    let (from, to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
                    for (speaker, from, to) in [(Speaker::Program, from, to), (Speaker::Server, there, here)] {
                        let (ear, silence) = (ear.clone(), silence.clone());
                        std::thread::spawn(move || pump(speaker, from, to, &*ear, &silence));
                    }
                }
            }
        });
        Self { address, cut, first_heard }
    }

    /// A wire to an IMAP server on which no login for this user is answered, as long as that is so: a proxy one of whose backends hangs.
    /// And how many there were.
    pub fn where_logins_hang(server: (String, u16), user: &str, hangs: &Arc<AtomicBool>) -> (Self, Arc<AtomicUsize>) {
        // The user whom we act for comes first in SASL PLAIN.
        let whole_groups = user.len() / 3 * 3;
        let whom = base64::engine::general_purpose::STANDARD.encode(&user[..whole_groups]);
        let held = Arc::new(AtomicUsize::new(0));
        let (hangs, counted) = (hangs.clone(), held.clone());
        let wire = Self::to(server, move |speaker, piece| {
            let is_held = speaker == Speaker::Program && says(piece, &whom) && hangs.load(Ordering::SeqCst);
            counted.fetch_add(usize::from(is_held), Ordering::SeqCst);
            if is_held { Fate::Hold } else { Fate::Pass }
        });
        (wire, held)
    }

    /// A slow line to a server: all connections together carry so many bytes of the program's a second.
    pub fn slow(server: (String, u16), bytes_per_second: u32) -> Self {
        let line = Mutex::new(());
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        // What the program has sent is on the line, and not in a buffer before it.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 64 * 1024).unwrap();
        Self::on(listener, server, move |speaker, piece| {
            if speaker == Speaker::Program {
                let _one_after_the_other = line.lock().unwrap();
                let bytes = u32::try_from(piece.len()).expect("a piece is small");
                std::thread::sleep(Duration::from_secs(1) * bytes / bytes_per_second);
            }
            Fate::Pass
        })
    }

    /// A wire to an IMAP server that refuses each login for this user, as long as that is so: what is sent is not the password. And how
    /// many there were.
    pub fn where_logins_are_refused(
        server: (String, u16),
        user: &str,
        refused: &Arc<AtomicBool>,
    ) -> (Self, Arc<AtomicUsize>) {
        let whole_groups = user.len() / 3 * 3;
        let whom = base64::engine::general_purpose::STANDARD.encode(&user[..whole_groups]);
        let counter = Arc::new(AtomicUsize::new(0));
        let (refused, counted) = (refused.clone(), counter.clone());
        let wire = Self::to(server, move |speaker, piece| {
            if speaker == Speaker::Program && says(piece, &whom) && refused.load(Ordering::SeqCst) {
                counted.fetch_add(1, Ordering::SeqCst);
                // The password comes last; two letters may be padding.
                let end = piece.windows(2).rposition(|two| two == b"\r\n").expect("a whole line");
                let letter = &mut piece[end - 6];
                *letter = if *letter == b'A' { b'B' } else { b'A' };
            }
            Fate::Pass
        });
        (wire, counter)
    }

    /// When the program first connected, if it did.
    pub fn first_heard(&self) -> Option<Instant> {
        self.first_heard.get().copied()
    }

    /// From now on, each client is hung up on.
    pub fn down(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

/// A server that accepts connections and never says a word.
pub fn silent_server() -> SocketAddr {
    SilentServer::start().address
}

/// The same, which counts them.
pub struct SilentServer {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl SilentServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let count = connections.clone();
        std::thread::spawn(move || {
            let mut heard = Vec::new();
            for connection in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                heard.push(connection);
            }
        });
        Self { address, connections }
    }

    /// How many came since it started.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn pump(speaker: Speaker, mut from: TcpStream, mut to: TcpStream, ear: &Ear, silence: &Silence) {
    let mut buffer = vec![0; 65536];
    let (mut held, mut trickles) = (false, false);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut piece = buffer[..length].to_vec();
        if held || silence.has_fallen() {
            continue;
        }
        let fate = if trickles { Fate::Trickle } else { ear(speaker, &mut piece) };
        let went_on = match fate {
            Fate::Pass => to.write_all(&piece),
            Fate::Hold => {
                held = true;
                Ok(())
            }
            Fate::Trickle => {
                trickles = true;
                piece.iter().try_for_each(|&byte| {
                    std::thread::sleep(Duration::from_secs(1));
                    to.write_all(&[byte])
                })
            }
            Fate::Silence => {
                silence.fell.store(true, Ordering::SeqCst);
                Ok(())
            }
            Fate::Cut => break,
        };
        if went_on.is_err() {
            break;
        }
    }
    if silence.has_fallen() {
        silence.keep([from, to]);
        return;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Whether `piece` holds `text`.
pub fn says(piece: &[u8], text: &str) -> bool {
    piece.windows(text.len()).any(|window| window == text.as_bytes())
}
