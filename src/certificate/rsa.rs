//! Making RSA keys: FIPS 186-5 section A.1.3, with an incremental search for the primes (RFC 8017 for the numbers).

use super::der;
use super::natural::{Modulus, Natural};
use crate::error::Result;
use crate::invalid;
use zeroize::Zeroizing;

/// The public exponent of every key.
const EXPONENT: u32 = 65_537;
/// Sizes of a modulus, bits. Other sizes cannot be signed with.
pub const SIZES: [usize; 3] = [2048, 3072, 4096];
/// Candidates are first divided by the primes below this.
const SMALL: usize = 1 << 15;
/// Odd numbers looked at from one random start.
const WINDOW: usize = 2048;
/// Rounds of Miller-Rabin: an error below 2^-112 for primes of 1024 bits and more (FIPS 186-5 table B.1).
const ROUNDS: usize = 5;

/// Fills a buffer with random bytes.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<()>;

/// A new private key of `bits` bits, one of [`SIZES`], as the DER of RSAPrivateKey (PKCS#1).
pub fn generate(bits: usize, random: Random<'_>) -> Result<Zeroizing<Vec<u8>>> {
    if !SIZES.contains(&bits) {
        return Err(invalid!("an RSA key of {bits} bits cannot be made; choose one of {SIZES:?}"));
    }
    let small = small_primes();
    loop {
        let (a, b) = (prime(bits / 2, &small, random)?, prime(bits / 2, &small, random)?);
        let (p, q) = if a.less_than(&b) { (b, a) } else { (a, b) };
        if let Some(key) = private_key(&p, &q) {
            return Ok(key);
        }
    }
}

/// RSAPrivateKey of two primes, of which `p` is the larger; nothing when they are too close or the key too weak, which
/// does not happen by chance.
fn private_key(p: &Natural, q: &Natural) -> Option<Zeroizing<Vec<u8>>> {
    let half = p.limbs() * 64;
    if p.minus(q).bits() <= half - 100 {
        return None;
    }
    let less_one = |prime: &Natural| {
        let mut prime = prime.clone();
        prime.sub_small(1);
        prime
    };
    let (p_less_one, q_less_one) = (less_one(p), less_one(q));
    let d = inverse_of_exponent(&p_less_one.times(&q_less_one));
    if d.bits() <= half {
        return None;
    }
    let mut q_power = p_less_one.clone();
    q_power.sub_small(1);
    // q^(p-2) is q^-1 modulo the prime p (Fermat).
    let coefficient = Modulus::new(p).power(q, &q_power);
    let (dp, dq) = (inverse_of_exponent(&p_less_one), inverse_of_exponent(&q_less_one));
    let numbers = [&p.times(q), &Natural::from_bytes(&EXPONENT.to_be_bytes(), 1), &d, p, q, &dp, &dq, &coefficient];
    let mut content = Zeroizing::new(der::integer(&[]));
    for number in numbers {
        content.extend_from_slice(&Zeroizing::new(der::integer(&number.to_bytes())));
    }
    Some(Zeroizing::new(der::write(der::SEQUENCE, &content)))
}

/// The inverse of the public exponent modulo `order`, which it must not divide: `(order * k + 1) / exponent` with the
/// `k` for which that is a whole number.
fn inverse_of_exponent(order: &Natural) -> Natural {
    let exponent = u64::from(EXPONENT);
    // The exponent is a prime: x^(exponent - 2) is x^-1 (Fermat).
    let rest = u64::from(order.rem_small(EXPONENT));
    let inverse = (0..EXPONENT - 2).fold(1, |power, _| power * rest % exponent);
    let mut number = order.times_small_plus_one(((exponent - inverse) % exponent) as u32);
    number.div_small(EXPONENT);
    number
}

/// A random prime with its two highest bits set, so that the product of two has twice as many bits, and without the
/// public exponent among the factors of the number before it.
fn prime(bits: usize, small: &[u32], random: Random<'_>) -> Result<Natural> {
    loop {
        let mut start = random_number(bits, random)?;
        for bit in [0, bits - 2, bits - 1] {
            start.set_bit(bit);
        }
        for step in sieve(&start, small) {
            let mut candidate = start.clone();
            candidate.add_small(step);
            // Too far: it has become a small number.
            if candidate.bits() < bits {
                break;
            }
            if candidate.rem_small(EXPONENT) != 1 && is_prime(&candidate, random)? {
                return Ok(candidate);
            }
        }
    }
}

