//! The service, and those who talk with it: programs that others wrote are in the container of `peers`.

mod container;
mod failures_by_each_transport;
mod hanging_mailboxes;
mod inject_and_queue;
mod lmtp_delivery;
mod lmtp_to_other_mailbox_stores;
mod paranoid_pirate_peers;
mod postfix_over_lmtp;
mod postfix_over_tcp;
mod prometheus_scrape;
mod service_under_faults;
mod several_recipients;
mod slow_line;
mod thin_client_with_libzmq;
mod third_party_lmtp_clients;
mod third_party_relays;
mod timer_on_servers;
mod worker_ends_on_servers;
mod worker_killed_at_each_step;
mod zmtp_with_libzmq;
