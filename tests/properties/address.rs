//! What holds for any text that is to be an address.

use maildrop_command::message::{Address, EnvelopeSender};

/// An address that was read is spelt so that it is read as the same again, and holds nothing that steers.
pub fn holds(text: &str) {
    if let Ok(address) = Address::parse(text) {
        spelt_and_read_again(&address);
        let folded = address.folded();
        spelt_and_read_again(&folded);
        assert_eq!(folded.folded(), folded);
        for delimiters in ["", "+", "+-", "-.=_"] {
            let Some(bare) = address.without_extension(delimiters) else { continue };
            spelt_and_read_again(&bare);
            assert!(address.local().starts_with(bare.local()) && bare.local().len() < address.local().len());
            assert_eq!(bare.domain(), address.domain());
            assert_eq!(bare.without_extension(delimiters), None, "an extension of an extension");
        }
        // The sender of the same spelling is the same, or nobody.
        match EnvelopeSender::parse(text) {
            Ok(EnvelopeSender::Address(sender)) => assert_eq!(sender, address),
            other => panic!("{other:?}"),
        }
    }
    if let Ok(sender) = EnvelopeSender::parse(text) {
        assert_eq!(EnvelopeSender::parse(&sender.to_string()).as_ref(), Ok(&sender));
    }
}

fn spelt_and_read_again(address: &Address) {
    let spelt = address.to_string();
    assert!(
        !address.local().is_empty() && !address.domain().is_empty() && !address.domain().contains('@'),
        "{spelt:?}"
    );
    assert!(!spelt.contains(char::is_control), "{spelt:?}");
    assert_eq!(Address::parse(&spelt).as_ref(), Ok(address), "{spelt:?}");
    assert_eq!(Address::parse(&format!("<{spelt}>")).as_ref(), Ok(address), "{spelt:?} in brackets");
}