/// The steps from an odd number to those odd numbers after it that no small prime divides.
fn sieve(start: &Natural, small: &[u32]) -> impl Iterator<Item = u64> {
    let mut composite = vec![false; WINDOW];
    for prime in small {
        // start + 2 * step = 0 modulo the prime, and half of the prime plus one is 2^-1.
        let (prime, rest) = (u64::from(*prime), u64::from(start.rem_small(*prime)));
        let first = (prime - rest) % prime * prime.div_ceil(2) % prime;
        let first = usize::try_from(first).unwrap_or(WINDOW);
        for composite in composite.iter_mut().skip(first).step_by(prime as usize) {
            *composite = true;
        }
    }
    (0..).step_by(2).zip(composite).filter(|(_, composite)| !composite).map(|(step, _)| step)
}

/// The odd primes below [`SMALL`].
fn small_primes() -> Vec<u32> {
    let mut composite = vec![false; SMALL];
    let mut primes = Vec::new();
    for number in (3..SMALL).step_by(2) {
        if composite.get(number) == Some(&false) {
            primes.push(number as u32);
            composite.iter_mut().skip(number * number).step_by(number).for_each(|composite| *composite = true);
        }
    }
    primes
}

/// Miller-Rabin with random bases (FIPS 186-5 section B.3.1).
fn is_prime(candidate: &Natural, random: Random<'_>) -> Result<bool> {
    let mut modulus = Modulus::new(candidate);
    let mut less_one = candidate.clone();
    less_one.sub_small(1);
    let twos = (1..).find(|bit| less_one.bit(*bit)).unwrap_or(1);
    let mut odd = less_one.clone();
    for _ in 0..twos {
        odd.div_small(2);
    }
    let one = Natural::from_bytes(&[1], candidate.limbs());
    // First with 2, which most composites fail and which costs less.
    for round in 0..=ROUNDS {
        let mut power = match round {
            0 => modulus.power_of_two(&odd),
            _ => modulus.power(&random_number(candidate.limbs() * 64, random)?, &odd),
        };
        let mut passed = power == one || power == less_one;
        for _ in 1..twos {
            if passed {
                break;
            }
            power = modulus.power(&power, &Natural::from_bytes(&[2], 1));
            passed = power == less_one;
        }
        if !passed {
            return Ok(false);
        }
    }
    Ok(true)
}

fn random_number(bits: usize, random: Random<'_>) -> Result<Natural> {
    let mut bytes = Zeroizing::new(vec![0; bits / 8]);
    random(&mut bytes)?;
    Ok(Natural::from_bytes(&bytes, bits / 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::{SecureRandom, SystemRandom};

    fn random(buffer: &mut [u8]) -> Result<()> {
        SystemRandom::new().fill(buffer).map_err(|_| invalid!("no randomness"))
    }

    #[test]
    fn small_primes_are_all_there() {
        let primes = small_primes();
        // pi(2^15) is 3512, with 2.
        assert_eq!((primes.len(), primes.first(), primes.last()), (3511, Some(&3), Some(&32749)));
    }

    #[test]
    fn primes_are_told_from_composites() {
        let number = |hex: &str| {
            let bytes: Vec<u8> =
                (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
            Natural::from_bytes(&bytes, hex.len() / 16)
        };
        let check = |hex: &str, prime: bool| assert_eq!(is_prime(&number(hex), &mut random).unwrap(), prime, "{hex}");
        // 2^64 - 59 is the largest prime of 64 bits, 2^128 - 159 that of 128.
        check("ffffffffffffffc5", true);
        check("ffffffffffffffc7", false);
        check("ffffffffffffffffffffffffffffff61", true);
        check("ffffffffffffffffffffffffffffff63", false);
        // The square of 2^64 - 59.
        check("ffffffffffffff8a0000000000000d99", false);
    }

    #[test]
    fn keys_are_valid() {
        let key = generate(2048, &mut random).unwrap();
        let pair = ring::signature::RsaKeyPair::from_der(&key).unwrap();
        assert_eq!(pair.public().modulus_len(), 256);
        // Signing checks that the numbers of the key belong together.
        let mut signature = vec![0; 256];
        pair.sign(&ring::signature::RSA_PKCS1_SHA256, &SystemRandom::new(), b"x", &mut signature).unwrap();
        for bits in [0, 1024, 2047, 2049, 8192] {
            assert!(generate(bits, &mut random).is_err(), "{bits}");
        }
    }
}
