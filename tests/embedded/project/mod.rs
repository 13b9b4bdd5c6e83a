//! The project itself: its pages and the commands in them, its language, its modules, its dependencies.

mod how_much_there_is;
mod plain_language;
mod the_commands_in_the_pages;
mod the_layers;
mod the_pages;
mod what_we_are_made_of;
