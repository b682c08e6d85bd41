//! Identities of stores and backups.

/// A random (version 4) UUID, for a new store or backup.
pub(crate) fn uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    let random = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    if random.is_err() {
        // The identity serves messages only; time is unique enough.
        #[allow(clippy::disallowed_methods, reason = "an identity, not a decision")]
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or([0; 16], |now| now.as_nanos().to_le_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
