//! Checksums of contents.

/// Lengths of 64 bits are given to a library that takes the machine's words.
const _: () = assert!(size_of::<usize>() == 8);

/// CRC-32C of two stretches, one behind the other.
pub(crate) fn joined(first: u32, second: u32, second_bytes: u64) -> u32 {
    crc32c::crc32c_combine(first, second, second_bytes as usize)
}

/// CRC-32C of this many zeros, without reading them.
pub(crate) fn of_zeros(bytes: u64) -> u32 {
    let mut crc = 0;
    // The checksum of 2^k zeros, for each bit of the length.
    let mut power = crc32c::crc32c(&[0]);
    let mut length = 1u64;
    let mut rest = bytes;
    while rest > 0 {
        if rest & 1 == 1 {
            crc = joined(crc, power, length);
        }
        rest >>= 1;
        if rest > 0 {
            power = joined(power, power, length);
            length *= 2;
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_checksum_of_zeros() {
        for bytes in [0usize, 1, 2, 7, 4096, 100_001] {
            let zeros = vec![0; bytes];
            assert_eq!(of_zeros(bytes as u64), crc32c::crc32c(&zeros), "{bytes}");
        }
        // Of any length.
        let half = of_zeros(1 << 60);
        assert_eq!(joined(half, half, 1 << 60), of_zeros(1 << 61));
    }

    #[test]
    fn checksums_of_parts_join() {
        let bytes = b"one and another";
        let (a, b) = bytes.split_at(4);
        let crc = joined(crc32c::crc32c(a), crc32c::crc32c(b), b.len() as u64);
        assert_eq!(crc, crc32c::crc32c(bytes));
    }
}
