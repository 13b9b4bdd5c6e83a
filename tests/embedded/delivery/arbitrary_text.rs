//! Whatever text comes as an address, as a configuration file or for the line that Postfix reads: it is read as what it
//! is, or refused, and never gets to be more than that.

use crate::properties;
use proptest::prelude::*;

/// A configuration file of pieces that are in such files, in any order.
fn configuration() -> impl Strategy<Value = String> {
    let pieces = [
        "[database]\n",
        "[imap]\n",
        "[lock]\n",
        "[sent]\n",
        "[record]\n",
        "[delivery]\n",
        "[log]\n",
        "[routing]\n",
        "[[routing.domain]]\n",
        "name = ",
        "engine = ",
        "host = ",
        "port = ",
        "socket = ",
        "database = ",
        "user = ",
        "password_file = ",
        "roles.operator = ",
        "password = ",
        "tls = ",
        "ca_file = ",
        "encryption = ",
        "append_grace = ",
        "mechanism = ",
        "login_user = ",
        "deadline = ",
        "wait = ",
        "keep_source_max = ",
        "to = ",
        "file = ",
        "colour = ",
        "\"postgresql\"\n",
        "\"mysql\"\n",
        "\"localhost\"\n",
        "\"/run/x\"\n",
        "\"x\"\n",
        "\"{user}*service\"\n",
        "\"30s\"\n",
        "\"2000s\"\n",
        "\"9999999999999y\"\n",
        "\"tls\"\n",
        "\"verify\"\n",
        "\"off\"\n",
        "\"file\"\n",
        "\"\\u001b[31m\\n\"\n",
        "7\n",
        "-1\n",
        "99999999999999999999\n",
        "1e400\n",
        "{ a = 1 }\n",
        "[1, \"2\"]\n",
        "\"\"\"\n",
        "''\n",
        "\"",
        "'",
        "=",
        "[",
        "]",
        "#",
        "\n",
        ".",
        "é",
        "\u{202e}",
        "\u{1b}",
        "\0",
    ];
    let good = "[database]\nengine = \"postgresql\"\nhost = \"localhost\"\ndatabase = \"mail\"\nuser = \"maildrop\"\n\
        [imap]\nhost = \"localhost\"\nuser = \"service\"\npassword_file = \"/etc/imap.password\"\n";
    let pieces = prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..20).prop_map(|pieces| pieces.concat());
    (any::<bool>(), pieces).prop_map(move |(begun_well, rest)| if begun_well { format!("{good}{rest}") } else { rest })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn an_address_is_spelt_so_that_it_is_read_again(text in "[<> ]{0,3}(\\\\PC|[@+. \"<>\\-\\\\(\r\n\t\u{0}İẞς]){0,12}[@]{0,2}(\\\\PC|[@. <>]){0,6}[<> ]{0,3}") {
        properties::address::holds(&text);
    }

    #[test]
    fn a_configuration_makes_sense_or_one_line_says_where_not(text in configuration()) {
        properties::config::holds(&text);
    }

    #[test]
    fn a_verdict_is_one_line_of_printable_ascii(text in "(?s)(.|[ \r\n\u{0}\u{1b}é:0-9.]){0,300}") {
        properties::verdict::holds(&text);
    }
}
