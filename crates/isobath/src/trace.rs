//! Rare events, sent to `tracing` where the feature of that name is on. Without it nothing of this
//! is left; with it, a subscriber that does not listen costs one load. Single operations send no
//! events.

/// Sends subscribers an event: a level, fields, a sentence.
macro_rules! tell {
    ($level:ident, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "isobath", $($field = $value,)* $message);
        // Not evaluated.
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = || {
                let _ = &$value;
            };)*
        }
    }};
}

/// A span that lasts until what this gives is dropped. It is never entered: a task that yields
/// would take other tasks with it.
macro_rules! span {
    ($name:literal) => {
        $crate::trace::Span {
            #[cfg(feature = "tracing")]
            _span: tracing::info_span!(target: "isobath", $name),
        }
    };
}

pub(crate) use {span, tell};

/// The result of [`span`].
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    pub(crate) _span: tracing::Span,
}

impl Drop for Span {
    /// So that a span without the feature has an end, too, and is no unused value.
    fn drop(&mut self) {}
}
