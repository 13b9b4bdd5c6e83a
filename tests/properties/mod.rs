//! What holds for any input: functions that panic where it does not. The fuzz targets (tests/fuzz) feed them what a fuzzer
//! makes up, and the tests what is made up at random in the second that a test may take. What is private to the program is
//! held to its promises in the same way, beside it: `src/**/property_tests.rs`. (`imap/` belongs to the library's own tests.)

pub mod address;
pub mod config;
pub mod message;
pub mod verdict;
