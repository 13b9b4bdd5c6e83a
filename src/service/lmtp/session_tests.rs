use super::*;
use crate::delivery::StatusDetail;

fn settings() -> Settings {
    Settings {
        host: "mx.example".into(),
        postmaster: "postmaster@mail.axial.net".into(),
        max_recipients: 1000,
        deadline: Duration::from_mins(4),
        spool: Arc::new(Spool { directory: "/nonexistent".into(), above: 1 << 20, limit: None }),
        tally: LmtpTally::default(),
    }
}

const FRIEND: StartTls = StartTls::NotOffered;

/// A client.
struct Talk(LmtpSession);

impl Talk {
    fn new(settings: Settings, client: StartTls) -> Self {
        let mut session = LmtpSession::new(Arc::new(settings), client);
        assert_eq!(session.replies(), b"220 mx.example LMTP maildropd\r\n");
        Self(session)
    }

    /// A client that has sent LHLO.
    fn begun(settings: Settings, client: StartTls) -> Self {
        let mut talk = Self::new(settings, client);
        talk.say("LHLO mx.example\r\n");
        talk
    }

    /// The replies to bytes that the session consumes completely.
    fn say(&mut self, bytes: impl AsRef<[u8]>) -> String {
        let bytes = bytes.as_ref();
        let (taken, step) = self.0.feed(bytes);
        assert_eq!(taken, bytes.len());
        assert!(matches!(step, Step::More | Step::Close), "{step:?}");
        String::from_utf8(self.0.replies()).unwrap()
    }

    /// The code of the reply to one command.
    fn code(&mut self, command: &str) -> String {
        let replies = self.say(format!("{command}\r\n"));
        assert_eq!(replies.matches("\r\n").count(), 1, "{replies}");
        replies.split_once(' ').unwrap().0.to_owned()
    }

    /// The message that these bytes complete, and the number of bytes after it.
    fn deliver(&mut self, bytes: impl AsRef<[u8]>) -> (Transaction, usize) {
        let bytes = bytes.as_ref();
        let (taken, step) = self.0.feed(bytes);
        match step {
            Step::Deliver(transaction) => (*transaction, bytes.len() - taken),
            other => panic!("{other:?}: {}", String::from_utf8_lossy(&self.0.out)),
        }
    }

    fn answer(&mut self, verdicts: &[Verdict]) -> String {
        self.0.answer(Some(verdicts));
        String::from_utf8(self.0.replies()).unwrap()
    }
}

fn in_memory(body: &Body) -> &[u8] {
    assert!(matches!(body, Body::Memory(_)));
    body.in_memory()
}

#[test]
fn what_is_offered_is_what_this_client_gets() {
    let limited = Spool { limit: Some(50_000_000), ..(*settings().spool).clone() };
    let limited = Settings { spool: Arc::new(limited), ..settings() };
    let common = "250-mx.example\r\n250-PIPELINING\r\n250-ENHANCEDSTATUSCODES\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n";
    let xforward = "XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE";
    let offered = |client, settings| Talk::new(settings, client).say("LHLO x\r\n");
    assert_eq!(offered(StartTls::Required, settings()), format!("{common}250-SIZE\r\n250 STARTTLS\r\n"));
    assert_eq!(offered(FRIEND, limited), format!("{common}250-SIZE 100000000\r\n250 {xforward}\r\n"));
    assert_eq!(
        offered(StartTls::Offered, settings()),
        format!("{common}250-SIZE\r\n250-{xforward}\r\n250 STARTTLS\r\n")
    );
}

