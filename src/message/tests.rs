use super::*;

pub(super) const LISA: &str = "From: Lisa <lisa@gmail.com>\n\
    To: scuba@mail.axial.net, doug@mail.axial.net\n\
    Subject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\n\
    Date: Fri, 20 Nov 2026 13:00:00 +0100\n\
    Message-ID: <123-abc@mail.google.com>\n\
    \n\
    Hello\n";

pub(super) fn received(raw: impl Into<Vec<u8>>) -> Message {
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
