//! `completions` and `man`: what a person without the package gets from the program itself.

use crate::program::program;
use std::io::Write;
use std::process::{Command, Stdio};

fn stdout(arguments: &[&str]) -> Vec<u8> {
    let output = program(arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    output.stdout
}

#[test]
fn a_shell_completes_the_subcommands_of_both_programs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(stdout(&["completions", shell])).unwrap();
        assert!(script.contains("subscription") && script.contains("failures-to"), "{shell}");
        assert!(!script.contains("PDEATHSIG"), "{shell} offers what `lock exec` starts");
        let service = String::from_utf8(stdout(&["completions", shell, "maildropd"])).unwrap();
        assert!(service.contains("maildropd") && !service.contains("subscription"), "{shell}");
    }
    // What bash itself offers after `maildrop_command rep`.
    let script = [
        &stdout(&["completions", "bash"])[..],
        b"\nCOMP_WORDS=(maildrop_command rep) COMP_CWORD=1; _maildrop_command maildrop_command rep maildrop_command\n\
          echo \"${COMPREPLY[@]}\"\n",
    ];
    let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(&script.concat()).unwrap();
    assert_eq!(bash.wait_with_output().unwrap().stdout, b"replay\n");
}

#[test]
fn there_is_a_manual_page_for_each_subcommand() {
    let page = String::from_utf8(stdout(&["man"])).unwrap();
    assert!(page.contains(".TH maildrop_command 1") && page.contains("Exit status of a delivery"), "{page}");

    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(stdout(&["man", pages.to_str().unwrap()]).is_empty());
    for name in ["maildrop_command.1", "maildrop_command-replay.1", "maildrop_command-lock-exec.1", "maildropd.8"] {
        let page = std::fs::read_to_string(pages.join(name)).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{name}: {page}");
    }
    for hidden in ["maildrop_command-help.1", "maildrop_command-lock-program.1"] {
        assert!(!pages.join(hidden).exists(), "{hidden}");
    }
    let file = pages.join("maildropd.8");
    let refused = program(&["man", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(refused.status.code(), Some(73), "{refused:?}");
}
