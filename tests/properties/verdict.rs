//! What holds for any text that a verdict is given.

use maildrop_command::delivery::{CopyReport, Delivered, Manner, StatusDetail, Verdict};
use maildrop_command::mailbox::Placement;
use maildrop_command::message::Role;

/// One line of fewer than 200 printable ASCII characters, whose code agrees with the exit code.
pub fn holds(text: &str) {
    let copy = |manner| CopyReport { role: Role::Recipient, user: text.into(), mailbox: text.into(), manner };
    let placement = Placement { uid_validity: u32::MAX, uid: u32::MAX };
    let copies =
        vec![copy(Manner::Appended(Some(placement))), copy(Manner::Owed(text.into())), copy(Manner::AlreadyThere)];
    for (verdict, code, exit) in [
        (Verdict::delivered(text), "2.0.0", 0),
        (Verdict::from(&Delivered { copies, brought: None }), "2.0.0", 0),
        (Verdict::deferred(StatusDetail::SYSTEM, text), "4.3.0", 75),
        (Verdict::unknown_recipient(text), "5.1.1", 67),
        (Verdict::too_big(text), "5.3.4", 65),
        (Verdict::over_quota(text), "5.2.2", 77),
    ] {
        assert_eq!(u8::from(maildrop_command::pipe::exit_status(&verdict)), exit);
        let line = verdict.line();
        assert!(line.len() < 200, "{line:?}");
        let shown = line.strip_suffix('\n').expect("a line");
        assert!(shown.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{shown:?}");
        let rest = shown.strip_prefix(code).expect("the code comes first");
        // A colon after the code, or another digit, and Postfix does not see one.
        assert!(rest.is_empty() || rest.starts_with(' '), "{shown:?}");
        assert_eq!(shown, shown.trim_end(), "{shown:?}");
    }
}
