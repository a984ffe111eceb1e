//! Names to addresses: `/etc/hosts`, then the name servers of `/etc/resolv.conf` (RFC 1035, UDP).
//!
//! The C library's own resolver loads modules of the host at run time, which a static executable must not, and is as
//! large as the whole of HTTP. What an API server's name needs is little: A and AAAA, search domains, time-outs.

use crate::sys::resolv_conf::ResolvConf;
use crate::sys::{clock, file, random};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Largest file that is read, bytes.
const LIMIT: usize = 1 << 20;
/// glibc asks no more servers either (resolv.conf(5)).
const MAX_SERVERS: usize = 3;
/// How often a wait looks whether it is to end.
const SLICE: Duration = Duration::from_millis(100);
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;

/// Finds the addresses of a host; an address stands for itself. `given_up` ends it early.
pub fn look_up(host: &str, limit: Duration, given_up: &dyn Fn() -> bool) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let hosts = file::read_limited(Path::new("/etc/hosts"), LIMIT).unwrap_or_default();
    let known = in_hosts(&String::from_utf8_lossy(&hosts), host);
    if !known.is_empty() {
        return Ok(known);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let settings = ResolvConf::read().unwrap_or_else(|_| ResolvConf::parse(""));
    ask(&settings.into(), host, clock::now() + limit, given_up)
}

/// The addresses that a hosts(5) file gives a name.
fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut words = lines.map(str::split_ascii_whitespace);
    let mut found = Vec::new();
    for line in &mut words {
        let mut line = line;
        let address = line.next().and_then(|word| word.parse().ok());
        if let Some(address) = address
            && line.any(|name| name.eq_ignore_ascii_case(host))
        {
            found.push(address);
        }
    }
    found
}

/// Whom to ask, and for which names.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
    timeout: Duration,
    attempts: u32,
}

impl From<ResolvConf> for Settings {
    fn from(conf: ResolvConf) -> Self {
        let ResolvConf { servers, search, ndots, timeout, attempts } = conf;
        // A link-local server would need the number of its interface; there is no API server behind one.
        let reachable = servers.into_iter().filter(|server| server.zone.is_none());
        let mut servers: Vec<_> = reachable.take(MAX_SERVERS).map(|server| (server.address, 53).into()).collect();
        if servers.is_empty() {
            servers.push((Ipv4Addr::LOCALHOST, 53).into());
        }
        Settings { servers, search, ndots, timeout, attempts }
    }
}

impl Settings {
    /// The full names to try, in order.
    fn candidates(&self, host: &str) -> Vec<String> {
        if let Some(full) = host.strip_suffix('.') {
            return vec![full.to_owned()];
        }
        let below = self.search.iter().map(|domain| format!("{host}.{}", domain.trim_matches('.')));
        let mut names: Vec<String> = below.collect();
        let as_it_is = host.to_owned();
        if host.matches('.').count() >= self.ndots {
            names.insert(0, as_it_is);
        } else {
            names.push(as_it_is);
        }
        names
    }
}

/// What a server said about one name and type.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Addresses(Vec<IpAddr>),
    /// There is no such name.
    NoName,
    /// The server cannot say.
    Trouble,
}

fn ask(settings: &Settings, host: &str, end: Instant, given_up: &dyn Fn() -> bool) -> io::Result<Vec<IpAddr>> {
    let mut problem = "no such name";
    for name in settings.candidates(host) {
        'name: for server in (0..settings.attempts).flat_map(|_| &settings.servers) {
            let end = end.min(clock::now() + settings.timeout);
            let mut found = Vec::new();
            for answer in exchange(*server, &name, end, given_up)? {
                match answer {
                    Some(Answer::Addresses(addresses)) => found.extend(addresses),
                    Some(Answer::NoName) => break 'name,
                    Some(Answer::Trouble) => problem = "the name server cannot say",
                    None => problem = "no answer from the name server",
                }
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{host}: {problem}")))
}

/// Asks one server for A and AAAA at once; what has not come by the end is missing.
fn exchange(
    server: SocketAddr,
    name: &str,
    end: Instant,
    given_up: &dyn Fn() -> bool,
) -> io::Result<[Option<Answer>; 2]> {
    let any: SocketAddr =
        if server.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    // A port of our own and a connected socket: only the server asked can answer.
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(SLICE))?;
    let id = random::below(0xfffe) as u16;
    let asked = [(id, TYPE_A), (id + 1, TYPE_AAAA)];
    for (id, kind) in asked {
        let query = query(id, name, kind)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a host name")))?;
        if socket.send(&query).is_err() {
            return Ok([None, None]);
        }
    }
    let mut answers = [None, None];
    let mut packet = [0; 4096];
    while answers.iter().any(Option::is_none) && clock::now() < end {
        if given_up() {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "this client was closed"));
        }
        match socket.recv(&mut packet) {
            Ok(size) => {
                for (slot, (id, kind)) in answers.iter_mut().zip(asked) {
                    if let Some(answer) = packet.get(..size).and_then(|packet| decode(packet, id, kind)) {
                        *slot = Some(answer);
                    }
                }
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Nobody serves there.
            Err(_) => return Ok(answers),
        }
    }
    Ok(answers)
}