#[test]
fn a_message_comes_as_postfix_sends_it() {
    let mut talk = Talk::begun(settings(), FRIEND);
    let replies = talk.say(
        "XFORWARD NAME=mail.example ADDR=IPV6:2001:db8::7 IDENT=4bXyz1\r\nMAIL FROM:<\"odd name\"@gmail.com> SIZE=50 \
         BODY=8BITMIME SMTPUTF8\r\nRCPT TO:<doug@mail.axial.net>\r\nRCPT TO:<j\u{f6}rg@x>\r\nRCPT \
         TO:<doug@mail.axial.net>\r\nDATA\r\n",
    );
    let codes: Vec<&str> = replies.lines().map(|line| &line[..4]).collect();
    assert_eq!(codes, ["250 ", "250 ", "250 ", "250 ", "250 ", "354 "], "{replies}");
    let message = [b"Subject: x\r\n\r\n\0\xff\r\n".as_slice(), "x".repeat(5000).as_bytes(), b"\r\n..\r\n"].concat();
    let (transaction, left) = talk.deliver([message.as_slice(), b".\r\nQUIT\r\n"].concat());
    assert_eq!(left, "QUIT\r\n".len());
    let Transaction { request, message: body } = transaction;
    let expected = [b"Return-Path: <\"odd name\"@gmail.com>\r\n", message.as_slice()].concat();
    let expected = expected.strip_suffix(b"..\r\n").unwrap();
    assert_eq!(in_memory(&body), [expected, b".\r\n"].concat());
    assert_eq!(request.size, in_memory(&body).len() as u64);
    assert_eq!(request.sender, "odd name@gmail.com");
    let recipients: Vec<&str> = request.recipients.iter().map(|it| it.address.as_str()).collect();
    assert_eq!(recipients, ["doug@mail.axial.net", "jörg@x", "doug@mail.axial.net"]);
    assert!(request.recipients.iter().all(|it| it.original.is_none()));
    assert_eq!((request.queue_id.as_deref(), request.client_address.as_deref()), (Some("4bXyz1"), Some("2001:db8::7")));
    assert_eq!((request.time_left_ms, request.file), (240_000, None));

    let verdicts = [
        Verdict::delivered("INBOX appended (uid 17)"),
        Verdict::deferred(StatusDetail::SYSTEM, "busy"),
        Verdict::unknown_recipient("no such recipient here"),
    ];
    assert_eq!(
        talk.answer(&verdicts),
        "250 2.0.0 INBOX appended (uid 17)\r\n451 4.3.0 busy\r\n550 5.1.1 no such recipient here\r\n"
    );
    assert_eq!(talk.0.phase(), Phase::Idle { has_served: true });
    assert_eq!(talk.say("QUIT\r\n"), "221 2.0.0 Bye\r\n");

    // XFORWARD counts for one message only.
    let mut talk = Talk::begun(settings(), FRIEND);
    for forgets in ["RSET", "LHLO x", "MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n.\r\n"] {
        talk.say("XFORWARD IDENT=4bXyz1\r\n");
        let (_, _) = talk.0.feed(format!("{forgets}\r\n").as_bytes());
        talk.answer(&[]);
        talk.say("\r\n");
        talk.say("MAIL FROM:<>\r\nRCPT TO:<a@b>\r\nDATA\r\n");
        let (transaction, _) = talk.deliver(".\r\n");
        assert_eq!(transaction.request.queue_id, None, "{forgets}");
        assert_eq!(in_memory(&transaction.message), b"Return-Path: <>\r\n");
        assert_eq!(transaction.request.sender, "");
        assert_eq!(talk.answer(&[Verdict::delivered("x")]), "250 2.0.0 x\r\n");
    }
}

