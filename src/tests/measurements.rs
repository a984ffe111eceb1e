//! `scripts/bench` can measure everything; how fast it is, is not a test's affair.

use crate::bench::{Options, Row, run, table};
use crate::support::FERRULE;

#[test]
fn everything_can_be_measured() {
    let rows = run(&Options { ferrule: FERRULE.into(), quick: true, only: None });
    assert!(rows.iter().all(|row| row.number.is_finite() && row.number > 0.0), "{rows:?}");
    let text = table(&rows);
    assert_eq!(text.lines().count(), rows.len(), "{text}");
    for name in ["nothing to do", "rules step", "ADD of an ambient pod", "resident", "executable"] {
        assert!(text.contains(name), "{name} in {text}");
    }
}

#[test]
fn the_table_is_aligned_and_says_what_is_over() {
    let row = |name, value: &str, goal, number| Row { name, value: value.to_owned(), goal, number };
    let rows = [
        row("short", "1.5", Some(2.0), 1.5),
        row("a longer name", "2.5  (5 ms / 2 ms)", Some(2.0), 2.5),
        row("size", "3 MB", None, 3.0),
    ];
    let expected = "\
short          1.5                 <= 2  ok
a longer name  2.5  (5 ms / 2 ms)  <= 2  over
size           3 MB
";
    assert_eq!(table(&rows), expected);
}
