//! YAML as people write it, read with bounds: a few lines of aliases of aliases unfold into millions of values.

use crate::error::Result;
use crate::invalid;
use serde::de::DeserializeOwned;
use serde_saphyr::options::Options;

/// Values that come of aliases, in one text.
const MOST_REPLAYED: usize = 10_000;

/// Reads a text of one document. Errors name the place and never quote the text, which may hold secrets.
pub fn document<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|e| invalid!("{e}"))
}

/// Reads every document of a text.
pub fn documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    serde_saphyr::from_multiple_with_options(text, options()).map_err(|e| invalid!("{e}"))
}

fn options() -> Options {
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPLAYED };
    serde_saphyr::options! { with_snippet: false, alias_limits: alias_limits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn aliases_are_read_and_bombs_refused() {
        assert_eq!(document::<Value>("a: &x [1]\nb: *x\n").unwrap(), json!({"a": [1], "b": [1]}));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for n in 1..8 {
            let before = vec![format!("*a{}", n - 1); 9].join(",");
            bomb += &format!("a{n}: &a{n} [{before}]\n");
        }
        assert!(document::<Value>(&bomb).is_err());
        assert!(documents::<Value>(&format!("a: 1\n---\n{bomb}")).is_err());
    }

    #[test]
    fn errors_quote_nothing_and_are_one_line() {
        let error = document::<Vec<bool>>("[true, 'hunter2']").unwrap_err().to_string();
        assert!(!error.contains("hunter2") && !error.contains('\n'), "{error}");
    }
}
