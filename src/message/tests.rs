use super::*;

const LISA: &str = "From: Lisa <lisa@gmail.com>\n\
    To: scuba@mail.axial.net, doug@mail.axial.net\n\
    Subject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\n\
    Date: Fri, 20 Nov 2026 13:00:00 +0100\n\
    Message-ID: <123-abc@mail.google.com>\n\
    \n\
    Hello\n";

fn received(raw: impl Into<Vec<u8>>) -> Message {
    Message::receive(raw.into()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

// --- the bytes

#[test]
fn only_a_message_without_a_byte_is_refused() {
    for empty in ["", "From lisa@gmail.com Fri Nov 20 13:00:00 2026\n", "From "] {
        assert_eq!(Message::receive(empty.into()).unwrap_err(), MessageError::Empty);
    }
    for odd in ["\n", "\r", "\0", " ", ":", "x", "From: x", " \n \n", "Return-Path: <>\n"] {
        let message = received(odd);
        assert!(message.as_received().ends_with(b"\r\n"), "{odd:?}");
        assert!(!message.without_prepended_lines().is_empty(), "{odd:?}");
        assert_eq!(*message.identity(), Identity::of(message.as_received()), "{odd:?}");
    }
}

#[test]
fn line_ends_become_crlf_and_nothing_else_changes() {
    for (raw, imap) in [
        ("a\nb\n", "a\r\nb\r\n"),
        ("a\r\nb\r\n", "a\r\nb\r\n"),
        ("a\nb\r\nc", "a\r\nb\r\nc\r\n"),
        ("a\rb\n", "a\rb\r\n"),
        ("a\r\r\n\n\n", "a\r\r\n\r\n\r\n"),
        ("\n\n", "\r\n\r\n"),
        ("a\n.\n\u{e9}\n", "a\r\n.\r\n\u{e9}\r\n"),
        ("From x\nA: b\n", "A: b\r\n"),
        ("From : x\n", "From : x\r\n"),
    ] {
        assert_eq!(text(received(raw).as_received()), imap, "{raw:?}");
    }
}

#[test]
fn nul_becomes_0x80_and_is_counted() {
    let message = received(&b"A: \0\n\nx\0\0y\0"[..]);
    assert_eq!(message.as_received(), b"A: \x80\r\n\r\nx\x80\x80y\x80\r\n");
    assert_eq!(message.nul_bytes_replaced(), 4);
    assert_eq!(received(LISA).nul_bytes_replaced(), 0);
}

#[test]
fn the_sent_copy_is_without_what_pipe_prepended_and_no_more() {
    for (prepended, rest) in [
        ("Return-Path: <lisa@gmail.com>\nX-Original-To: doug@x\nDelivered-To: doug@y\n", "Received: z\n"),
        ("Delivered-To: doug@y\n", "Received: z\n"),
        ("Return-Path: <>\nDelivered-To: a\n\tb\n", "A: b\n"),
        ("", "Received: z\nDelivered-To: doug@y\n"),
        ("Delivered-To: doug@y\n", "Delivered-To: mailing list's own\n"),
        ("Delivered-To: doug@y\n", "Return-Path: <>\n"),
        ("Return-Path: <>\n", "Subject: x\nX-Original-To: doug@x\n"),
        ("X-Original-To: doug@x\n", "\nDelivered-To: in the body\n"),
        ("", "Return-Path: <>\n"),
    ] {
        let message = received(format!("{prepended}{rest}"));
        assert_eq!(text(message.without_prepended_lines()), rest.replace('\n', "\r\n"));
        assert_eq!(message.as_received().len(), message.size() as usize);
    }
}

// --- identity

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

// --- metadata

#[test]
fn the_fields_are_decoded_for_people() {
    let message = received(LISA);
    assert_eq!(message.from(), Some("Lisa <lisa@gmail.com>"));
    assert_eq!(message.to(), Some("scuba@mail.axial.net, doug@mail.axial.net"));
    assert_eq!(message.cc(), None);
    assert_eq!(message.subject(), Some("Grüße"));
    assert_eq!(message.date(), Some(1_795_176_000));
    let subject = |raw: &[u8]| received([b"Subject: ", raw, b"\n\n"].concat()).subject().unwrap().to_owned();
    assert_eq!(subject(b"J\xf6rg"), "Jörg");
    assert_eq!(subject("Jörg".as_bytes()), "Jörg");
    assert_eq!(subject(b"=?utf-8?B?YQBi?=\n =?utf-8?B?Y2Q=?="), "abcd");
    assert_eq!(subject(b"=?utf-8?Q?a=00=0D=0Ab?="), "ab");
    assert_eq!(subject(b"=?utf-8?Q?never ends"), "=?utf-8?Q?never ends");
    assert_eq!(subject(b"a\x07\x1b[0mb"), "a[0mb");
    assert_eq!(received("A: b\n\nSubject: in the body\n").subject(), None);
    assert_eq!(received("Subject : old\n\n").subject(), Some("old"));
}

#[test]
fn the_authors_address_is_one_mailbox_or_none() {
    let author = |field: &str| received(format!("{field}\n\n")).from_address().map(ToString::to_string);
    for field in [
        "From: lisa@gmail.com",
        "From: <lisa@gmail.com>",
        "From: Lisa <lisa@gmail.com>",
        "From: \"Lisa, of \\\"G\\\"\" <lisa@gmail.com>",
        "From: =?utf-8?Q?Lisa=2C?= <lisa@gmail.com>",
        "From: lisa@gmail.com (Lisa)",
        "from:\n lisa@gmail.com",
    ] {
        assert_eq!(author(field).as_deref(), Some("lisa@gmail.com"), "{field}");
    }
    assert_eq!(author("From: \"doug@x\" <lisa@gmail.com>").as_deref(), Some("lisa@gmail.com"));
    for field in [
        "X: y",
        "From:",
        "From: <>",
        "From: lisa",
        "From: <MAILER-DAEMON>",
        "From: lisa@gmail.com, doug@x",
        "From: lisa@gmail.com\nFrom: lisa@gmail.com",
        "From: lisa@gmail.com\nFrom: doug@x\nFrom: scuba@x",
        "From: =?utf-8?Q?lisa=40gmail.com?=",
        "From: =?utf-8?Q?lisa=40gmail.com?= lisa",
        "From: =?utf-8?Q?=3Clisa=40gmail.com=3E?=",
        "From: <=?utf-8?Q?lisa=40gmail.com?=>",
        "From: lisa =?utf-8?Q?=40gmail.com?=",
        "From: friends: lisa@gmail.com;",
        "From: <lisa@gmail.com> <doug@x>",
        "From: lisa@gmail.com doug@x",
        "From: <lisa@gmail.com",
    ] {
        assert_eq!(author(field), None, "{field}");
    }
    // The part that is cut off could contain another mailbox.
    let lisa = " <lisa@gmail.com>";
    let full = format!("{}{lisa}", "x".repeat(FIELD_LIMIT - lisa.len()));
    assert_eq!(author(&format!("From: {full}")).as_deref(), Some("lisa@gmail.com"));
    assert_eq!(author(&format!("From: {full}, doug@x")), None);
}

#[test]
fn a_date_that_cannot_be_read_is_none() {
    let date = |text: &str| received(format!("Date: {text}\n\n")).date();
    for same in [
        "Fri, 20 Nov 2026 13:00:00 +0100",
        "Fri,20 Nov 2026 13:00:00 +0100 (CET)",
        "20 Nov 2026 13:00 +0100",
        "Fri, 20 Nov 26\n\t12:00:00 GMT",
    ] {
        assert_eq!(date(same), Some(1_795_176_000), "{same}");
    }
    for none in ["", "garbage", "yesterday, 3 o'clock", "Thu, 1 Jan 1970 00:00:00 +0000", "31 Dec 99999 00:00:00 GMT"] {
        assert_eq!(date(none), None, "{none}");
    }
    assert_eq!(date("garbage\nDate: 20 Nov 2026 12:00:00 GMT"), None, "only the first field counts");
    assert_eq!(date(&format!("1 Jan {} 00:00:00 GMT", u32::MAX)), None);
}

#[test]
fn the_headers_as_json() {
    let message = received(
        "Delivered-To: blind@x\nReceived: a\n\tb\nSubject: =?utf-8?Q?=22=00?= \"\\\nX:\nSubject: two\nno header\nY: z\n",
    );
    assert_eq!(message.headers_json(), r#"[["Received","a b"],["Subject","\" \"\\"],["X",""],["Subject","two"]]"#);
    assert_eq!(message.headers_json_of(&["subject", "Date"]), r#"[["Subject","\" \"\\"],["Subject","two"]]"#);
    assert_eq!(message.headers_json_of(&[]), "[]");
    assert_eq!(received("x").headers_json(), "[]");
    assert_eq!(received(" odd\nA: b\n").headers_json(), r#"[["A","b"]]"#);
}

#[test]
fn the_topmost_field() {
    let message = received("Delivered-To: <a@x>\nReceived: y\nDelivered-To: b@x\nEmpty:\n\nBody: z\n");
    assert_eq!(message.topmost("delivered-to").as_deref(), Some("<a@x>"));
    assert_eq!(message.topmost("Empty"), None);
    assert_eq!(message.topmost("Body"), None);
    assert_eq!(message.topmost(""), None);
    assert_eq!(received(format!("A: {}\n", "x".repeat(FIELD_LIMIT + 1))).topmost("A"), None);
}

/// `mail.ax\rial.net` is this site's name for readers that drop the CR, but not for the border that matches the name.
#[test]
fn a_bare_cr_vouches_for_nobody() {
    use authentication_results::Vouched;
    let vouched = |header: &str| received(format!("{header}\r\n\r\nx\r\n")).authentication_results("mail.axial.net");
    let from = "From: lisa@gmail.com";
    let ours = "Authentication-Results: mail.axial.net;\r\n dmarc=pass header.from=gmail.com";
    assert_eq!(vouched(&format!("{ours}\r\n{from}")), Vouched::Yes);
    for forged in [ours.replace("axial", "ax\rial"), ours.replace("dmarc", "dm\rarc"), ours.replace("\r\n ", "\r\n \r")]
    {
        assert!(matches!(vouched(&format!("{forged}\r\n{from}")), Vouched::No(_)), "{forged:?}");
        // The author of the forged field may have meant it to be read as this site's.
        assert!(matches!(vouched(&format!("{forged}\r\n{ours}\r\n{from}")), Vouched::No(_)), "{forged:?}");
        assert_eq!(vouched(&format!("{ours}\r\n{forged}\r\n{from}")), Vouched::Yes, "{forged:?}");
    }
    for odd in ["From: li\rsa@gmail.com", "From: Lisa\r <lisa@gmail.com>", "From: lisa@gmail.com\rTo: x"] {
        assert_eq!(received(format!("{odd}\r\n\r\nx\r\n")).from_address(), None, "{odd:?}");
        assert!(matches!(vouched(&format!("{ours}\r\n{odd}")), Vouched::No(_)), "{odd:?}");
    }
    // The identity is unchanged: a CR does not count.
    assert_eq!(received(format!("{from}\rx\n\nx\n")).identity(), received(format!("{from}x\n\nx\n")).identity());
}

/// Anyone can own a domain with ß, and it is looked up as the one with ss.
#[test]
fn a_domain_that_is_looked_up_as_another_one_is_vouched_for_by_nobody() {
    use authentication_results::Vouched;
    let of = |domain: &str| {
        let results = format!("Authentication-Results: mx; dmarc=pass header.from={domain}");
        received(format!("{results}\nFrom: lisa@{domain}\n\n")).authentication_results("mx")
    };
    for same in ["weiss.de", "WEISS.de", "WÄSCHE.de", "νίκοσ.gr"] {
        assert_eq!(of(same), Vouched::Yes, "{same}");
    }
    for other in ["weiß.de", "νίκος.gr"] {
        assert!(matches!(of(other), Vouched::No(_)), "{other}");
    }
}

#[test]
fn authentication_results_need_an_author() {
    use authentication_results::Vouched;
    let with = |from: &str| {
        let results = "Authentication-Results: mx; spf=pass;\n dmarc=pass header.from=gmail.com\n";
        received(format!("Delivered-To: doug@x\n{results}{from}\n\n")).authentication_results("mx")
    };
    assert_eq!(with("From: lisa@gmail.com"), Vouched::Yes);
    assert!(matches!(with("From: lisa@gmail.com, a@b"), Vouched::No(_)));
    assert!(matches!(with("X: y"), Vouched::No(_)));
}

// --- hostile messages: what is bounded stays bounded

#[test]
fn a_field_is_cut_before_and_after_it_is_decoded() {
    let subject = |raw: String| received(format!("Subject: {raw}\n\n")).subject().unwrap().to_owned();
    assert_eq!(subject("x".repeat(FIELD_LIMIT)).len(), FIELD_LIMIT);
    let long = subject("x".repeat(1_000_000));
    assert_eq!(long.len(), FIELD_LIMIT);
    assert!(long.ends_with('…'));
    // A cut inside a character leaves valid UTF-8.
    let umlauts = subject(format!("x{}", "ö".repeat(FIELD_LIMIT)));
    assert!(umlauts.starts_with("xöö") && umlauts.ends_with("öö…") && umlauts.len() <= FIELD_LIMIT);
    // Latin-1 doubles when it is decoded.
    let latin = received([b"Subject: ".to_vec(), vec![0xf6; FIELD_LIMIT], b"\n\n".to_vec()].concat());
    assert!(latin.subject().unwrap().len() <= FIELD_LIMIT);
}

#[test]
fn a_field_full_of_encoded_words_is_left_as_it_is() {
    let raw = "=?a?q?x?= ".repeat(700);
    let message = received(format!("Subject: {raw}\n\n"));
    assert_eq!(message.subject(), Some(raw.trim()));
}

#[test]
fn the_json_is_bounded_and_says_so() {
    for many in [
        "a:\n".repeat(100_000),
        format!("a: {}\n", "x".repeat(10_000)).repeat(100),
        format!("a: {}\n", "\\".repeat(8_000)).repeat(100),
        format!("{}: x\n", "n".repeat(100_000)).repeat(20),
        format!("s: {}\n", "=?utf-8?q?x?=\n ".repeat(200)).repeat(500),
    ] {
        let json = received(many).headers_json();
        assert!(json.len() < decode::JSON_LIMIT + 200, "{}", json.len());
        let fields: Vec<[String; 2]> = serde_json::from_str(&json).unwrap();
        assert!(fields.len() <= decode::JSON_FIELDS_LIMIT + 1);
    }
    let fields: Vec<[String; 2]> = serde_json::from_str(&received("a:\n".repeat(1001)).headers_json()).unwrap();
    assert_eq!(fields.len(), 1001);
    assert_eq!(fields[1000], ["", "(the fields that follow are left out: too many, or too long)"]);
    let fields: Vec<[String; 2]> = serde_json::from_str(&received("a:\n".repeat(1000)).headers_json()).unwrap();
    assert_eq!(fields[999], ["a", ""]);
}

#[test]
fn hostile_messages_are_delivered() {
    let boundary = |depth: usize| format!("Content-Type: multipart/mixed; boundary=b{depth}\n\n--b{depth}\n");
    for hostile in [
        format!("A: {}", "x".repeat(1_000_000)),
        "From: a@b\n".repeat(100_000),
        " \n".repeat(100_000),
        "\r".repeat(100_000),
        "\0".repeat(100_000),
        "=?".repeat(100_000),
        format!("Subject: {}\n", "=?".repeat(500_000)),
        format!("From: {}\n", "(".repeat(8_000)),
        format!("From: {}\n", "a:".repeat(4_000)),
        format!("From: {}\n", "<".repeat(8_000)),
        format!("Date: {}\n", "1 ".repeat(4_000)),
        (0..1000).map(boundary).collect(),
    ] {
        let message = received(hostile);
        assert_eq!(*message.identity(), Identity::of(message.as_received()));
        assert!(message.headers_json().ends_with("]"));
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

/// Compares all messages of up to seven bytes from this alphabet with a byte-by-byte version of the documented rule.
#[test]
fn line_ends_and_nul_of_every_short_message() {
    let mut shorter: Vec<Vec<u8>> = vec![Vec::new()];
    for _ in 0..7 {
        let longer: Vec<Vec<u8>> =
            shorter.iter().flat_map(|raw| b"a\r\n\0".map(|byte| [raw.as_slice(), &[byte]].concat())).collect();
        for raw in &longer {
            let mut wanted = Vec::new();
            for &byte in raw {
                match byte {
                    b'\n' if wanted.last() != Some(&b'\r') => wanted.extend_from_slice(b"\r\n"),
                    0 => wanted.push(0x80),
                    other => wanted.push(other),
                }
            }
            if wanted.last() != Some(&b'\n') {
                wanted.extend_from_slice(b"\r\n");
            }
            let message = Message::receive(raw.clone()).unwrap();
            assert_eq!(message.as_received(), wanted, "{raw:?}");
            assert_eq!(*message.identity(), Identity::of(&wanted), "{raw:?}");
            assert_eq!(message.nul_bytes_replaced(), raw.iter().filter(|byte| **byte == 0).count(), "{raw:?}");
        }
        shorter = longer;
    }
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
fn in_the_log_digests_are_hexadecimal_and_a_message_is_its_name_and_size() {
    let lisa = received(LISA);
    let (identity, content) = (lisa.identity().as_bytes(), lisa.content_digest().as_bytes());
    assert_eq!(format!("{:?}", lisa.identity()), format!("Identity({})", crate::base::hex::encode(identity)));
    assert_eq!(format!("{:?}", lisa.content_digest()), format!("ContentDigest({})", crate::base::hex::encode(content)));
    let shown = format!("{lisa:?}");
    assert!(shown.contains("<123-abc@mail.google.com>") && shown.contains(&lisa.size().to_string()), "{shown}");
    assert!(!shown.contains("Hello"), "{shown}");
}

#[test]
fn who_was_written_to_blindly_stands_in_two_fields_of_the_header() {
    let blind = |bytes: &str| blind_recipients(bytes.as_bytes()).iter().map(|one| text(one)).collect::<Vec<_>>();
    assert_eq!(blind("Bcc: a@x\r\nTo: b@x\r\nResent-Bcc:  c@x,\r\n d@x\r\n\r\nBcc: e@x\r\n"), ["a@x", "c@x, d@x"]);
    assert_eq!(blind("To: b@x\r\n\r\n"), [""; 0]);
}

#[test]
fn to_and_cc_are_distinguished_for_people() {
    let message = received("To: =?utf-8?Q?D=C3=B6ug?= <doug@x>\nCc: scuba@x\nCc: lisa@x\n\n");
    assert_eq!((message.to(), message.cc()), (Some("D\u{f6}ug <doug@x>"), Some("scuba@x")));
    assert_eq!((received("A: b\n\n").to(), received("A: b\n\n").cc()), (None, None));
}

#[test]
fn a_field_beyond_its_limit_is_not_there() {
    let topmost = |length: usize| received(format!("X-User: {}\n\n", "x".repeat(length))).topmost("x-user");
    assert_eq!(topmost(decode::FIELD_LIMIT), Some("x".repeat(decode::FIELD_LIMIT)));
    assert_eq!(topmost(decode::FIELD_LIMIT + 1), None);
    assert_eq!(topmost(0), None);
}

#[test]
fn how_long_ago_a_message_came_is_reported_by_its_topmost_received_field() {
    // 2026-11-23 12:00:00 UTC.
    let now = OffsetDateTime::from_unix_timestamp(1_795_435_200).unwrap();
    let field = |date: &str| format!("Received: from a by b id c;\n\t{date}\n");
    let (noon, earlier) = (field("Mon, 23 Nov 2026 11:59:50 +0000 (UTC)"), field("Mon, 23 Nov 2026 10:00:00 +0000"));
    let later = field("Mon, 23 Nov 2026 12:00:01 +0000");
    let now_itself = field("Mon, 23 Nov 2026 13:00:00 +0100");
    let prepended = "Return-Path: <lisa@x>\nDelivered-To: doug@y\nAuthentication-Results: y; none\n";
    for (header, seconds) in [
        (format!("{noon}{earlier}"), Some(10)),
        (format!("{prepended}{noon}{earlier}"), Some(10)),
        (format!("{earlier}{noon}"), Some(7200)),
        (now_itself, Some(0)),
        // In the future; missing; unreadable, whatever the fields below it are.
        (format!("{later}{earlier}"), None),
        (format!("Received-SPF: pass; Mon, 23 Nov 2026 11:00:00 +0000\n{prepended}"), None),
        (format!("Received: from a by b\n{noon}"), None),
        (format!("Received:\n{noon}"), None),
        (format!("Subject: x\n\n{noon}"), None),
    ] {
        let came = received(format!("{header}\n\nHello\n")).came_before(now);
        assert_eq!(came, seconds.map(Duration::from_secs), "{header}");
    }
}

#[test]
fn a_text_is_recorded_without_what_surrounds_it() {
    assert_eq!(super::decode::tidy(" \t a\u{0} b \u{a0}", 10, false), "a b");
}

#[test]
fn a_copys_key_begins_as_its_message_does_and_all_that_makes_it_a_copy_counts() {
    let identity = std::array::from_fn(|at| u8::try_from(at).unwrap());
    let key = super::identity::key_of_copy(&identity, "recipient", "doug", "INBOX");
    assert_eq!(key[..4], identity[..4]);
    for (role, user, mailbox) in [
        ("sender", "doug", "INBOX"),
        ("recipient", "anna", "INBOX"),
        ("recipient", "doug", "Sent"),
        ("recipient", "dougI", "NBOX"),
    ] {
        assert_ne!(
            super::identity::key_of_copy(&identity, role, user, mailbox)[4..],
            key[4..],
            "{role} {user} {mailbox}"
        );
    }
    assert_ne!(super::identity::key_of_copy(&[0; 32], "recipient", "doug", "INBOX")[4..], key[4..]);
}
