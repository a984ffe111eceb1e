//! Certificates, bundles and keys from files, authorities and peers.

use ferrule::certificate::pair::{self, Match};
use ferrule::certificate::pem;
use ferrule::certificate::roots::Roots;
use ferrule::certificate::x509::Certificate;

/// What is read from a certificate stands in it; what was written as PEM is read again; a bundle that was read and
/// written is the same bundle, and merging it with itself adds nothing.
pub fn certificate(input: &[u8]) {
    if let Ok(read) = Certificate::parse(input) {
        let within = |part: &[u8]| part.is_empty() || input.windows(part.len()).any(|window| window == part);
        assert!(within(read.serial()) && within(read.public_key()));
        assert!(read.uris().iter().all(|uri| within(uri.as_bytes())));
    }
    let text = pem::encode(pem::CERTIFICATE, input);
    let blocks: Vec<_> = pem::blocks(text.as_bytes()).collect();
    assert!(matches!(blocks.as_slice(), [block] if block.label == pem::CERTIFICATE && **block.der == *input));
    // Junk around a block changes nothing, unless it is a part of one itself.
    if !input.windows(5).any(|window| window == b"-----") {
        let text = [input, b"\n", text.as_bytes(), input].concat();
        assert_eq!(pem::blocks(&text).filter(|block| **block.der == *input).count(), 1);
    }

    let read = Roots::read(input);
    let written = read.roots.to_pem();
    let again = Roots::read(written.as_bytes());
    assert!(again.roots == read.roots && again.refused.is_empty());
    let merged = read.roots.merged_pem(&read.roots);
    assert!(!merged.ends_with('\n') && Roots::read(merged.as_bytes()).roots.same_members(&read.roots));
    assert_eq!(Roots::read_some(input).is_err(), read.roots.is_empty());
}

/// A chain and a key with a line of `+` between them: they never belong together once the key's public part differs.
pub fn key_pair(input: &[u8]) {
    let at = input.windows(3).position(|window| window == b"\n+\n");
    let (chain, key) = at.map_or((input, input), |at| (&input[..at + 1], &input[at + 3..]));
    if let Ok(found) = pair::check(chain, key) {
        assert_ne!(found.key, Match::Different);
        // The first certificate and the first key count.
        assert_eq!(pair::check(&[chain, chain].concat(), &[key, b"\n", key].concat()).unwrap(), found);
    }
}
