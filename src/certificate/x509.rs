//! X.509 certificates (RFC 5280): what we have to know of one.

use super::der::{self, Reader};
use crate::error::{Context, Result};
use crate::invalid;
use std::time::{Duration, SystemTime};

const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
pub(super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// The tag of a uniformResourceIdentifier in a GeneralName.
pub(super) const URI: u8 = der::implicit(6);

/// What was read from a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    serial: Vec<u8>,
    not_before: SystemTime,
    not_after: SystemTime,
    public_key: Vec<u8>,
    uris: Vec<String>,
    authority: bool,
}

impl Certificate {
    /// Reads one certificate. Its signature is not looked at. A negative serial number is refused, as Go does.
    pub fn parse(der: &[u8]) -> Result<Self> {
        Self::read(der).context("certificate")
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        let mut outer = Reader::new(bytes);
        let mut certificate = outer.enter(der::SEQUENCE)?;
        outer.end()?;
        let mut body = certificate.enter(der::SEQUENCE)?;
        certificate.read(der::SEQUENCE).context("signature algorithm")?;
        certificate.read(der::BIT_STRING).context("signature")?;
        certificate.end()?;

        body.optional(der::explicit(0)).context("version")?;
        let serial = body.natural().context("serial number")?.to_vec();
        body.read(der::SEQUENCE).context("signature algorithm")?;
        body.read(der::SEQUENCE).context("issuer")?;
        let mut validity = body.enter(der::SEQUENCE).context("validity")?;
        let (not_before, not_after) = (time(&mut validity)?, time(&mut validity)?);
        body.read(der::SEQUENCE).context("subject")?;
        let (tag, public_key, _) = body.any().context("public key")?;
        if tag != der::SEQUENCE {
            return Err(invalid!("public key: tag {tag:#04x}"));
        }
        let public_key = public_key.to_vec();
        body.optional(der::implicit(1)).context("issuer's unique identifier")?;
        body.optional(der::implicit(2)).context("subject's unique identifier")?;
        let mut read = Certificate { serial, not_before, not_after, public_key, uris: Vec::new(), authority: false };
        if let Some(wrapped) = body.optional(der::explicit(3))? {
            read.read_extensions(wrapped).context("extensions")?;
        }
        Ok(read)
    }

    fn read_extensions(&mut self, wrapped: &[u8]) -> Result<()> {
        let mut extensions = Reader::new(wrapped).enter(der::SEQUENCE)?;
        while !extensions.is_empty() {
            let mut extension = extensions.enter(der::SEQUENCE)?;
            let object = extension.read(der::OBJECT)?;
            extension.optional(der::BOOLEAN)?;
            let value = extension.read(der::OCTET_STRING)?;
            if object == SUBJECT_ALT_NAME {
                let mut names = Reader::new(value).enter(der::SEQUENCE)?;
                while !names.is_empty() {
                    let (tag, _, name) = names.any()?;
                    if tag == URI {
                        let uri = std::str::from_utf8(name).map_err(|_| invalid!("a URI that is not text"))?;
                        self.uris.push(uri.to_owned());
                    }
                }
            } else if object == BASIC_CONSTRAINTS {
                let mut constraints = Reader::new(value).enter(der::SEQUENCE)?;
                self.authority = constraints.optional(der::BOOLEAN)?.is_some_and(|value| value != [0]);
            }
        }
        Ok(())
    }

    /// The serial number, big-endian.
    pub fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// From when it is valid.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// Until when it is valid.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// SubjectPublicKeyInfo, DER.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// The URIs among the subject's alternative names.
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Whether it says that it may sign certificates (`cA` of the basic constraints).
    pub fn is_authority(&self) -> bool {
        self.authority
    }
}

