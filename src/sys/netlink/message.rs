//! Messages of netlink, without the header of netlink itself.

/// One message of a dump: its type and everything after the netlink header.
#[derive(Debug, Clone)]
pub struct RawMessage {
    /// `nlmsg_type`.
    pub kind: u16,
    /// The payload.
    pub payload: Vec<u8>,
}

/// One message of a transaction.
#[derive(Debug, Clone)]
pub struct Change {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags` besides `NLM_F_REQUEST`.
    pub flags: u16,
    /// Everything after the netlink header.
    pub payload: Vec<u8>,
}