#[test]
fn commands_out_of_order_are_refused_and_change_nothing() {
    let mut talk = Talk::new(settings(), FRIEND);
    for (command, code) in [
        ("MAIL FROM:<>", "503"),
        ("HELO x", "500"),
        ("EHLO x", "500"),
        ("NOOP", "250"),
        ("VRFY doug", "252"),
        ("HELP", "214"),
        ("STARTTLS", "500"),
        ("FOO", "500"),
    ] {
        assert_eq!(talk.code(command), code, "{command}");
    }
    talk.say("LHLO x\r\n");
    for (command, code) in [
        ("RCPT TO:<a@b>", "503"),
        ("DATA", "503"),
        ("MAIL FROM:<lisa@x>", "250"),
        ("MAIL FROM:<other@x>", "503"),
        ("XFORWARD IDENT=x", "503"),
        // RFC 2033 section 4.2.
        ("DATA", "503"),
        ("RCPT TO:<a b@c>", "501"),
        ("RCPT TO:<>", "501"),
        ("RCPT TO:<a@b> NOTIFY=NEVER", "555"),
        ("RCPT TO:<doug>", "450"),
        ("RCPT TO:<\"a@b\">", "450"),
        ("RCPT TO:<\" doug\"@x>", "450"),
        ("RCPT TO:<a\u{85}@x>", "501"),
        ("DATA", "503"),
        ("RCPT TO:<Postmaster>", "250"),
        ("RCPT TO:<\"a@b\"@c>", "250"),
        ("FOO", "500"),
        ("HELO x", "500"),
        ("DATA", "354"),
    ] {
        assert_eq!(talk.code(command), code, "{command}");
    }
    let (transaction, _) = talk.deliver(".\r\n");
    assert_eq!(transaction.request.sender, "lisa@x");
    let recipients: Vec<&str> = transaction.request.recipients.iter().map(|it| it.address.as_str()).collect();
    assert_eq!(recipients, ["postmaster@mail.axial.net", "a@b@c"]);
    talk.answer(&[]);
    assert_eq!(talk.code("RCPT TO:<a@b>"), "503");
    assert_eq!(Talk::begun(settings(), StartTls::Required).code("XFORWARD IDENT=x"), "451");
    assert_eq!(Talk::begun(settings(), FRIEND).code("XFORWARD nonsense"), "501");
}

#[test]
fn each_refusal_of_a_message_has_as_many_replies_as_there_are_recipients() {
    for recipients in [1, 2, 50] {
        let envelope = format!("MAIL FROM:<>\r\n{}DATA\r\n", "RCPT TO:<doug@x>\r\n".repeat(recipients));
        let spool = |above, limit| Arc::new(Spool { directory: "/nonexistent".into(), above, limit });
        for (spool, refusal) in [(spool(u64::MAX, Some(100)), "552 5.3.4 "), (spool(10, None), "452 4.3.1 ")] {
            let mut talk = Talk::begun(Settings { spool, ..settings() }, FRIEND);
            for _ in 0..2 {
                talk.say(&envelope);
                assert_eq!(talk.say("x".repeat(1000)), "");
                let replies_text = talk.say("\r\n.\r\nNOOP\r\n");
                let lines: Vec<&str> = replies_text.lines().collect();
                assert_eq!(lines.len(), recipients + 1);
                assert!(lines[..recipients].iter().all(|line| line.starts_with(refusal)), "{replies_text}");
                assert!(lines[recipients].starts_with("250 "));
            }
        }
        let mut talk = Talk::begun(settings(), FRIEND);
        for verdicts in [None, Some(0), Some(1), Some(recipients), Some(recipients + 1)] {
            talk.say(&envelope);
            talk.deliver(".\r\n");
            talk.0.answer(verdicts.map(|count| vec![Verdict::delivered("x"); count]).as_deref());
            // A second answer has no effect.
            talk.0.answer(Some(&[Verdict::delivered("y")]));
            let reply = talk.say("");
            let code =
                if verdicts == Some(recipients) { "250 2.0.0 x\r\n" } else { "451 4.3.0 The delivery did not end\r\n" };
            assert_eq!(reply, code.repeat(recipients));
        }
        // Without verdicts, the session goes on.
        talk.say(&envelope);
        talk.deliver(".\r\n");
        let replies = talk.say("NOOP\r\n");
        assert_eq!(replies, format!("{}250 2.0.0 Ok\r\n", "451 4.3.0 The delivery did not end\r\n".repeat(recipients)));
    }
}

