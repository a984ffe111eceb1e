//! Rules as the kernel takes them over netlink: lists of expressions around one register.
//!
//! Formats: `linux/netfilter/nf_tables.h`. Numbers in attributes are big endian; data that is compared is as it stands
//! in the packet, or in the order of this machine where it does not come from the packet. What `nft` reads and writes
//! are such lists too: they are made here as it makes them, so that it shows them as [`crate::rules::nftables::text`] has them.

use crate::rules::family::Family;
use crate::rules::host::probe_set;
use crate::rules::nftables::{Of, Rule, Side, Statement};
use crate::rules::ruleset::{ConnState, Protocol};
use crate::sys::netlink::attributes::{NESTED, put, put_text};
use std::net::IpAddr;

/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
const NAME: u16 = 1;
const DATA: u16 = 2;
/// `NFTA_DATA_VALUE`, `NFTA_DATA_VERDICT`.
const VALUE: u16 = 1;
const VERDICT: u16 = 2;
/// `NFTA_VERDICT_CODE`, `NFTA_VERDICT_CHAIN`.
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
/// `NFT_REG_VERDICT`, `NFT_REG_1`.
const REGISTER_OF_VERDICT: u32 = 0;
const REGISTER: u32 = 1;

/// Keys of `meta` (`enum nft_meta_keys`).
mod meta {
    pub const MARK: u32 = 3;
    pub const IIFNAME: u32 = 6;
    pub const OIFNAME: u32 = 7;
    pub const SKUID: u32 = 10;
    pub const SKGID: u32 = 11;
    pub const NFPROTO: u32 = 15;
    pub const L4PROTO: u32 = 16;
}

/// Keys of `ct` (`enum nft_ct_keys`).
mod ct {
    pub const STATE: u32 = 0;
    pub const MARK: u32 = 3;
    pub const ZONE: u32 = 17;
}

/// The value of `NFTA_RULE_EXPRESSIONS`.
pub fn expressions(rule: &Rule) -> Vec<u8> {
    let mut list = List::default();
    let (conditions, steps) = rule.parts();
    conditions.iter().for_each(|one| list.statement(one));
    list.expression("counter", &[]);
    steps.iter().for_each(|one| list.statement(one));
    list.bytes
}

/// A list as far as it has come, and what the packets that get there are known to be.
#[derive(Default)]
struct List {
    bytes: Vec<u8>,
    family: Option<Family>,
    protocol: Option<Protocol>,
}

