//! Natural numbers of a fixed size, as little as the making of an RSA key needs.
//!
//! A number is a slice of 64-bit limbs, the least significant first. What is secret decides no branch and no address
//! but where said otherwise.

use zeroize::Zeroize;

/// Limbs, the least significant first; wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Natural(Vec<u64>);

impl Drop for Natural {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Natural {
    /// A number of `limbs` limbs from big-endian bytes, of which there are at most eight for each limb.
    pub(super) fn from_bytes(bytes: &[u8], limbs: usize) -> Self {
        let mut number = Natural(vec![0; limbs]);
        for (limb, chunk) in number.0.iter_mut().zip(bytes.rchunks(8)) {
            *limb = chunk.iter().fold(0, |limb, byte| limb << 8 | u64::from(*byte));
        }
        number
    }

    /// Big-endian bytes without zeros in front; none for zero.
    pub(super) fn to_bytes(&self) -> zeroize::Zeroizing<Vec<u8>> {
        let bytes: zeroize::Zeroizing<Vec<u8>> =
            zeroize::Zeroizing::new(self.0.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect());
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        zeroize::Zeroizing::new(bytes.get(zeros..).unwrap_or_default().to_vec())
    }

    /// Limbs it is made of.
    pub(super) fn limbs(&self) -> usize {
        self.0.len()
    }

    /// Bits without zeros in front. Not in constant time.
    pub(super) fn bits(&self) -> usize {
        let top = self.0.iter().rposition(|limb| *limb != 0);
        top.map_or(0, |at| (at + 1) * 64 - self.0.get(at).map_or(0, |limb| limb.leading_zeros() as usize))
    }

    /// Whether bit `at` is set.
    pub(super) fn bit(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|limb| limb >> (at % 64) & 1 == 1)
    }

    /// Sets bit `at`, which must be one of the number's.
    pub(super) fn set_bit(&mut self, at: usize) {
        if let Some(limb) = self.0.get_mut(at / 64) {
            *limb |= 1 << (at % 64);
        }
    }

    /// Adds a small number; a carry out of the last limb is lost.
    pub(super) fn add_small(&mut self, small: u64) {
        let mut carry = small;
        for limb in &mut self.0 {
            let (sum, over) = limb.overflowing_add(carry);
            (*limb, carry) = (sum, u64::from(over));
        }
    }

    /// Takes a small number away; it must not be larger.
    pub(super) fn sub_small(&mut self, small: u64) {
        let mut borrow = small;
        for limb in &mut self.0 {
            let (difference, under) = limb.overflowing_sub(borrow);
            (*limb, borrow) = (difference, u64::from(under));
        }
    }

    /// `self - other`, which has as many limbs and is not larger.
    pub(super) fn minus(&self, other: &Natural) -> Natural {
        let mut difference = self.clone();
        sub(&mut difference.0, &other.0);
        difference
    }

    /// Whether it is smaller than a number of as many limbs. Not in constant time.
    pub(super) fn less_than(&self, other: &Natural) -> bool {
        self.0.iter().rev().lt(other.0.iter().rev())
    }

    /// The product, of as many limbs as both have together.
    pub(super) fn times(&self, other: &Natural) -> Natural {
        let mut product = vec![0; self.0.len() + other.0.len()];
        for (at, a) in self.0.iter().enumerate() {
            let carry = multiply_add(product.get_mut(at..).unwrap_or_default(), &other.0, *a);
            if let Some(limb) = product.get_mut(at + other.0.len()) {
                *limb = carry;
            }
        }
        Natural(product)
    }

    /// `self * factor + 1`, with a limb more.
    pub(super) fn times_small_plus_one(&self, factor: u32) -> Natural {
        let mut product = self.times(&Natural(vec![u64::from(factor)]));
        product.add_small(1);
        product
    }

    /// The remainder of a division by a small number that is not zero.
    pub(super) fn rem_small(&self, divisor: u32) -> u32 {
        self.clone().div_small(divisor)
    }

