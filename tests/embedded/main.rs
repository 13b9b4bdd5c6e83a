//! Scenarios that need no server.

mod any_bytes_are_delivered;
mod real_messages_are_delivered_as_they_came;
