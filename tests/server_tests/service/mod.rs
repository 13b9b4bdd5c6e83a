//! The service, and those who talk with it: programs that others wrote are in the container of `peers`.

mod by_lmtp;
mod inject;
mod lmtp_clients_of_others;
mod postfix_and_the_service;
mod several_recipients;
mod the_guides_peers;
mod the_thin_client_and_libzmq;
mod zmtp_and_libzmq;
