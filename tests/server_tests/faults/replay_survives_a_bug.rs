//! A bug in the delivery of one message: it is deferred, and the others are replayed all the same.

use crate::support::postfix::{OPT, on};

#[test]
fn a_panic_defers_one_message_and_the_replay_goes_on() {
    let replay = |fault: &str, arguments: &str| {
        let command = format!(
            "cd \"$1\" && printf 'From a@b\\nMessage-ID: <%s@x>\\n\\nx\\n\\n' 1 2 3 | env MAILDROP_TEST_FAULT={fault} \
             {OPT}/bin/maildrop_command-with-faults replay --embedded \"$1/site\" {arguments} --json 2>/dev/null \
             || echo \"exit $?\""
        );
        on("mx1", &["sh", "-c", &command, "sh", FOLDER])
    };
    // What a run that failed has left would be replayed, too.
    on("mx1", &["rm", "-rf", FOLDER]);
    on("mx1", &["mkdir", "-p", FOLDER]);
    let reported = replay("panic@replay", "--recipient doug@x.y -");
    assert!(reported.contains("\"deferred\":3,\"delivered\":0") && reported.ends_with("exit 75\n"), "{reported}");
    // Standard input is gone: what failed, and for whom, is in the file of failures.
    let shown = replay("none@nowhere", "replay-failures-*.jsonl");
    assert!(shown.contains("\"deferred\":0,\"delivered\":3") && !shown.contains("exit"), "{shown}");
    on("mx1", &["rm", "-rf", FOLDER]);
}

const FOLDER: &str = "/srv/maildrop-test-replay-survives-a-bug";