#[test]
fn a_message_that_says_it_is_too_large_is_refused_at_once() {
    let spool = Spool { limit: Some(100), ..(*settings().spool).clone() };
    let mut talk = Talk::begun(Settings { spool: Arc::new(spool), ..settings() }, FRIEND);
    assert_eq!(talk.say("MAIL FROM:<> SIZE=201\r\n"), "552 5.3.4 The message is larger than this server takes\r\n");
    assert_eq!(talk.code("MAIL FROM:<> SIZE=200"), "250");
    assert_eq!(talk.code("RCPT TO:<a@b>"), "250");
    assert_eq!(talk.code("DATA"), "354");
    let (transaction, _) = talk.deliver(format!("{}\r\n.\r\n", "x".repeat(98)));
    assert_eq!(transaction.request.size, 117);
}

/// The size of a line's record in Postfix's queue file: its type, its length with seven bits in each byte, and the line
/// (record(3)).
fn as_postfix_measures(line: &str) -> usize {
    let bits = usize::BITS - line.len().leading_zeros();
    1 + bits.div_ceil(7).max(1) as usize + line.len()
}

#[test]
fn what_is_small_enough_is_kept_back_by_no_client_that_measures_it_otherwise() {
    for length in [0, 1, 2, 60, 127, 128, 2000] {
        let (line, count) = ("x".repeat(length), 50);
        let limit = (length as u64 + 1) * count;
        let spool = Spool { limit: Some(limit), above: u64::MAX, ..(*settings().spool).clone() };
        let mut talk = Talk::new(Settings { spool: Arc::new(spool), ..settings() }, FRIEND);
        let reply = talk.say("LHLO x\r\n");
        let announced = reply.lines().find_map(|line| line.split_once("SIZE ")).expect("a limit").1;
        let by_postfix = as_postfix_measures(&line) as u64 * count;
        let by_rfc_1870 = (length as u64 + 2) * count;
        for size in [by_postfix, by_rfc_1870] {
            assert!(size <= announced.parse().unwrap(), "lines of {length}: {size} of {announced}");
            assert_eq!(talk.code(&format!("MAIL FROM:<> SIZE={size}")), "250", "lines of {length}");
            talk.say("RCPT TO:<a@b>\r\nDATA\r\n");
            talk.deliver(format!("{}.\r\n", format!("{line}\r\n").repeat(count as usize)));
            talk.answer(&[Verdict::delivered("x")]);
        }
        // One byte more is too large, whatever SIZE announced.
        talk.say("MAIL FROM:<> SIZE=1\r\nRCPT TO:<a@b>\r\nDATA\r\n");
        let replies = talk.say(format!("{}x\r\n.\r\n", format!("{line}\r\n").repeat(count as usize)));
        assert!(replies.starts_with("552 5.3.4 "), "{replies}");
    }
}

#[test]
fn recipients_past_the_limit_are_left_to_another_message() {
    let mut talk = Talk::begun(Settings { max_recipients: 2, ..settings() }, FRIEND);
    let replies = talk.say(format!("MAIL FROM:<>\r\n{}", "RCPT TO:<a@b>\r\n".repeat(3)));
    assert!(replies.ends_with("250 2.1.5 Ok\r\n250 2.1.5 Ok\r\n452 4.5.3 Too many recipients\r\n"), "{replies}");
    talk.say("DATA\r\n");
    let (transaction, _) = talk.deliver(".\r\n");
    assert_eq!(transaction.request.recipients.len(), 2);

    // However long the addresses are, they fit into the header of a frame.
    let mut talk = Talk::begun(Settings { max_recipients: 1_000_000, ..settings() }, FRIEND);
    talk.say("MAIL FROM:<>\r\n");
    let rcpt = format!("RCPT TO:<\"{}\"@x>\r\n", "\\\"".repeat(2000));
    while talk.say(&rcpt).starts_with("250 ") {}
    assert!(talk.say("RCPT TO:<a@b>\r\n").starts_with("250 "));
    talk.say("DATA\r\n");
    let (transaction, _) = talk.deliver(".\r\n");
    assert!(transaction.request.recipients.len() > 100);
    let message = in_memory(&transaction.message);
    assert!(crate::protocol::Header::Deliver(transaction.request.clone()).frame(message).is_ok());
}

