//! Enums that say what each of their variants is called.

/// Defines an enum without data, with its variants (`ALL`), their names (`NAMES`) and the name of
/// one (`name`).
macro_rules! named {
    ($(#[$about:meta])* $vis:vis enum $Enum:ident {
        $($(#[$of:meta])* $Variant:ident = $name:literal,)+
    }) => {
        $(#[$about])*
        $vis enum $Enum {
            $($(#[$of])* $Variant,)+
        }

        #[allow(dead_code, reason = "not every enum needs all of these")]
        impl $Enum {
            /// All of them, in their order.
            $vis const ALL: [$Enum; [$($name),+].len()] = [$($Enum::$Variant),+];
            /// Their names, in the same order.
            $vis const NAMES: [&'static str; [$($name),+].len()] = [$($name),+];

            /// Its name, for people; files may have another one.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                $Enum::NAMES[self as usize]
            }
        }
    };
}
pub(crate) use named;

/// Types whose contents say nothing to a person who debugs: only their names are shown.
macro_rules! opaque {
    ($Type:ty, $name:literal) => {
        impl std::fmt::Debug for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use opaque;
