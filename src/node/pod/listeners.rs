//! Whether ztunnel listens in a pod's namespace, as it must where it has acknowledged the pod.
//!
//! Where it does not, it is told of the pod anew; what that does not help is told to people, and tried again seldom, for
//! it ends connections that another listener may have.

use crate::rules::inpod::{DNS_PROXY_PORT, Settings, proxy_ports};
use std::collections::BTreeSet;

/// Ztunnel is told anew with every 20th look in a row.
const RETRY: u32 = 20;

/// What is known of ztunnel's listeners in one namespace.
#[derive(Debug, Default)]
pub(in crate::node) struct Listeners {
    /// The ports that lacked one at the last look.
    lacking: Vec<u16>,
    /// How often in a row it was so.
    looks: u32,
    /// Ztunnel was told anew since they were all there.
    told_anew: bool,
    /// It answered DNS at some time. A ztunnel that never did is set up without, and telling it anew changes nothing.
    answers_dns: bool,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::node) enum Hearing {
    /// Nothing.
    Nothing,
    /// It may be that ztunnel is about to listen: to be looked at again soon.
    LookAgain,
    /// Ztunnel is to be told anew; in words, why.
    TellAnew(String),
    /// It was told, and does not listen all the same: people are told.
    Deaf(String),
    /// It listens again.
    Over(String),
}

impl Listeners {
    /// In words, that ztunnel does not listen, once that is sure.
    pub fn trouble(&self) -> Option<String> {
        (self.looks > 1).then(|| in_words(&self.lacking))
    }

    /// These ports are listened on, in the namespace of a pod that ztunnel has acknowledged.
    pub fn note(&mut self, settings: &Settings, listening: &BTreeSet<u16>) -> Hearing {
        self.answers_dns |= listening.contains(&DNS_PROXY_PORT);
        let lacking: Vec<u16> = proxy_ports(settings).filter(|port| !listening.contains(port)).collect();
        if lacking.is_empty() {
            let past = self.trouble();
            *self = Listeners { answers_dns: self.answers_dns, ..Listeners::default() };
            return past.map_or(Hearing::Nothing, Hearing::Over);
        }
        let helps = lacking.iter().any(|port| *port != DNS_PROXY_PORT || self.answers_dns);
        self.lacking = lacking;
        self.looks = self.looks.saturating_add(1);
        match self.looks {
            1 => Hearing::LookAgain,
            2 if helps && !self.told_anew => {
                self.told_anew = true;
                self.looks = 0;
                Hearing::TellAnew(in_words(&self.lacking))
            }
            2 => Hearing::Deaf(in_words(&self.lacking)),
            looks if helps && looks.is_multiple_of(RETRY) => Hearing::TellAnew(in_words(&self.lacking)),
            _ => Hearing::Nothing,
        }
    }
}

fn in_words(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    format!("ztunnel has acknowledged the pod and does not listen in it (port {})", ports.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn settings(dns_capture: bool) -> Settings {
        Settings {
            dns_capture,
            ingress_mode: false,
            reroute_interfaces: vec![],
            ipv6: false,
            probe_v4: Ipv4Addr::LOCALHOST,
            probe_v6: Ipv6Addr::LOCALHOST,
        }
    }

    #[test]
    fn told_anew_once_then_people_are_told() {
        let mut listeners = Listeners::default();
        let mut look = |dns: bool, ports: &[u16]| listeners.note(&settings(dns), &ports.iter().copied().collect());
        let text = |ports: &str| format!("ztunnel has acknowledged the pod and does not listen in it (port {ports})");
        let all = [80, 15001, 15006, 15008];
        assert_eq!(look(true, &all), Hearing::LookAgain);
        assert_eq!(look(true, &all), Hearing::Deaf(text("15053")), "it never answered DNS");
        assert_eq!(look(true, &[15001, 15006, 15008, 15053]), Hearing::Over(text("15053")));
        assert_eq!(look(false, &all), Hearing::Nothing);
        assert_eq!(look(false, &[80]), Hearing::LookAgain);
        assert_eq!(look(false, &all), Hearing::Nothing, "it was about to listen");
        assert_eq!(look(true, &all), Hearing::LookAgain);
        assert_eq!(look(true, &all), Hearing::TellAnew(text("15053")));
        assert_eq!(look(true, &[15001, 15053]), Hearing::LookAgain);
        assert_eq!(look(true, &[15001, 15053]), Hearing::Deaf(text("15006, 15008")));
        for _ in 3..20 {
            assert_eq!(look(true, &[15001, 15053]), Hearing::Nothing);
        }
        assert_eq!(look(true, &[15001, 15053]), Hearing::TellAnew(text("15006, 15008")), "seldom");
        assert_eq!(look(true, &[15001, 15053]), Hearing::Nothing);
        assert_eq!(look(false, &all), Hearing::Over(text("15006, 15008")));
        assert_eq!(look(false, &all), Hearing::Nothing);
    }
}