#[test]
fn only_cr_lf_ends_a_command_and_a_long_one_takes_no_memory() {
    let mut talk = Talk::begun(settings(), FRIEND);
    assert_eq!(talk.say("NOOP\nNOOP\n"), "");
    assert_eq!(talk.0.phase(), Phase::Command);
    assert_eq!(talk.code("NOOP"), "451");
    assert_eq!(talk.code("NOOP\rNOOP"), "451");
    for length in [LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 1_000_000] {
        let line = format!("NOOP {}\r\n", "x".repeat(length - 7));
        let code = if length > LONGEST_LINE { "500 5.5.2 The line is too long\r\n" } else { "250 2.0.0 Ok\r\n" };
        assert_eq!(line.len(), length);
        assert_eq!(talk.say(&line), code);
        assert_eq!(line.as_bytes().chunks(1000).map(|piece| talk.say(piece)).collect::<String>(), code);
        assert!(talk.0.line.capacity() <= 4 * LONGEST_LINE, "{}", talk.0.line.capacity());
    }
    // An incomplete line gets no reply.
    assert_eq!(talk.say("x".repeat(1_000_000)), "");
    assert_eq!(talk.0.line.len(), 2);
    assert_eq!(talk.say("\r\n"), "500 5.5.2 The line is too long\r\n");
    assert_eq!(talk.0.phase(), Phase::Idle { has_served: false });
}

#[test]
fn who_talks_nonsense_is_sent_away_but_never_within_a_message() {
    let mut talk = Talk::begun(settings(), FRIEND);
    talk.say("MAIL FROM:<>\r\nRCPT TO:<a@b>\r\n");
    for _ in 0..100 {
        assert_eq!(talk.code("FOO"), "500");
    }
    talk.say("DATA\r\n");
    talk.deliver(".\r\n");
    assert_eq!(talk.answer(&[Verdict::delivered("x")]), "250 2.0.0 x\r\n");
    for _ in 0..MOST_ERRORS {
        assert_eq!(talk.code("FOO"), "500");
    }
    assert_eq!(talk.say("FOO\r\nNOOP\r\nFOO\r\n"), "421 4.7.0 Too many errors\r\n");
    assert!(matches!(talk.0.feed(b"NOOP\r\n"), (6, Step::Close)));
    assert_eq!(talk.0.replies(), b"");

    // The commands that Postfix pipelines after a refused MAIL are no errors.
    let spool = Spool { limit: Some(100), ..(*settings().spool).clone() };
    let mut talk = Talk::begun(Settings { spool: Arc::new(spool), ..settings() }, FRIEND);
    let reply = talk.say(format!("MAIL FROM:<> SIZE=201\r\n{}DATA\r\n", "RCPT TO:<a@b>\r\n".repeat(50)));
    assert_eq!(reply.matches("503 5.5.1 ").count(), 51, "{reply}");
    assert_eq!(talk.code("RSET"), "250");
}

