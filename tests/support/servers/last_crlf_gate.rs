//! A way to the mailbox store on which the last CRLF of what is appended waits, for as long as the gate is closed.

use crate::support::wire::{Fate, Speaker, Wire, says};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

/// The gate. What waits at it goes on once it is opened, even if its sender is no more.
pub struct Gate {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    closed: bool,
    waiting: usize,
}

thread_local! {
    /// Whether the program has begun to append here; each connection is heard by a thread of its own.
    static APPENDS: Cell<bool> = const { Cell::new(false) };
}

impl Gate {
    /// Open at first. Only what such a command appends waits: `APPEND` is each.
    pub fn before(store: (String, u16), command: &'static str) -> Self {
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let theirs = state.clone();
        let wire = Wire::to(store, move |speaker, piece| {
            if speaker == Speaker::Program && says(piece, command) {
                APPENDS.set(true);
            }
            // It is a packet of its own, which may be read together with the end of the message before it.
            if APPENDS.get() && (piece.as_slice() == b"\r\n" || piece.ends_with(b"\r\n\r\n")) {
                let (state, changes) = &*theirs;
                let mut state = state.lock().unwrap();
                state.waiting += 1;
                let mut state = changes.wait_while(state, |state| state.closed).unwrap();
                state.waiting -= 1;
            }
            Fate::Pass
        });
        Self { address: wire.address, state }
    }

    pub fn close(&self) {
        self.state.0.lock().unwrap().closed = true;
    }

    pub fn open(&self) {
        self.state.0.lock().unwrap().closed = false;
        self.state.1.notify_all();
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.state.0.lock().unwrap().waiting
    }
}
