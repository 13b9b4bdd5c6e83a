//! The service, and those who talk with it: programs that others wrote are in the container of `peers`.

mod a_slow_line;
mod a_worker_killed_at_each_point;
mod by_lmtp;
mod by_lmtp_on_other_stores;
mod hostile_messages_in_a_browser;
mod in_a_container;
mod inject;
mod lmtp_clients_of_others;
mod mailboxes_that_hang;
mod postfix_and_the_service;
mod postfix_by_tcp;
mod relays_of_others;
mod several_recipients;
mod the_guides_peers;
mod the_page_delivers_again_in_a_browser;
mod the_page_in_a_browser;
mod the_page_of_a_service;
mod the_thin_client_and_libzmq;
mod the_timer;
mod under_faults;
mod what_ends_workers;
mod what_prometheus_makes_of_it;
mod zmtp_and_libzmq;