/// A query for one name and type; none if the name cannot be one.
fn query(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut packet = Vec::new();
    // Recursion desired, one question.
    for word in [id, 0x0100, 1, 0, 0, 0] {
        packet.extend_from_slice(&word.to_be_bytes());
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        packet.push(length);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&1u16.to_be_bytes());
    (name.len() <= 253).then_some(packet)
}

/// The answer to the query of this id and type; none if the packet is not that.
fn decode(packet: &[u8], id: u16, kind: u16) -> Option<Answer> {
    let mut rest = packet;
    let [got, flags, questions, answers, _, _] = std::array::from_fn(|_| take_u16(&mut rest));
    let (flags, is_answer) = (flags?, flags? & 0x8000 != 0);
    if got? != id || !is_answer {
        return None;
    }
    match flags & 0xf {
        0 => {}
        3 => return Some(Answer::NoName),
        _ => return Some(Answer::Trouble),
    }
    for _ in 0..questions? {
        skip_name(&mut rest)?;
        take(&mut rest, 4)?;
    }
    let mut addresses = Vec::new();
    // A truncated answer is used as far as it goes; the server puts the records after their aliases.
    for _ in 0..answers? {
        let Some(record) = take_record(&mut rest) else { break };
        match (record, kind) {
            ((TYPE_A, [a, b, c, d]), TYPE_A) => addresses.push(Ipv4Addr::new(*a, *b, *c, *d).into()),
            ((TYPE_AAAA, data), TYPE_AAAA) => {
                addresses.extend(<[u8; 16]>::try_from(data).ok().map(|bytes| IpAddr::V6(bytes.into())));
            }
            _ => {}
        }
    }
    Some(Answer::Addresses(addresses))
}

/// Type and data of the next record.
fn take_record<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    skip_name(rest)?;
    let kind = take_u16(rest)?;
    // Class and time to live.
    take(rest, 6)?;
    let length = take_u16(rest)?;
    Some((kind, take(rest, length.into())?))
}

fn skip_name(rest: &mut &[u8]) -> Option<()> {
    loop {
        match *take(rest, 1)?.first()? {
            0 => return Some(()),
            // A pointer ends the name.
            length if length & 0xc0 == 0xc0 => return take(rest, 1).map(drop),
            length => take(rest, length.into())?,
        };
    }
}

