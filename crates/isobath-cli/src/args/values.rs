//! Values with units.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `4096`, `64MiB`, `1.5GiB`, `10GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<bytesize::ByteSize>()
            .map(|size| Size(size.0))
            .map_err(|_| format!("`{text}` is no size; write 4096, 64MiB, 1.5GiB or 10GB"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        isobath_lab::ByteSize(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!("4096".parse(), Ok(Size(4096)));
        assert_eq!("64MiB".parse(), Ok(Size(64 << 20)));
        assert_eq!("1.5 GiB".parse(), Ok(Size(3 << 29)));
        assert_eq!("10GB".parse(), Ok(Size(10_000_000_000)));
        assert!("much".parse::<Size>().is_err());
        assert!("-1".parse::<Size>().is_err());
    }
}
