//! What makes two messages, and two copies, the same.

use super::tests::{LISA, received};
use super::*;

/// A missing field would make one message of two; an extra field would make two of one.
#[test]
fn each_field_that_an_author_writes_is_part_of_the_identity_and_no_other_is() {
    let with = |name: &str, value: &str| Identity::of(format!("{name}: {value}\n{LISA}").as_bytes());
    for name in [
        "Cc",
        "Content-Alternative",
        "Content-Base",
        "Content-Description",
        "Content-Disposition",
        "Content-Duration",
        "Content-Features",
        "Content-ID",
        "Content-Language",
        "Content-Location",
        "Content-MD5",
        "Content-Transfer-Encoding",
        "Content-Type",
        "Date",
        "From",
        "In-Reply-To",
        "Message-ID",
        "MIME-Version",
        "References",
        "Reply-To",
        "Resent-Cc",
        "Resent-Date",
        "Resent-From",
        "Resent-Message-ID",
        "Resent-Sender",
        "Resent-To",
        "Sender",
        "Subject",
        "To",
    ] {
        assert_ne!(with(name, "1"), with(name, "2"), "{name}");
    }
    for name in [
        "ARC-Authentication-Results",
        "ARC-Message-Signature",
        "ARC-Seal",
        "Authentication-Results",
        "Bcc",
        "Content-Length",
        "DKIM-Signature",
        "Delivered-To",
        "Envelope-To",
        "List-Id",
        "Received",
        "Received-SPF",
        "Resent-Bcc",
        "Return-Path",
        "Status",
        "X-Original-To",
        "X-Spam-Flag",
        "X-Status",
        "X-UID",
    ] {
        assert_eq!(with(name, "1"), Identity::of(LISA.as_bytes()), "{name}");
    }
}

/// The encoding is permanent. Another program, in another language, computed these values from the description in the doc
/// comments.
#[test]
fn the_identity_is_pinned() {
    let lisa = received(LISA);
    assert_eq!(
        crate::base::hex::encode(lisa.content_digest().as_bytes()),
        "6906d520d6e3e3a69443b5df5d55a2e46e9a5f0c4978235462946a2c849eb932"
    );
    assert_eq!(
        crate::base::hex::encode(lisa.identity().as_bytes()),
        "00005129" // 2026-11-20
            .to_owned()
            + "4f4a94a6c69c71ef44c0bd4194530157167874095834fca5a26f657e"
    );
    let nothing = Identity::of(b"");
    assert_eq!(
        crate::base::hex::encode(nothing.as_bytes()),
        "00000000edba21fabd98163f5ad13a304a3b4ee0f19deb50a4a323d59d834039"
    );
}

#[test]
fn every_recipients_copy_has_the_same_identity() {
    let identity = *received(LISA).identity();
    let crlf = LISA.replace('\n', "\r\n");
    let copies = [
        crlf.clone(),
        format!("From lisa@gmail.com Fri Nov 20 13:00:00 2026\n{LISA}"),
        format!("From a b\nFrom c d\n{LISA}"),
        format!("Return-Path: <lisa@gmail.com>\nX-Original-To: doug@x\nDelivered-To: doug@y\n{LISA}"),
        format!("Received: from a by b\n\tfor <doug@y>; now\n{LISA}"),
        format!("Authentication-Results: mx; dmarc=pass\nDKIM-Signature: v=1; b=x\nARC-Seal: i=1\n{LISA}"),
        LISA.replace("\n\n", "\nX-Spam-Status: No\nX-Spam-Level:\nContent-Length: 6\nStatus: RO\nBcc: doug\n\n"),
        LISA.trim_end().to_owned(),
        format!("{LISA}\n\n\n"),
        format!("{crlf}\r\n"),
        LISA.replace("Subject: ", "SUBJECT:\n\t  "),
        LISA.replace("scuba@mail.axial.net, doug", "scuba@mail.axial.net,\r\n doug"),
        LISA.replace("Hello\n", "Hello\r\r\n"),
        LISA.replace("From: ", "From : "),
    ];
    for copy in copies {
        assert_eq!(Identity::of(copy.as_bytes()), identity, "{copy}");
        assert_eq!(*received(copy.clone()).identity(), identity, "{copy}");
    }
    assert_eq!(Identity::of(b"To: x\0\n\n\0\r\0"), Identity::of(b"To: x\x80\n\n\x80\x80"));
    assert_eq!(Identity::of(b"To: x\nCc: y\nTo: z\n"), Identity::of(b"Cc: y\nTo: x\nTo: z\n"));
}