fn take<'a>(rest: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(size)?;
    *rest = left;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(take(rest, 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_files() {
        let text =
            "# comment\n127.0.0.1 localhost\n::1\tlocalhost ip6-localhost # end\n10.0.0.1 API.example.test api\nx y\n";
        let check = |host: &str, expected: &[&str]| {
            assert_eq!(in_hosts(text, host), expected.iter().map(|a| ip(a)).collect::<Vec<_>>(), "{host}");
        };
        check("localhost", &["127.0.0.1", "::1"]);
        check("api.Example.test", &["10.0.0.1"]);
        check("api", &["10.0.0.1"]);
        check("end", &[]);
        check("y", &[]);
    }

    #[test]
    fn settings_and_candidates() {
        let settings = |text: &str| Settings::from(ResolvConf::parse(text));
        let none = settings("");
        let settings = settings(
            "search a.test b.test.\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver ::1\noptions ndots:5\n",
        );
        assert_eq!(settings.servers, ["10.96.0.10:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(settings.candidates("api.x"), ["api.x.a.test", "api.x.b.test", "api.x"]);
        assert_eq!(settings.candidates("api.x."), ["api.x"]);
        assert_eq!(none.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(none.candidates("api.x"), ["api.x"]);
    }

    /// `www` is an alias of `web`, which has these addresses.
    fn answer(id: u16, kind: u16, data: &[&[u8]]) -> Vec<u8> {
        let mut packet = query(id, "www.example.test", kind).unwrap();
        packet[2..4].copy_from_slice(&0x8180u16.to_be_bytes());
        packet[7] = u8::try_from(data.len()).unwrap() + 1;
        let mut record = |kind: u16, data: &[u8]| {
            packet.extend_from_slice(&[0xc0, 12]);
            packet.extend_from_slice(&kind.to_be_bytes());
            packet.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
            packet.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
            packet.extend_from_slice(data);
        };
        record(5, b"\x03web\xc0\x10");
        data.iter().for_each(|data| record(kind, data));
        packet
    }

    #[test]
    fn answers() {
        let packet = answer(7, TYPE_A, &[&[10, 0, 0, 1], &[10, 0, 0, 2]]);
        let both = Answer::Addresses(vec![ip("10.0.0.1"), ip("10.0.0.2")]);
        assert_eq!(decode(&packet, 7, TYPE_A), Some(both));
        assert_eq!(decode(&packet, 8, TYPE_A), None, "of another query");
        let packet = answer(7, TYPE_AAAA, &[&Ipv6Addr::LOCALHOST.octets()]);
        assert_eq!(decode(&packet, 7, TYPE_AAAA), Some(Answer::Addresses(vec![ip("::1")])));
        let mut no_name = packet.clone();
        no_name[3] = 0x83;
        assert_eq!(decode(&no_name, 7, TYPE_AAAA), Some(Answer::NoName));
        no_name[3] = 0x82;
        assert_eq!(decode(&no_name, 7, TYPE_AAAA), Some(Answer::Trouble));
        assert_eq!(decode(&query(7, "a", TYPE_A).unwrap(), 7, TYPE_A), None, "a query is no answer");
    }

    #[test]
    fn truncated_anywhere_is_less_and_never_a_panic() {
        let packet = answer(7, TYPE_A, &[&[10, 0, 0, 1], &[10, 0, 0, 2]]);
        for end in 0..packet.len() {
            if let Some(Answer::Addresses(addresses)) = decode(&packet[..end], 7, TYPE_A) {
                assert!(addresses.len() < 2, "{end}");
            }
        }
        let endless = [&packet[..12], &[0xff; 600]].concat();
        assert_eq!(decode(&endless, 7, TYPE_A), Some(Answer::Addresses(vec![])));
    }

    #[test]
    fn queries() {
        assert_eq!(
            &query(0x0102, "a.bc", TYPE_A).unwrap(),
            b"\x01\x02\x01\0\0\x01\0\0\0\0\0\0\x01a\x02bc\0\0\x01\0\x01"
        );
        for bad in ["", "a..b", &"x".repeat(64), &["abcdefgh"; 40].join(".")] {
            assert_eq!(query(1, bad, TYPE_A), None, "{bad}");
        }
    }

    #[test]
    fn asks_every_server_and_takes_what_comes() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let settings = Settings {
            servers: vec![silent.local_addr().unwrap(), server.local_addr().unwrap()],
            search: vec!["example.test".into()],
            ndots: 1,
            timeout: Duration::from_millis(150),
            attempts: 1,
        };
        let serving = crate::sys::thread::spawn("test-dns", move || {
            let mut packet = [0; 512];
            for _ in 0..2 {
                let (size, peer) = server.recv_from(&mut packet).unwrap();
                let id = u16::from_be_bytes([packet[0], packet[1]]);
                let kind = u16::from_be_bytes([packet[size - 4], packet[size - 3]]);
                assert!(packet[..size].windows(17).any(|w| w == b"\x03www\x07example\x04test"));
                let data: &[&[u8]] = if kind == TYPE_A { &[&[10, 0, 0, 1]] } else { &[] };
                server.send_to(&answer(id, kind, data), peer).unwrap();
            }
        })
        .unwrap();
        let end = || clock::now() + Duration::from_secs(5);
        assert_eq!(ask(&settings, "www", end(), &|| false).unwrap(), [ip("10.0.0.1")]);
        serving.join().unwrap();
        let alone = Settings { servers: vec![silent.local_addr().unwrap()], ..settings };
        let e = ask(&alone, "www", end(), &|| false).unwrap_err();
        assert_eq!(e.to_string(), "www: no answer from the name server");
        assert_eq!(ask(&alone, "www", end(), &|| true).unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(ask(&alone, "a..b", end(), &|| false).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
