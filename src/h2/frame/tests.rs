//! The decoder: however its input is cut, the same frames come out.

use super::*;

/// What the decoder finds in input of so many bytes at a time, DATA put together.
fn pieces(mut decoder: Decoder, input: &[u8], step: usize) -> Result<Vec<String>, Fault> {
    let (mut found, mut data) = (Vec::new(), Vec::new());
    for mut part in input.chunks(step.max(1)) {
        while let Some(piece) = decoder.next(&mut part)? {
            match piece {
                Piece::Data { bytes, more, .. } => {
                    data.extend_from_slice(bytes);
                    assert!(more <= MAX_PAYLOAD);
                }
                Piece::DataEnd { .. } => found.push(format!("{piece:?} {data:?}")),
                _ => found.push(format!("{piece:?}")),
            }
            if !matches!(found.last(), Some(last) if last.starts_with("DataStart")) {
                data.clear();
            }
        }
        assert!(part.is_empty());
    }
    Ok(found)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    head(&mut out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
    out
}

#[test]
fn cuts_do_not_matter() {
    let input = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(DATA, 0, 1, b"hello"),
        frame(DATA, PADDED | END_STREAM, 1, b"\x03abcdXXX"),
        frame(DATA, PADDED, 3, b"\x00"),
        frame(DATA, 0, 3, b""),
        frame(SETTINGS, ACK, 0, b""),
        frame(77, 255, MAX_31, &[7; 300]),
    ]
    .concat();
    let whole = pieces(Decoder::with_preface(), &input, input.len()).unwrap();
    assert_eq!(
        whole[..9],
        [
            "Frame(Head { length: 6, kind: 4, flags: 0, stream: 0 }, [0, 3, 0, 0, 0, 100])",
            "DataStart { stream: 1, payload: 5 }",
            "DataEnd { stream: 1, padding: 0, empty: false, end_stream: false } [104, 101, 108, 108, 111]",
            "DataStart { stream: 1, payload: 8 }",
            "DataEnd { stream: 1, padding: 4, empty: false, end_stream: true } [97, 98, 99, 100]",
            "DataStart { stream: 3, payload: 1 }",
            "DataEnd { stream: 3, padding: 1, empty: true, end_stream: false } []",
            "DataStart { stream: 3, payload: 0 }",
            "DataEnd { stream: 3, padding: 0, empty: true, end_stream: false } []",
        ]
    );
    assert_eq!(whole.len(), 11);
    for step in 1..40 {
        assert_eq!(pieces(Decoder::with_preface(), &input, step).unwrap(), whole, "{step} bytes at a time");
    }
}

#[test]
fn what_is_no_http2_is_refused_at_once() {
    let fault = |input: &[u8]| pieces(Decoder::with_preface(), input, 1).unwrap_err().reason;
    assert_eq!(fault(b"GET / HTTP/1.1\r\n"), Reason::PROTOCOL_ERROR);
    assert_eq!(fault(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX"), Reason::PROTOCOL_ERROR);
    assert_eq!(pieces(Decoder::with_preface(), &PREFACE[..20], 3).unwrap(), [""; 0]);
}

#[test]
fn lengths_are_checked_before_anything_is_held() {
    let fault = |input: &[u8]| pieces(Decoder::default(), input, 4).unwrap_err();
    assert_eq!(fault(&[0, 0x40, 1, SETTINGS, 0, 0, 0, 0, 0]).reason, Reason::FRAME_SIZE_ERROR);
    assert_eq!(fault(&[0xff, 0xff, 0xff, 77, 0, 0, 0, 0, 0]).reason, Reason::FRAME_SIZE_ERROR);
    assert_eq!(fault(&frame(DATA, 0, 0, b"x")).reason, Reason::PROTOCOL_ERROR);
    assert_eq!(fault(&frame(DATA, PADDED, 1, b"")).reason, Reason::FRAME_SIZE_ERROR);
    assert_eq!(fault(&frame(DATA, PADDED, 1, b"\x05abcd")).reason, Reason::PROTOCOL_ERROR);
}

#[test]
fn long_header_blocks_are_continued() {
    let mut out = Vec::new();
    let block: Vec<u8> = (0..MAX_PAYLOAD * 2 + 1).map(|n| n as u8).collect();
    header_block(&mut out, 5, true, &block);
    let (mut decoder, mut input, mut seen, mut heads) = (Decoder::default(), &out[..], Vec::new(), Vec::new());
    while let Some(Piece::Frame(head, payload)) = decoder.next(&mut input).unwrap() {
        seen.extend_from_slice(payload);
        heads.push((head.kind, head.flags, head.stream));
    }
    assert_eq!(seen, block);
    assert_eq!(heads, [(HEADERS, END_STREAM, 5), (CONTINUATION, 0, 5), (CONTINUATION, END_HEADERS, 5)]);
}
