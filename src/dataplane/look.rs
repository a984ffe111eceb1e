//! A look at all that a namespace's packet filters hold, in either variant and family. It makes nothing and starts no
//! process.

use super::nftables::{decode, dump};
use super::scope::Scope;
use super::xtables::variant::Variant;
use super::xtables::{ipset, legacy};
use crate::error::{Context, Result};
use crate::rules::family::Family;
use crate::rules::nftables::owned;
use crate::rules::preceding::Preceding;
use crate::rules::program::Purpose;
use crate::rules::provenance::{objection, sidecar};
use crate::rules::view::View;
use crate::sys::netns::Netns;
use std::collections::BTreeMap;

/// Which packet filters this kernel has.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// It answers questions about nf_tables. (Legacy tables need no such knowledge: without them, none are named.)
    nft: bool,
}

impl Kernel {
    /// Takes the kernel for one without nf_tables.
    #[cfg(test)]
    pub fn without_nft() -> Self {
        Kernel { nft: false }
    }

    /// Whether it has nf_tables.
    pub fn has_nft(self) -> bool {
        self.nft
    }

    /// Asks, in a namespace that is thrown away.
    pub fn probe() -> Result<Self> {
        Ok(Kernel { nft: Netns::scratch()?.enter(dump::is_there)?? })
    }

    /// Whether anybody put rules or chains into the calling thread's namespace in this variant.
    pub fn in_use(self, variant: Variant) -> Result<bool> {
        match variant {
            Variant::Nft => Ok(self.nft && dump::in_use()?),
            Variant::Legacy => Ok(legacy::in_use(Family::V4)? || legacy::in_use(Family::V6)?),
        }
    }

    /// Looks at a part of the calling thread's namespace.
    pub fn look(self, scope: Scope, purpose: Purpose, part: Part<'_>) -> Result<Look> {
        let mut views = BTreeMap::new();
        let (mut own, mut shared) = (View::default(), View::default());
        if self.nft && part.variants.contains(&Variant::Nft) {
            let dumped = dump::dump(scope, part.families)?;
            let decoded = decode::decode(&dumped, &ipset::name_of).context("nf_tables")?;
            views.extend(decoded.into_iter().map(|(family, view)| ((Variant::Nft, family), view)));
            if part.has_own() {
                (own, shared) = decode::decode_shared(&dumped, &owned(purpose)).context("nf_tables")?;
            }
        }
        if part.variants.contains(&Variant::Legacy) {
            for &family in part.families {
                views.insert((Variant::Legacy, family), legacy::look(family, scope)?);
            }
        }
        Ok(Look { views, own, shared })
    }
}

/// Which tables are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The variants whose tables are looked at.
    pub variants: &'a [Variant],
    /// The families whose tables are looked at.
    pub families: &'a [Family],
}

impl Part<'static> {
    /// All there are.
    pub const ALL: Self = Part { variants: &Variant::ALL, families: &[Family::V4, Family::V6] };
}

impl Part<'_> {
    /// Our own tables, too, which are nf_tables' and of both families.
    pub fn has_own(&self) -> bool {
        self.variants.contains(&Variant::Nft) && self.families.len() == Part::ALL.families.len()
    }
}

/// What a namespace holds.
#[derive(Debug)]
pub struct Look {
    views: BTreeMap<(Variant, Family), View>,
    own: View,
    /// The other tables of nf_tables that IPv4 and IPv6 share.
    shared: View,
}

impl Look {
    /// One family in one variant.
    pub fn view(&self, variant: Variant, family: Family) -> &View {
        static NOTHING: View = View { tables: BTreeMap::new() };
        self.views.get(&(variant, family)).unwrap_or(&NOTHING)
    }

    /// The base chains of others that the kernel calls before those in which our chains redirect.
    pub fn preceding(&self) -> Vec<Preceding> {
        let ours = [Purpose::Ambient, Purpose::Sidecar].map(owned).concat();
        let mut all = Preceding::base_chains("inet", &self.shared, |name| ours.contains(&name));
        for (word, family) in [("ip", Family::V4), ("ip6", Family::V6)] {
            let view = self.view(Variant::Nft, family);
            all.extend(Preceding::base_chains(word, view, |name| dump::IPTABLES_TABLES.contains(&name)));
        }
        all
    }

    /// Why nothing of the ambient mesh may be taken out here.
    pub fn objection(&self) -> Option<String> {
        let native = View {
            tables: self
                .own
                .tables
                .iter()
                .chain(&self.shared.tables)
                .map(|(name, table)| (name.clone(), table.clone()))
                .collect(),
        };
        objection(self.views.values(), &native)
    }

    /// Why the rules of the ambient mesh must not be put in here.
    pub fn sidecar(&self) -> Option<String> {
        sidecar(self.views.values(), &self.shared)
    }

    /// The tables of nf_tables that are ours as a whole.
    pub fn own(&self) -> &View {
        &self.own
    }
}
