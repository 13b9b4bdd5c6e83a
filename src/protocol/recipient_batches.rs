//! Splits a message with many recipients into batches, so that an accepted message fits into requests even if the limits
//! have been lowered since.

use super::{LONGEST_HEADER, Recipient};

/// The largest number of recipients of one request: all of their results have to fit into one answer.
const MOST: usize = 500;

/// The largest total length of the recipients as JSON, in bytes. The other half of the header is for all other fields.
const LONGEST: usize = LONGEST_HEADER / 2;

/// The recipients in their order, in batches that fit into one request. No batch is empty.
pub(crate) fn chunk_recipients(recipients: &[Recipient]) -> Vec<&[Recipient]> {
    let (mut portions, mut begin, mut length) = (Vec::new(), 0, 0);
    for (at, recipient) in recipients.iter().enumerate() {
        let more = serde_json::to_vec(recipient).map_or(LONGEST, |json| json.len() + 1);
        if at > begin && (at - begin == MOST || length + more > LONGEST) {
            portions.extend(recipients.get(begin..at));
            (begin, length) = (at, 0);
        }
        length += more;
    }
    portions.extend(recipients.get(begin..).filter(|last| !last.is_empty()));
    portions
}

#[cfg(test)]
mod tests {
    use super::super::{Header, Request};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_portion_is_as_many_as_one_request_can_have() {
        let to = |number: usize| vec![Recipient { address: "a@x".into(), original: None }; number];
        let lengths = |number| chunk_recipients(&to(number)).iter().map(|portion| portion.len()).collect::<Vec<_>>();
        assert_eq!(lengths(0), [0; 0]);
        assert_eq!(lengths(1), [1]);
        assert_eq!(lengths(MOST), [MOST]);
        assert_eq!(lengths(2 * MOST + 1), [MOST, MOST, 1]);
    }

    #[test]
    fn a_portion_is_as_long_as_it_may_be_and_one_that_is_longer_stands_alone() {
        let of_length = |length: usize| {
            let to = |address: String| Recipient { address, original: None };
            // The comma after it counts, too.
            let bare = serde_json::to_vec(&to(String::new())).unwrap().len() + 1;
            to("a".repeat(length - bare))
        };
        let lengths = |list: &[usize]| {
            let list: Vec<_> = list.iter().map(|&length| of_length(length)).collect();
            chunk_recipients(&list).iter().map(|portion| portion.len()).collect::<Vec<_>>()
        };
        let half = LONGEST / 2;
        assert_eq!(lengths(&[half, LONGEST - half]), [2]);
        assert_eq!(lengths(&[half, LONGEST - half + 1]), [1, 1]);
        assert_eq!(lengths(&[100, half, LONGEST - half - 100, 100]), [3, 1]);
        assert_eq!(lengths(&[LONGEST + 1]), [1]);
        assert_eq!(lengths(&[LONGEST + 1, 100]), [1, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn each_has_its_place_in_a_header_whatever_they_are(
            parts in proptest::collection::vec(("\\PC{0,9}|\u{1}{300}|\"{300}", 0..700_usize), 0..5),
        ) {
            let recipients: Vec<Recipient> = parts
                .into_iter()
                .flat_map(|(text, number)| vec![Recipient { address: text.clone(), original: Some(text) }; number])
                .collect();
            let portions = chunk_recipients(&recipients);
            prop_assert_eq!(&portions.concat(), &recipients);
            for portion in portions {
                let request = Request { recipients: portion.to_vec(), sender: "\u{1}".repeat(300), ..Request::to(&[], 0) };
                prop_assert!(Header::Deliver(request).frame(b"").is_ok());
            }
        }
    }
}
