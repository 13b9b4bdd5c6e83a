//! The project itself: its pages and the commands in them, its rooms, what it is built of.

mod how_much_there_is;
mod the_commands_in_the_pages;
mod the_pages;
mod what_we_are_made_of;