    /// Divides by a small number that is not zero; returns the remainder.
    pub(super) fn div_small(&mut self, divisor: u32) -> u32 {
        let divisor = u64::from(divisor.max(1));
        let mut rest = 0;
        for limb in self.0.iter_mut().rev() {
            let high = rest << 32 | *limb >> 32;
            let low = (high % divisor) << 32 | *limb & 0xffff_ffff;
            *limb = ((high / divisor) << 32) | (low / divisor);
            rest = low % divisor;
        }
        // Below the divisor, so it fits.
        rest as u32
    }
}

/// `to += from * factor`, in the lowest limbs of `to`, of which there are at least as many; returns what is carried out.
fn multiply_add(to: &mut [u64], from: &[u64], factor: u64) -> u64 {
    // What waits for the carry comes last, so that the products of several limbs are under way at a time.
    let step = |to: &mut u64, from: u64, carry: u64| {
        let product = u128::from(from) * u128::from(factor);
        let (low, first) = (product as u64).overflowing_add(*to);
        let high = ((product >> 64) as u64).wrapping_add(u64::from(first));
        let (low, second) = low.overflowing_add(carry);
        *to = low;
        // At most (2^64 - 1)^2 + 2 * (2^64 - 1), which is 2^128 - 1.
        high.wrapping_add(u64::from(second))
    };
    let mut carry = 0;
    let (to_fours, to_rest) = to.get_mut(..from.len()).unwrap_or_default().as_chunks_mut::<4>();
    let (from_fours, from_rest) = from.as_chunks::<4>();
    for ([t0, t1, t2, t3], [f0, f1, f2, f3]) in to_fours.iter_mut().zip(from_fours) {
        carry = step(t0, *f0, carry);
        carry = step(t1, *f1, carry);
        carry = step(t2, *f2, carry);
        carry = step(t3, *f3, carry);
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        carry = step(to, *from, carry);
    }
    carry
}

/// `to -= from`; returns the borrow, 0 or 1.
fn sub(to: &mut [u64], from: &[u64]) -> u64 {
    let mut borrow = 0;
    for (to, from) in to.iter_mut().zip(from) {
        let (difference, first) = to.overflowing_sub(*from);
        let (difference, second) = difference.overflowing_sub(borrow);
        (*to, borrow) = (difference, u64::from(first | second));
    }
    borrow
}

/// Arithmetic modulo an odd number, in Montgomery's form: a number is held times 2^bits, with the bits of all limbs.
pub(super) struct Modulus<'a> {
    modulus: &'a Natural,
    /// `-modulus^-1` modulo 2^64.
    inverse: u64,
    /// 1 in this form.
    one: Natural,
    /// `2^bits` in this form: what brings a number into it.
    radix: Natural,
    /// Room for a product.
    sum: Natural,
}

impl<'a> Modulus<'a> {
    /// Takes an odd modulus whose highest bit is set.
    pub(super) fn new(modulus: &'a Natural) -> Self {
        let limbs = modulus.limbs();
        let low = modulus.0.first().copied().unwrap_or(1);
        // Newton: each step doubles the number of right bits, of which the odd number itself has three.
        let inverse = (0..5).fold(low, |x, _| x.wrapping_mul(2_u64.wrapping_sub(low.wrapping_mul(x))));
        let zero = Natural(vec![0; limbs]);
        // 2^bits modulo the modulus is what is missing up to 2^bits, since the highest bit is set.
        let mut one = zero.clone();
        sub(&mut one.0, &modulus.0);
        let sum = Natural(vec![0; limbs * 2]);
        let mut arithmetic = Modulus { modulus, inverse: inverse.wrapping_neg(), one: one.clone(), radix: zero, sum };
        // 2^limbs by doubling, then 2^(64 * limbs) by squaring six times.
        let mut radix = one;
        for _ in 0..limbs {
            arithmetic.double(&mut radix);
        }
        for _ in 0..6 {
            arithmetic.square(&mut radix);
        }
        arithmetic.radix = radix;
        arithmetic
    }

