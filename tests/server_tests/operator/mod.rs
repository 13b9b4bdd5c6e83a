//! The subcommands that people run.

mod administration;
mod an_older_program;
mod audit;
mod lock_exec;
mod lock_list;
mod lost_copies_are_restored;
pub mod owed_copies_are_finished;
mod prune;
mod quickstart;
mod replay_a_queue_file;
mod replay_on_each_engine;
mod replay_what_is_missing;
mod stats;
mod the_commands_in_the_pages;
mod the_model_of_scale;
mod the_page;
mod the_page_delivers_again;
mod trace;
mod what_is_in_a_message;
