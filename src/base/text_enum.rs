//! Enums whose variants have one text each, used in the tables, in JSON and for people.

/// Declares such an enum, with a list of its variants, their texts, and the conversion from a text.
macro_rules! text_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$of])* $variant,)+
        }

        impl $name {
            /// The texts of all variants, in their order.
            pub const TEXTS: [&'static str; [$($text),+].len()] = [$($text),+];
            /// All variants, in their order.
            pub const ALL: [Self; Self::TEXTS.len()] = [$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// The variant with this text.
            #[allow(dead_code, reason = "not each enum is read from its texts")]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == text)
            }
        }
    };
}
pub(crate) use text_enum;