#[test]
fn commands_that_bring_no_message_nearer_count_as_errors_once_they_are_many() {
    // How many of these commands get a reply before the client is disconnected.
    let answered = |talk: &mut Talk, command: &str| {
        let mut count = 0;
        while !talk.say(format!("{command}\r\n")).ends_with("421 4.7.0 Too many errors\r\n") {
            count += 1;
            assert!(count < 1000, "{command}");
        }
        count
    };
    for command in ["NOOP", "RSET", "VRFY a@b", "HELP", "RSET\r\nMAIL FROM:<>\r\nRCPT TO:<a@b>"] {
        let mut talk = Talk::begun(settings(), FRIEND);
        assert_eq!(answered(&mut talk, command), MOST_JUNK + MOST_ERRORS - 1, "after LHLO: {command}");
        assert!(matches!(talk.0.feed(b"NOOP\r\n"), (6, Step::Close)));
    }
    assert_eq!(answered(&mut Talk::new(settings(), StartTls::NotOffered), "LHLO x"), MOST_JUNK + MOST_ERRORS);
    let before_tls = StartTls::Required;
    assert_eq!(answered(&mut Talk::new(settings(), before_tls), "NOOP"), MOST_JUNK + MOST_ERRORS);

    // A client that sends messages may send this many commands with each. No client is disconnected within a message.
    let mut talk = Talk::new(settings(), FRIEND);
    talk.say("LHLO x\r\n");
    for _ in 0..5 {
        talk.say("RSET\r\n".repeat(90));
        talk.say("MAIL FROM:<>\r\nRCPT TO:<a@b>\r\n");
        assert_eq!(talk.say("NOOP\r\n".repeat(200)), "250 2.0.0 Ok\r\n".repeat(200));
        talk.say("DATA\r\n");
        talk.deliver(".\r\n");
        assert_eq!(talk.answer(&[Verdict::delivered("x")]), "250 2.0.0 x\r\n");
    }
    assert_eq!(answered(&mut talk, "RSET"), MOST_JUNK + MOST_ERRORS);
}

#[test]
fn bytes_that_are_no_commands_end_the_session() {
    for foreign in ["BDAT 20 LAST\r\nMAIL FROM:<a@b>\r\n", "POST / HTTP/1.1\r\nHost: x\r\n\r\nLHLO x\r\n"] {
        let mut talk = Talk::new(settings(), FRIEND);
        assert!(matches!(talk.0.feed(foreign.as_bytes()).1, Step::Close));
        let reply = String::from_utf8(talk.0.replies()).unwrap();
        assert!(reply.starts_with("421 ") && reply.matches("\r\n").count() == 1, "{reply}");
    }
}

#[test]
fn tls_begins_the_session_again_and_what_was_sent_before_is_forgotten() {
    let mut talk = Talk::begun(settings(), StartTls::Required);
    // A 5xx would bounce mail if an operator has forgotten to enable TLS in Postfix.
    assert_eq!(talk.say("MAIL FROM:<>\r\n"), "451 4.7.0 Say STARTTLS first\r\n");
    assert_eq!(talk.code("NOOP"), "250");
    let (taken, step) = talk.0.feed(b"STARTTLS\r\nMAIL FROM:<a@b>\r\n");
    assert_eq!(taken, "STARTTLS\r\n".len());
    assert!(matches!(step, Step::StartTls));
    assert_eq!(talk.0.replies(), b"220 2.0.0 Begin TLS\r\n");
    talk.0.secured();
    assert_eq!(talk.0.replies(), b"");
    assert_eq!(talk.code("MAIL FROM:<>"), "503");
    assert!(!talk.say("LHLO x\r\n").contains("STARTTLS"));
    assert_eq!(talk.code("STARTTLS"), "500");
    assert_eq!(talk.code("XFORWARD IDENT=x"), "250");
    assert_eq!(talk.code("MAIL FROM:<>"), "250");
    // If TLS is only offered, the session works without it.
    let mut talk = Talk::begun(settings(), StartTls::Offered);
    assert_eq!(talk.code("MAIL FROM:<>"), "250");
}

#[test]
fn it_is_known_where_a_session_stands() {
    let mut talk = Talk::begun(settings(), FRIEND);
    assert_eq!(talk.0.phase(), Phase::Idle { has_served: false });
    talk.say("RSE");
    assert_eq!(talk.0.phase(), Phase::Command);
    talk.say("T\r\nMAIL FROM:<>\r\n");
    assert_eq!(talk.0.phase(), Phase::Command);
    talk.say("RCPT TO:<a@b>\r\nDATA\r\n");
    assert_eq!(talk.0.phase(), Phase::Data);
    talk.deliver(".\r\n");
    assert_eq!(talk.0.phase(), Phase::Command);
    talk.answer(&[Verdict::delivered("x")]);
    assert_eq!(talk.0.phase(), Phase::Idle { has_served: true });
}