impl List {
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Family(family) => self.family(*family),
            Statement::Protocol(false, protocol) => self.protocol(*protocol),
            Statement::Protocol(true, protocol) => {
                self.meta(meta::L4PROTO);
                self.compare(true, &[number(*protocol)]);
            }
            Statement::Address(side, not, net) => {
                self.address(Family::of(net.addr()), *side);
                if net.prefix_len() != net.max_prefix_len() {
                    let mask = octets(net.netmask());
                    self.bitwise(&mask, &vec![0; mask.len()]);
                }
                self.compare(*not, &octets(net.network()));
            }
            Statement::InSet(not, family) => {
                self.address(*family, Side::Destination);
                self.lookup(*not, probe_set(*family));
            }
            Statement::From(not, name) => self.interface(meta::IIFNAME, *not, name),
            Statement::To(not, name) => self.interface(meta::OIFNAME, *not, name),
            Statement::Port(side, not, protocol, port) => {
                self.protocol(*protocol);
                let at = match side {
                    Side::Source => 0,
                    Side::Destination => 2,
                };
                self.payload(2, at, 2);
                self.compare(*not, &port.to_be_bytes());
            }
            Statement::Mark(of, not, mark) => {
                self.mark(*of);
                if mark.mask != u32::MAX {
                    self.bitwise(&mark.mask.to_ne_bytes(), &[0; 4]);
                }
                self.compare(*not, &mark.value.to_ne_bytes());
            }
            Statement::User(not, uid) => self.owner(meta::SKUID, *not, *uid),
            Statement::Group(not, gid) => self.owner(meta::SKGID, *not, *gid),
            // No user is this one.
            Statement::Socket => self.owner(meta::SKUID, true, u32::MAX),
            Statement::State(not, states) => {
                self.ct(ct::STATE);
                let bits = states.iter().fold(0, |bits, state| bits | state_bit(*state));
                self.bitwise(&bits.to_ne_bytes(), &[0; 4]);
                self.compare(!*not, &[0; 4]);
            }
            Statement::SetMark(of, mark) => {
                if mark.mask == u32::MAX {
                    self.immediate(&mark.value.to_ne_bytes());
                } else {
                    self.mark(*of);
                    self.bitwise(&(!mark.mask).to_ne_bytes(), &mark.value.to_ne_bytes());
                }
                self.set_mark(*of);
            }
            Statement::CopyMark(of) => {
                self.mark(if *of == Of::Packet { Of::Connection } else { Of::Packet });
                self.set_mark(*of);
            }
            Statement::Zone(zone) => {
                self.immediate(&zone.to_ne_bytes());
                // NFTA_CT_KEY, NFTA_CT_SREG.
                self.expression("ct", &[(2, ct::ZONE), (4, REGISTER)]);
            }
            Statement::Tproxy(family, port) => {
                self.immediate(&port.to_be_bytes());
                // NFTA_TPROXY_FAMILY, …_REG_PORT.
                self.expression("tproxy", &[(1, family.number().into()), (3, REGISTER)]);
            }
            Statement::Redirect(port) => {
                self.immediate(&port.to_be_bytes());
                // NFTA_REDIR_REG_PROTO_MIN.
                self.expression("redir", &[(1, REGISTER)]);
            }
            Statement::SourceNat(address) => {
                self.immediate(&octets(*address));
                // NFTA_NAT_TYPE (NFT_NAT_SNAT), …_FAMILY, …_REG_ADDR_MIN.
                let family = Family::of(*address).number().into();
                self.expression("nat", &[(1, 0), (2, family), (3, REGISTER)]);
            }
            Statement::Accept => self.verdict(1, None),
            Statement::Drop => self.verdict(0, None),
            Statement::Return => self.verdict(-5, None),
            Statement::Jump(chain) => self.verdict(-3, Some(chain)),
        }
    }

    fn family(&mut self, family: Family) {
        if self.family != Some(family) {
            self.family = Some(family);
            self.meta(meta::NFPROTO);
            self.compare(false, &[family.number()]);
        }
    }

    fn protocol(&mut self, protocol: Protocol) {
        if self.protocol != Some(protocol) {
            self.protocol = Some(protocol);
            self.meta(meta::L4PROTO);
            self.compare(false, &[number(protocol)]);
        }
    }

    /// Loads an address.
    fn address(&mut self, family: Family, side: Side) {
        self.family(family);
        let (at, size) = match (family, side) {
            (Family::V4, Side::Source) => (12, 4),
            (Family::V4, Side::Destination) => (16, 4),
            (Family::V6, Side::Source) => (8, 16),
            (Family::V6, Side::Destination) => (24, 16),
        };
        self.payload(1, at, size);
    }

    /// Loads a part of the packet. `base` is `enum nft_payload_bases`: 1 the network header, 2 the transport header.
    fn payload(&mut self, base: u32, at: u32, size: u32) {
        // NFTA_PAYLOAD_DREG, …_BASE, …_OFFSET, …_LEN.
        self.expression("payload", &[(1, REGISTER), (2, base), (3, at), (4, size)]);
    }

    /// Loads what the kernel knows of the packet.
    fn meta(&mut self, key: u32) {
        // NFTA_META_DREG, …_KEY.
        self.expression("meta", &[(1, REGISTER), (2, key)]);
    }

    /// Loads what the kernel knows of the connection.
    fn ct(&mut self, key: u32) {
        // NFTA_CT_DREG, …_KEY.
        self.expression("ct", &[(1, REGISTER), (2, key)]);
    }

    fn mark(&mut self, of: Of) {
        match of {
            Of::Packet => self.meta(meta::MARK),
            Of::Connection => self.ct(ct::MARK),
        }
    }

    fn set_mark(&mut self, of: Of) {
        match of {
            // NFTA_META_KEY, …_SREG.
            Of::Packet => self.expression("meta", &[(2, meta::MARK), (3, REGISTER)]),
            // NFTA_CT_KEY, …_SREG.
            Of::Connection => self.expression("ct", &[(2, ct::MARK), (4, REGISTER)]),
        }
    }

    fn interface(&mut self, key: u32, not: bool, name: &str) {
        /// `IFNAMSIZ`.
        const SIZE: usize = 16;
        self.meta(key);
        let mut padded = name.as_bytes().to_vec();
        padded.resize(SIZE, 0);
        self.compare(not, &padded);
    }

    fn owner(&mut self, key: u32, not: bool, id: u32) {
        self.meta(key);
        self.compare(not, &id.to_ne_bytes());
    }

    /// Goes on if the register is equal, or if it is not.
    fn compare(&mut self, not: bool, value: &[u8]) {
        // NFTA_CMP_SREG, …_OP (NFT_CMP_EQ, NFT_CMP_NEQ), …_DATA.
        let mut data = numbers(&[(1, REGISTER), (2, not.into())]);
        put(&mut data, 3 | NESTED, &attribute(VALUE, value));
        self.add("cmp", &data);
    }

    /// The register becomes (register & mask) ^ xor.
    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        // NFTA_BITWISE_SREG, …_DREG, …_LEN, …_MASK, …_XOR.
        let mut data = numbers(&[(1, REGISTER), (2, REGISTER), (3, u32::try_from(mask.len()).unwrap_or(0))]);
        put(&mut data, 4 | NESTED, &attribute(VALUE, mask));
        put(&mut data, 5 | NESTED, &attribute(VALUE, xor));
        self.add("bitwise", &data);
    }

    /// Goes on if the register is in the set, or if it is not.
    fn lookup(&mut self, not: bool, set: &str) {
        let mut data = Vec::new();
        // NFTA_LOOKUP_SET, …_SREG, …_FLAGS (NFT_LOOKUP_F_INV).
        put_text(&mut data, 1, set);
        data.extend(numbers(&[(2, REGISTER), (5, not.into())]));
        self.add("lookup", &data);
    }

    fn immediate(&mut self, value: &[u8]) {
        // NFTA_IMMEDIATE_DREG, …_DATA.
        let mut data = numbers(&[(1, REGISTER)]);
        put(&mut data, 2 | NESTED, &attribute(VALUE, value));
        self.add("immediate", &data);
    }

    /// The end of the rule. Codes: `NF_DROP`, `NF_ACCEPT`, and the negative ones of `enum nft_verdicts`.
    fn verdict(&mut self, code: i32, chain: Option<&str>) {
        let mut verdict = attribute(VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            put_text(&mut verdict, VERDICT_CHAIN, chain);
        }
        let mut data = numbers(&[(1, REGISTER_OF_VERDICT)]);
        put(&mut data, 2 | NESTED, &attribute(VERDICT | NESTED, &verdict));
        self.add("immediate", &data);
    }

    /// An expression that is told nothing but numbers.
    fn expression(&mut self, name: &str, values: &[(u16, u32)]) {
        self.add(name, &numbers(values));
    }

    fn add(&mut self, name: &str, data: &[u8]) {
        let mut expression = Vec::new();
        put_text(&mut expression, NAME, name);
        put(&mut expression, DATA | NESTED, data);
        put(&mut self.bytes, ELEMENT | NESTED, &expression);
    }
}

fn numbers(values: &[(u16, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, value) in values {
        put(&mut bytes, *kind, &value.to_be_bytes());
    }
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, kind, value);
    bytes
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => libc::IPPROTO_TCP as u8,
        Protocol::Udp => libc::IPPROTO_UDP as u8,
    }
}

/// `NF_CT_STATE_INVALID_BIT`, `NF_CT_STATE_BIT(…)`.
fn state_bit(state: ConnState) -> u32 {
    match state {
        ConnState::Invalid => 1,
        ConnState::Established => 1 << 1,
        ConnState::Related => 1 << 2,
    }
}