#[test]
fn another_message_has_another_identity() {
    let identity = *received(LISA).identity();
    for other in [
        LISA.replace("123-abc", "123-abd"),
        LISA.replace("Hello", "hello"),
        LISA.replace("Hello", "Hello "),
        LISA.replace("Hello", "\nHello"),
        LISA.replace("Lisa", "lisa"),
        LISA.replace("13:00:00", "13:00:01"),
        LISA.replace("Subject", "X-Subject"),
        LISA.replace("\n\n", "\nSubject:\n\n"),
        LISA.replace("\n\n", "\nContent-Type: text/plain\n\n"),
        LISA.replace("\n\n", "\nResent-To: x\n\n"),
        LISA.replace("Message-ID: <123-abc@mail.google.com>\n", ""),
    ] {
        assert_ne!(Identity::of(other.as_bytes()), identity, "{other}");
    }
    // The content of one field cannot pass for two fields, nor a name for a value.
    assert_ne!(Identity::of(b"To: a\nTo: b\n"), Identity::of(b"To: a To: b\n"));
    assert_ne!(Identity::of(b"To: a\nTo: b\n"), Identity::of(b"To: b\nTo: a\n"));
    assert_ne!(Identity::of(b"To: a\nCc: b\n"), Identity::of(b"To: b\nCc: a\n"));
    assert_ne!(Identity::of(b"To: a\n\nb"), Identity::of(b"To: ab\n"));
}

fn for_search(message: &Message) -> Option<&str> {
    message_id_for_search(message.message_id()?)
}

#[test]
fn the_message_id_names_the_lock() {
    let message = received(LISA);
    assert_eq!(message.message_id(), Some("<123-abc@mail.google.com>"));
    assert_eq!(message.message_id.as_deref(), Some(&b"<123-abc@mail.google.com>"[..]));
    assert_eq!(for_search(&message), Some("123-abc@mail.google.com"));
    assert_eq!(message.lock_subject(), b"<123-abc@mail.google.com>");
    let folded = received("Message-Id:\r\n <a@b>  \r\nMessage-ID: <second@b>\r\n\r\n");
    assert_eq!(folded.message_id(), Some("<a@b>"));
    let odd = received(&b"Message-ID: <a\xff\x07\0b@c>\n\n"[..]);
    assert_eq!(odd.message_id.as_deref(), Some(&b"<a\xff\x07\x80b@c>"[..]));
    assert_eq!(odd.message_id(), Some("<a\u{fffd}\u{fffd}b@c>"));
    assert_eq!(for_search(&odd), None);
    assert_eq!(for_search(&received("Message-ID: <a b@c>\n\n")), None);
    // A search uses the whole text between the brackets of an id. With text beside them, it could miss a candidate.
    for odd in ["<a@b> (junk)", "<a@b>junk", "<a@b", "a@b>", "<a@b><c@d>"] {
        assert_eq!(for_search(&received(format!("Message-ID: {odd}\n\n"))), None, "{odd}");
    }
    assert_eq!(for_search(&received("Message-ID: a@b\n\n")), Some("a@b"));
    assert_eq!(for_search(&received(format!("Message-ID: <{}>\n\n", "x".repeat(997)))), None);
    let long = received(format!("Message-ID: <{}>\n\n", "x".repeat(100_000)));
    assert_eq!(long.message_id().map(str::len), Some(998));
    assert_eq!(long.lock_subject().len(), 100_002);
    assert_eq!(for_search(&long), None);
}

/// A device that writes neither Message-ID nor Date sends the same text every night. Each night's message is a different one.
/// Otherwise it would count as already delivered, and nobody would see it.
#[test]
fn two_messages_of_a_device_that_writes_neither_id_nor_date_are_two() {
    let night = |queue_id: &str, header: &str| {
        format!("Received: from ups by mx\n\tid {queue_id}; now\n{header}From: ups@x\nSubject: OK\n\nBackup done\n")
    };
    let id = "Message-ID: <1@ups>\n";
    let date = "Date: Fri, 20 Nov 2026 13:00:00 +0100\n";
    for lacking in ["", id, date, "Message-ID: <>\n", "Message-ID: <1@ups>\nDate:\n"] {
        let first = received(night("4A", lacking));
        assert_ne!(first.identity(), received(night("4B", lacking)).identity(), "{lacking}");
        assert_ne!(first.content_digest(), received(night("4B", lacking)).content_digest(), "{lacking}");
        // The copies for all recipients of one queue file, and the copy that a mailbox returns, are one message.
        for prepended in ["", "Delivered-To: doug@x\n", "Return-Path: <ups@x>\nDelivered-To: scuba@x\n"] {
            let copy = received(format!("{prepended}{}", night("4A", lacking)));
            assert_eq!((copy.identity(), copy.lock_subject()), (first.identity(), first.lock_subject()), "{lacking}");
            assert_eq!(Identity::of(copy.without_prepended_lines()), *first.identity(), "{lacking}");
        }
    }
    let both = format!("{id}{date}");
    assert_eq!(received(night("4A", &both)).identity(), received(night("4B", &both)).identity());
}

