//! Label selectors, and the enablement selectors made of them (`--ambient-enablement-selector`).

use super::types::StringMap;
use crate::error::Result;

/// A list of pod and namespace selector pairs, of which any must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnablementSelectors {
    _private: (),
}

impl EnablementSelectors {
    /// Parses the YAML (or JSON) list `[{podSelector: …, namespaceSelector: …}]`; an empty text is an empty list. An
    /// unknown key, operator or shape is `Invalid` and names what is allowed.
    pub fn parse(_yaml: &str) -> Result<Self> {
        todo!()
    }

    /// Whether any pair matches.
    pub fn matches(&self, _pod_labels: &StringMap, _namespace_labels: &StringMap) -> bool {
        todo!()
    }
}