    /// `base^exponent`, in constant time for exponents of as many limbs.
    pub(super) fn power(&mut self, base: &Natural, exponent: &Natural) -> Natural {
        const WINDOW: usize = 4;
        // base^0 to base^15. Every one is read at each step, so no address depends on the exponent.
        let radix = self.radix.clone();
        let mut first = base.clone();
        self.multiply(&mut first, &radix);
        let mut powers = vec![self.one.clone()];
        while powers.len() < 1 << WINDOW {
            let mut next = powers.last().unwrap_or(&self.one).clone();
            self.multiply(&mut next, &first);
            powers.push(next);
        }
        let mut result = self.one.clone();
        let mut selected = self.one.clone();
        for at in (0..exponent.limbs() * 64 / WINDOW).rev() {
            for _ in 0..WINDOW {
                self.square(&mut result);
            }
            let limb = exponent.0.get(at * WINDOW / 64).copied().unwrap_or_default();
            let digit = limb >> (at * WINDOW % 64) & ((1 << WINDOW) - 1);
            selected.0.fill(0);
            for (number, power) in (0..).zip(&powers) {
                let mask = u64::from(number == digit).wrapping_neg();
                for (selected, limb) in selected.0.iter_mut().zip(&power.0) {
                    *selected |= limb & mask;
                }
            }
            self.multiply(&mut result, &selected);
        }
        self.leave(&mut result);
        result
    }

    /// `2^exponent`, in constant time for exponents of as many limbs; faster than [`Modulus::power`], since doubling is
    /// no multiplication.
    pub(super) fn power_of_two(&mut self, exponent: &Natural) -> Natural {
        let mut result = self.one.clone();
        let mut doubled = self.one.clone();
        for at in (0..exponent.limbs() * 64).rev() {
            self.square(&mut result);
            doubled.0.copy_from_slice(&result.0);
            self.double(&mut doubled);
            let mask = u64::from(exponent.bit(at)).wrapping_neg();
            for (limb, doubled) in result.0.iter_mut().zip(&doubled.0) {
                *limb = *doubled & mask | *limb & !mask;
            }
        }
        self.leave(&mut result);
        result
    }

    /// Takes a number out of this form.
    fn leave(&mut self, number: &mut Natural) {
        let mut one = Natural(vec![0; self.modulus.limbs()]);
        one.add_small(1);
        self.multiply(number, &one);
    }

    fn double(&self, number: &mut Natural) {
        let carry = shift(&mut number.0);
        reduce_once(&mut number.0, carry, &self.modulus.0);
    }

    /// `number * number / 2^bits`.
    fn square(&mut self, number: &mut Natural) {
        let sum = &mut self.sum.0;
        sum.fill(0);
        // Each product of two different limbs once, then doubled, then the squares of the limbs.
        let mut rest = number.0.as_slice();
        let mut at = 1;
        while let Some((limb, higher)) = rest.split_first() {
            let Some(part) = sum.get_mut(at..) else { break };
            let carry = multiply_add(part, higher, *limb);
            if let Some(top) = part.get_mut(higher.len()) {
                *top = carry;
            }
            (rest, at) = (higher, at + 2);
        }
        shift(sum);
        let mut carry = 0;
        for ([low, high], limb) in sum.as_chunks_mut::<2>().0.iter_mut().zip(&number.0) {
            let square = u128::from(*limb) * u128::from(*limb) + u128::from(*low) + u128::from(carry);
            *low = square as u64;
            let (top, over) = high.overflowing_add((square >> 64) as u64);
            (*high, carry) = (top, u64::from(over));
        }
        self.reduce(number);
    }

    /// `number * factor / 2^bits`; one of the two is below the modulus.
    fn multiply(&mut self, number: &mut Natural, factor: &Natural) {
        let sum = &mut self.sum.0;
        sum.fill(0);
        for (at, limb) in number.0.iter().enumerate() {
            let Some(part) = sum.get_mut(at..) else { break };
            let carry = multiply_add(part, &factor.0, *limb);
            if let Some(top) = part.get_mut(factor.limbs()) {
                *top = carry;
            }
        }
        self.reduce(number);
    }