/// UTCTime or GeneralizedTime, which must be in seconds and in UTC (RFC 5280 section 4.1.2.5).
fn time(reader: &mut Reader<'_>) -> Result<SystemTime> {
    let (tag, _, text) = reader.any().context("time")?;
    let bad = || invalid!("time {:?}: not YYMMDDhhmmssZ or YYYYMMDDhhmmssZ", String::from_utf8_lossy(text));
    let (century, rest) = match (tag, text) {
        // Two digits of the year: from 1950 to 2049.
        (der::UTC_TIME, [decade @ b'0'..=b'9', ..]) => (if *decade < b'5' { 20 } else { 19 }, text),
        (der::GENERALIZED_TIME, [a, b, rest @ ..]) => (number(&[*a, *b]).ok_or_else(bad)?, rest),
        _ => return Err(bad()),
    };
    let digits = rest.strip_suffix(b"Z").filter(|digits| digits.len() == 12).ok_or_else(bad)?;
    let mut pairs = [0; 6];
    for (value, pair) in pairs.iter_mut().zip(digits.chunks(2)) {
        *value = number(pair).ok_or_else(bad)?;
    }
    let [year, month, day, hour, minute, second] = pairs;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return Err(bad());
    }
    let seconds = ((days(century * 100 + year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    if seconds < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) }.ok_or_else(bad)
}

fn number(digits: &[u8]) -> Option<i64> {
    digits
        .iter()
        .try_fold(0, |number, digit| Some(number * 10 + i64::from(digit.is_ascii_digit().then(|| digit - b'0')?)))
}

/// Days from 1970-01-01 in the Gregorian calendar: eras of 400 years, years that begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<i64> {
        let element = der::write(tag, text.as_bytes());
        let time = time(&mut Reader::new(&element)).ok()?;
        Some(match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => after.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        })
    }

    #[test]
    fn times() {
        let check = |tag, text: &str, expected| assert_eq!(seconds(tag, text), expected, "{text}");
        check(der::UTC_TIME, "700101000000Z", Some(0));
        check(der::UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(der::UTC_TIME, "500101000000Z", Some(-631_152_000));
        check(der::UTC_TIME, "000229120000Z", Some(951_825_600));
        check(der::GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(der::GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
        check(der::GENERALIZED_TIME, "00010101000000Z", Some(-62_135_596_800));
        for bad in [
            "",
            "Z",
            "700101000000",
            "7001010000Z",
            "700101000000+0100",
            "701301000000Z",
            "700132000000Z",
            "7001010000xxZ",
        ] {
            check(der::UTC_TIME, bad, None);
            check(der::GENERALIZED_TIME, bad, None);
        }
        check(der::GENERALIZED_TIME, "20500101000000.5Z", None);
        check(der::OCTET_STRING, "700101000000Z", None);
    }

    #[test]
    fn certificates_are_read() {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_before = rcgen::date_time_ymd(2020, 2, 29);
        parameters.not_after = rcgen::date_time_ymd(2051, 1, 1);
        parameters.serial_number = Some(vec![0x80, 1].into());
        let uri = "spiffe://cluster.local/ns/a/sa/b";
        parameters.subject_alt_names =
            vec![rcgen::SanType::DnsName("x".try_into().unwrap()), rcgen::SanType::URI(uri.try_into().unwrap())];
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = parameters.self_signed(&key).unwrap();
        let read = Certificate::parse(leaf.der()).unwrap();
        assert_eq!((read.serial(), read.uris(), read.is_authority()), (&[0x80, 1][..], &[uri.to_owned()][..], false));
        assert_eq!(read.public_key(), rcgen::PublicKeyData::subject_public_key_info(&key));
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!((since(read.not_before()), since(read.not_after())), (1_582_934_400, 2_556_144_000));

        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = parameters.self_signed(&key).unwrap();
        assert!(Certificate::parse(root.der()).unwrap().is_authority());

        for end in 0..leaf.der().len() {
            assert!(Certificate::parse(&leaf.der()[..end]).is_err(), "cut to {end} bytes");
        }
        let longer = [leaf.der(), &[0][..]].concat();
        assert!(Certificate::parse(&longer).is_err());
    }

    #[test]
    fn a_negative_serial_number_is_refused() {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.serial_number = Some(vec![0x7f, 1].into());
        let der = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let at = der.windows(4).position(|bytes| bytes == [2, 2, 0x7f, 1]).unwrap();
        let mut negative = der.clone();
        negative[at + 2] = 0xff;
        assert!(Certificate::parse(&der).is_ok());
        let e = Certificate::parse(&negative).unwrap_err();
        assert_eq!(e.to_string(), "certificate: serial number: DER: a negative integer");
    }
}
