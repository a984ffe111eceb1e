//! The examples of RFC 7541, what is refused, and what a peer can make us do.

use super::*;

const LIMIT: usize = 4096;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn list(text: &str) -> Headers {
    text.split_whitespace().fold(Headers::new(), |headers, field| {
        let (name, value) = field.split_once('=').unwrap();
        headers.with(name, value)
    })
}

fn size(decoder: &Decoder) -> usize {
    (62..).map_while(|index| decoder.table.get(index)).map(|(name, value)| name.len() + value.len() + 32).sum()
}

/// Decodes blocks one after the other and checks the size of the table after each.
#[track_caller]
fn sequence(blocks: &[(&str, &str, usize)]) {
    let mut decoder = Decoder::default();
    for (block, expected, table) in blocks {
        assert_eq!(decoder.decode(&hex(block), LIMIT).unwrap().unwrap(), list(expected), "{block}");
        assert_eq!(size(&decoder), *table, "{block}");
    }
}

#[test]
fn the_examples_of_the_rfc() {
    // Section C.2: one field each, in every form.
    sequence(&[("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", "custom-key=custom-header", 55)]);
    sequence(&[("040c 2f73 616d 706c 652f 7061 7468", ":path=/sample/path", 0)]);
    sequence(&[("1008 7061 7373 776f 7264 0673 6563 7265 74", "password=secret", 0)]);
    sequence(&[("82", ":method=GET", 0)]);
    // Sections C.3 and C.4: the same requests, plain and with Huffman codes.
    let first = ":method=GET :scheme=http :path=/ :authority=www.example.com";
    let second = ":method=GET :scheme=http :path=/ :authority=www.example.com cache-control=no-cache";
    let third = ":method=GET :scheme=https :path=/index.html :authority=www.example.com custom-key=custom-value";
    sequence(&[
        ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", first, 57),
        ("8286 84be 5808 6e6f 2d63 6163 6865", second, 110),
        ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", third, 164),
    ]);
    sequence(&[
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", first, 57),
        ("8286 84be 5886 a8eb 1064 9cbf", second, 110),
        ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", third, 164),
    ]);
}

#[test]
fn old_entries_make_room_for_new_ones() {
    let mut decoder = Decoder::default();
    let mut add = |block: &[u8]| decoder.decode(block, usize::MAX).map(|_| size(&decoder));
    // Down to 64 bytes, as a block may begin: each entry of 34 bytes drops the one before it.
    assert_eq!(add(b"\x3f\x21\x40\x01a\x01b").unwrap(), 34);
    assert_eq!(add(b"\x40\x01c\x01d").unwrap(), 34);
    // The name of the entry that has to go.
    assert_eq!(add(b"\x7e\x01e").unwrap(), 34);
    // Larger than the table: nothing is left.
    assert_eq!(add(&[b"\x40\x01f\x40".as_slice(), &[b'x'; 64]].concat()).unwrap(), 0);
    assert_eq!(add(b"\xbe").unwrap_err(), NO_ENTRY);
}

#[test]
fn what_is_no_block_is_refused() {
    for bad in [
        // No such index; none at all; cut off; too large.
        "80",
        "be",
        "ff",
        "ff 80 80 80 80 01",
        "7f ff ff ff ff 0f",
        // Strings that are cut off, of an absurd length, or with a bad code.
        "40",
        "40 01",
        "40 01 61",
        "40 01 61 05 61",
        "40 7f ff ff ff 7f",
        "40 81 00",
        "40 84 ff ff ff ff",
        // A table size above the limit, cut off, or not at the beginning.
        "3f e2 1f",
        "3f",
        "82 20",
    ] {
        let fault = Decoder::default().decode(&hex(bad), LIMIT).unwrap_err();
        assert_eq!(fault.reason, Reason::COMPRESSION_ERROR, "{bad}");
    }
}

#[test]
fn a_bomb_costs_what_it_weighs() {
    let mut decoder = Decoder::default();
    let value = [b'x'; 4000];
    let mut block = b"\x40\x01a\x7f\xa1\x1e".to_vec();
    block.extend_from_slice(&value);
    assert_eq!(decoder.decode(&block, LIMIT).unwrap().unwrap().get("a").unwrap(), value);
    // Sixteen thousand times four kilobytes, refused by their size; and the table still serves.
    assert_eq!(decoder.decode(&[0xbe; 16_384], LIMIT).unwrap(), None);
    assert_eq!(decoder.decode(&[0xbe], LIMIT).unwrap().unwrap().len(), 1);
    assert_eq!(decoder.decode(&[0xbe], 4032).unwrap(), None);
    assert_eq!(decoder.decode(&[0xbe], 4033).unwrap().unwrap().len(), 1);
}

#[test]
fn what_is_written_is_read() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let long = "x".repeat(300);
    for text in [
        ":method=POST :scheme=http :path=/a.B/C :authority=xds-grpc te=trailers content-type=application/grpc",
        ":status=200 content-type=application/grpc",
        ":status=418 authorization=Bearer_x cookie= x-empty= clusterid=Kubernetes",
        &format!("{long}={long} grpc-status=0"),
    ] {
        let mut block = Vec::new();
        encoder.encode(&list(text), &mut block);
        assert_eq!(decoder.decode(&block, LIMIT).unwrap().unwrap(), list(text));
        assert_eq!(size(&decoder), 0);
    }
    // Whole fields of the static table take a byte, credentials are never indexed.
    let mut block = Vec::new();
    encoder.encode(&list(":method=POST :status=200 authorization=x"), &mut block);
    assert_eq!(block, hex("83 88 1f 08 01 78"));
}