    /// Divides the sum by `2^bits`, modulo the modulus.
    fn reduce(&mut self, to: &mut Natural) {
        let (limbs, sum) = (self.modulus.limbs(), &mut self.sum.0);
        let mut high = 0;
        for at in 0..limbs {
            let Some(part) = sum.get_mut(at..) else { break };
            // Makes the lowest limb zero.
            let factor = part.first().copied().unwrap_or_default().wrapping_mul(self.inverse);
            let carry = multiply_add(part, &self.modulus.0, factor);
            if let Some(top) = part.get_mut(limbs) {
                let (once, first) = top.overflowing_add(carry);
                let (twice, second) = once.overflowing_add(high);
                (*top, high) = (twice, u64::from(first | second));
            }
        }
        to.0.copy_from_slice(sum.get(limbs..limbs * 2).unwrap_or(&self.one.0));
        reduce_once(&mut to.0, high, &self.modulus.0);
    }
}

/// Doubles; returns the carry.
fn shift(number: &mut [u64]) -> u64 {
    let mut carry = 0;
    for limb in number {
        (*limb, carry) = (*limb << 1 | carry, *limb >> 63);
    }
    carry
}

/// Takes the modulus away once if the number, with `high` above its last limb, is not below it.
fn reduce_once(number: &mut [u64], high: u64, modulus: &[u64]) {
    let mut borrow = 0;
    for (limb, other) in number.iter().zip(modulus) {
        let (difference, first) = limb.overflowing_sub(*other);
        borrow = u64::from(first | difference.overflowing_sub(borrow).1);
    }
    let mask = u64::from(high >= borrow).wrapping_neg();
    borrow = 0;
    for (limb, other) in number.iter_mut().zip(modulus) {
        let (difference, first) = limb.overflowing_sub(other & mask);
        let (difference, second) = difference.overflowing_sub(borrow);
        (*limb, borrow) = (difference, u64::from(first | second));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(hex: &str, limbs: usize) -> Natural {
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
        Natural::from_bytes(&bytes, limbs)
    }

    fn hex(number: &Natural) -> String {
        number.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bytes_bits_and_small_numbers() {
        let mut n = number("0123456789abcdef0123456789abcdef", 3);
        assert_eq!((n.limbs(), n.bits(), n.bit(0), n.bit(4)), (3, 121, true, false));
        assert_eq!(hex(&n), "0123456789abcdef0123456789abcdef");
        assert_eq!(n.rem_small(65537), n.clone().div_small(65537));
        let rest = n.div_small(1000);
        let back = n.times(&Natural(vec![1000]));
        let mut back = Natural(back.0[..3].to_vec());
        back.add_small(u64::from(rest));
        assert_eq!(hex(&back), "0123456789abcdef0123456789abcdef");
        let mut carries = number("ffffffffffffffff", 2);
        carries.add_small(1);
        assert_eq!(hex(&carries), "010000000000000000");
        carries.sub_small(1);
        assert_eq!(hex(&carries), "ffffffffffffffff");
        assert!(hex(&Natural(vec![0; 4])).is_empty());
    }

    #[test]
    fn powers_modulo_what_python_says() {
        // pow(base, exponent, modulus), computed by Python.
        let modulus = number("fedcba98765432100123456789abcdef", 2);
        let base = number("0f0e0d0c0b0a09080706050403020100", 2);
        let exponent = number("123456789abcdef0fedcba9876543211", 2);
        let power = Modulus::new(&modulus).power(&base, &exponent);
        assert_eq!(hex(&power), POWER);
        // A base that is not below the modulus.
        let base = number("ffffffffffffffffffffffffffffffff", 2);
        assert_eq!(hex(&Modulus::new(&modulus).power(&base, &exponent)), POWER_OF_ALL_ONES);
    }

    #[test]
    fn powers_of_two() {
        let modulus = number("fedcba98765432100123456789abcdef", 2);
        for exponent in ["00", "01", "0123456789abcdef", "ffffffffffffffffffffffffffffffff"] {
            let (exponent, two) = (number(exponent, 2), number("02", 2));
            let mut arithmetic = Modulus::new(&modulus);
            assert_eq!(hex(&arithmetic.power_of_two(&exponent)), hex(&arithmetic.power(&two, &exponent)));
        }
    }

    const POWER: &str = "f09b51d349b4092d32150dffafbbbb17";
    const POWER_OF_ALL_ONES: &str = "a2f468f38d29a4c05d0b970c72d65b3f";
}
