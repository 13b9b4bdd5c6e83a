//! ZeroMQ's frames (ZMTP 3.0, <https://rfc.zeromq.org/spec/23/>) and the Paranoid Pirate's words
//! (<https://rfc.zeromq.org/spec/6/>), without input or output. Uses nothing of this program.