/// `postsuper -r` passes the message to pickup(8), as if it came from a user on this machine. Recipients who have it must not get
/// it again.
#[test]
fn a_message_that_is_requeued_stays_the_same() {
    let of_pickup = |queue_id: &str| format!("Received: by mx (Postfix, from userid 100)\n\tid {queue_id}; now\n");
    let night =
        |queue_id: &str| format!("Received: from ups by mx\n\tid {queue_id}; now\nSubject: OK\n\nBackup done\n");
    let first = received(night("4A"));
    for requeued in [of_pickup("4C"), format!("{}{}", of_pickup("4E"), of_pickup("4D"))] {
        let again = received(format!("Return-Path: <ups@x>\n{requeued}{}", night("4A")));
        assert_eq!((again.identity(), again.lock_subject()), (first.identity(), first.lock_subject()));
        assert_ne!(received(format!("{requeued}{}", night("4B"))).identity(), first.identity());
    }
    // Messages that only pickup(8) has received are distinguished by its field.
    let local = |received: &str| Identity::of(format!("{received}Subject: OK\n\nBackup done\n").as_bytes());
    assert_ne!(local(&of_pickup("4A")), local(&of_pickup("4B")));
    assert_eq!(local(&format!("{}{}", of_pickup("4C"), of_pickup("4A"))), local(&of_pickup("4A")));
}

#[test]
fn a_missing_message_id_still_names_the_lock_the_same_for_every_recipient() {
    for missing in ["", "Message-ID:\n", "Message-ID: <>\n", "Message-ID: < >\n"] {
        let doug = received(format!("Delivered-To: doug@x\n{missing}Subject: a\n\nb\n"));
        let scuba = received(format!("Delivered-To: scuba@x\n{missing}Subject: a\n\nb\n"));
        assert_eq!(doug.lock_subject(), scuba.lock_subject());
        assert_eq!(doug.identity(), scuba.identity());
        assert_eq!((doug.message_id(), doug.message_id.as_deref(), for_search(&doug)), (None, None, None));
        assert_eq!(doug.lock_subject(), doug.message_id_for_people().as_bytes());
        assert!(doug.message_id_for_people().ends_with("@missing.message-id>"));
        assert_eq!(message_id_for_search(doug.message_id_for_people()), None);
        let other = received(format!("Delivered-To: doug@x\n{missing}Subject: a\n\nc\n"));
        assert_ne!(doug.lock_subject(), other.lock_subject());
    }
}

#[test]
fn what_cyrus_makes_of_a_byte_beyond_ascii_in_a_field_is_the_same_message() {
    let sent = "Message-ID: <gr\u{fc}n@b>\r\nSubject: f\u{fc}r\r\n\r\nf\u{fc}r\r\n";
    let (header, body) = sent.split_once("\r\n\r\n").unwrap();
    let stored = format!("{}\r\n\r\n{body}", header.replace('\u{fc}', "XX"));
    assert_eq!(Identity::of(sent.as_bytes()), Identity::of(stored.as_bytes()));
    assert_ne!(Identity::of(sent.as_bytes()), Identity::of(sent.replace('\u{fc}', "XX").as_bytes()), "not in the body");
}

/// Only fields of pickup(8) are skipped. A Received field that only looks similar, for example through the name of the sender's
/// host, still distinguishes two messages.
#[test]
fn a_received_line_that_is_only_half_like_pickups_counts() {
    let night = |top: &str| {
        let below = "Received: from ups by mx\n\tid 4A; now\nSubject: OK\n\nBackup done\n";
        *received(format!("Received: {top}\n{below}")).identity()
    };
    for (one, other) in [
        ("by mx (Postfix) id 4B; now", "by mx (Postfix) id 4C; now"),
        ("from x (y, from userid 1) by mx id 4B; now", "from x (y, from userid 1) by mx id 4C; now"),
    ] {
        assert_ne!(night(one), night(other));
    }
    assert_eq!(night("by mx (Postfix, from userid 1) id 4B; now"), night("by mx (Postfix, from userid 1) id 4C; now"));
}

#[test]
fn under_its_old_message_id_a_message_is_still_the_same() {
    let (changed, before) = (received(LISA), "<123-\u{e4}bc@mail.google.com>");
    let named = changed.clone().with_message_id(before);
    assert_eq!((named.message_id(), named.message_id_for_people()), (Some(before), before));
    assert_eq!((named.identity(), named.lock_subject()), (changed.identity(), before.as_bytes()));
    assert_eq!(named.as_received(), changed.as_received());
}

#[test]
fn a_copys_key_begins_as_its_message_does_and_all_that_makes_it_a_copy_counts() {
    let identity = std::array::from_fn(|at| u8::try_from(at).unwrap());
    let key = identity::key_of_copy(&identity, "recipient", "doug", "INBOX");
    assert_eq!(key[..4], identity[..4]);
    for (role, user, mailbox) in [
        ("sender", "doug", "INBOX"),
        ("recipient", "anna", "INBOX"),
        ("recipient", "doug", "Sent"),
        ("recipient", "dougI", "NBOX"),
    ] {
        assert_ne!(identity::key_of_copy(&identity, role, user, mailbox)[4..], key[4..], "{role} {user} {mailbox}");
    }
    assert_ne!(identity::key_of_copy(&[0; 32], "recipient", "doug", "INBOX")[4..], key[4..]);
}
