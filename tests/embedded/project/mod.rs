//! The project itself: its pages and the commands in them, its language, its modules, its dependencies.

mod code_size;
mod dependencies;
mod documented_commands;
mod layers;
mod links_in_the_docs;
mod plain_language;
mod stored_strings;
