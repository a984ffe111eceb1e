//! The Huffman code of header strings (RFC 7541, section 5.2 and appendix B). The code is canonical, so the lengths
//! of its codes say all. Only the decoder is needed: what we send is not compressed.

/// Length of each octet's code in bits; the last is that of EOS.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23,
    23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19,
    22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27,
    27, 27, 27, 26, 30,
];
const SYMBOLS: usize = 257;
const EOS: u16 = 256;
/// Longest code, bits.
const LONGEST: usize = 30;

/// The canonical code, from its lengths.
struct Code {
    /// The symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// How many codes have at most so many bits.
    upto: [usize; LONGEST + 1],
    /// The first code that is longer than so many bits, at the left end of 32 bits.
    limit: [u64; LONGEST + 1],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Code { symbols: [0; SYMBOLS], upto: [0; LONGEST + 1], limit: [0; LONGEST + 1] };
        let (mut length, mut next, mut count) = (1, 0u64, 0);
        while length <= LONGEST {
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[count] = symbol as u16;
                    count += 1;
                    next += 1 << (32 - length);
                }
                symbol += 1;
            }
            code.upto[length] = count;
            code.limit[length] = next;
            length += 1;
        }
        code
    }

    /// The symbol whose code begins these 32 bits, with the length of the code.
    fn find(&self, bits: u32) -> Option<(u16, u32)> {
        let bits = u64::from(bits);
        let length = self.limit.iter().position(|limit| bits < *limit)?;
        // Codes of one length follow each other: count back from the end of theirs.
        let back = (self.limit.get(length)? - bits - 1) >> (32 - length);
        let index = self.upto.get(length)?.checked_sub(1 + usize::try_from(back).ok()?)?;
        Some((*self.symbols.get(index)?, u32::try_from(length).ok()?))
    }
}

/// Appends the decoded string; `None` when it is not one: an unknown code, EOS, or a bad end.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (mut bits, mut held) = (0u64, 0u32);
    for byte in input {
        bits = bits << 8 | u64::from(*byte);
        held += 8;
        // What is held is less than one code and one octet: it fits.
        while let Some((symbol, length)) = CODE.find((bits << (64 - held) >> 32) as u32)
            && length <= held
        {
            if symbol == EOS {
                return None;
            }
            out.push(symbol as u8);
            held -= length;
            if held == 0 {
                break;
            }
        }
    }
    // The end is filled with the first bits of EOS, which are ones: less than an octet of them.
    let rest = (1u64 << held) - 1;
    (held < 8 && bits & rest == rest).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other way, bit by bit.
    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for byte in text {
            let index = CODE.symbols.iter().position(|symbol| *symbol == u16::from(*byte)).unwrap();
            let length = usize::from(LENGTHS[usize::from(*byte)]);
            let code = (CODE.limit[length] >> (32 - length)) - (CODE.upto[length] - index) as u64;
            bits.push_str(&format!("{code:0length$b}"));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|bits| u8::from_str_radix(std::str::from_utf8(bits).unwrap(), 2).unwrap())
            .collect()
    }

    fn decoded(input: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    #[test]
    fn every_octet_comes_back() {
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(decoded(&encode(&all)).unwrap(), all);
        for byte in 0..=255 {
            assert_eq!(decoded(&encode(&[byte])).unwrap(), [byte]);
        }
        assert_eq!(decoded(b"").unwrap(), b"");
    }

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 7541, sections C.4 and C.6.
        let check = |input: &[u8], expected: &str| {
            assert_eq!(decoded(input).unwrap(), expected.as_bytes());
            assert_eq!(encode(expected.as_bytes()), input);
        };
        check(&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff], "www.example.com");
        check(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache");
        check(&[0x64, 0x02], "302");
        check(&[0xae, 0xc3, 0x77, 0x1a, 0x4b], "private");
    }

    #[test]
    fn what_is_no_code_is_refused() {
        // EOS itself, an end of zeros, an end of a whole octet.
        for bad in [&[0xff, 0xff, 0xff, 0xff][..], &[0xff, 0xff, 0xff, 0xfc], &[0x60], &[0x64, 0x02, 0xff], &[0xff]] {
            assert_eq!(decoded(bad), None, "{bad:x?}");
        }
    }
}
