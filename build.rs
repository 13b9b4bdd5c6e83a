//! Has the linker pack the relocations of the programs, which makes each of them 0.4 MB smaller
//! (https://maskray.me/blog/2021-10-31-relative-relocations-and-relr).

use std::process::Command;

/// glibc reads packed relocations from this version on (https://sourceware.org/glibc/wiki/Release/2.36).
const OLDEST: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The glibc of another machine is not known here; and what is not packed only is larger.
    let native = std::env::var_os("HOST") == std::env::var_os("TARGET");
    if native && glibc().is_some_and(|version| version >= OLDEST) {
        // A linker that does not know it says so, and links without it.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// `glibc 2.36` is what it says; other C libraries' getconf say something else, or nothing.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) = std::str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
