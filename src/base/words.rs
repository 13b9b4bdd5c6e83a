//! Enums whose variants have one word each, used in the tables, in JSON and for people.

/// Declares such an enum, with a list of its variants, their words, and the conversion from a word.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$of])* $variant,)+
        }

        impl $name {
            /// The words of all variants, in their order.
            pub const WORDS: [&'static str; [$($word),+].len()] = [$($word),+];
            /// All variants, in their order.
            pub const ALL: [Self; Self::WORDS.len()] = [$(Self::$variant),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The variant with this word.
            #[allow(dead_code, reason = "not each enum is read from its words")]
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == word)
            }
        }
    };
}
pub(crate) use words;
