//! Every way in which files are rotated, ten times in a row.

use super::*;
use crate::certificate::pem;
use rcgen::{CertificateParams, KeyPair};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::RecvTimeoutError;

const SOON: Duration = Duration::from_secs(20);
/// Longer than everything that settles.
const QUIET: Duration = Duration::from_millis(100);
const ROUNDS: usize = 10;

/// A chain with its key, PEM.
struct Generation {
    chain: String,
    key: String,
}

static GENERATIONS: LazyLock<Vec<Generation>> = LazyLock::new(|| {
    let make = |_| {
        let key = KeyPair::generate().unwrap();
        let chain = CertificateParams::default().self_signed(&key).unwrap().pem();
        Generation { chain, key: key.serialize_pem() }
    };
    (0..=ROUNDS).map(make).collect()
});

/// Writes a file in place.
fn write(path: &Path, text: &str) {
    use std::io::Write;
    let file = fs::File::options().write(true).create(true).truncate(true).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// Writes chain, key and roots of a generation below a directory, the chain first.
fn fill(dir: &Path, generation: usize) {
    fs::create_dir_all(dir).unwrap();
    let generation = &GENERATIONS[generation];
    write(&dir.join("cert.pem"), &generation.chain);
    write(&dir.join("root.pem"), &generation.chain);
    write(&dir.join("key.pem"), &generation.key);
}

const FILES: [&str; 3] = ["cert.pem", "key.pem", "root.pem"];

#[expect(clippy::disallowed_methods, reason = "tests change the files that are watched")]
fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "tests change the files that are watched")]
fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

/// Turns a link in one step, as the kubelet does.
fn turn(link: &Path, target: impl AsRef<Path>) {
    let temporary = link.with_file_name(".turning");
    symlink(target, &temporary).unwrap();
    rename(&temporary, link);
}

/// The name and the first certificate of what is told.
type Told = (String, Result<Vec<u8>, String>);

struct Bed {
    reader: Reader,
    told: Receiver<Told>,
}

fn bed(dir: &Path, patience: Duration) -> Bed {
    let (sender, told) = channel();
    let tell = move |name: &str, notice: Notice| {
        let first = |chain: &[u8]| pem::certificates(chain).next().unwrap().to_vec();
        let said = match notice {
            Notice::Content(Content::Certificate { chain, .. }) => Ok(first(&chain)),
            Notice::Content(Content::Roots(roots)) => Ok(roots.iter().next().unwrap().to_vec()),
            Notice::Content(Content::Exists(exists)) => Ok(vec![u8::from(exists)]),
            Notice::Failed(error) => Err(error.to_string()),
        };
        sender.send((name.to_owned(), said)).unwrap_or(());
    };
    let reader = Reader::start(Options { settle: Duration::from_millis(30), patience }, tell).unwrap();
    let files = Files::Certificate { chain: dir.join("cert.pem"), key: dir.join("key.pem") };
    reader.watch("pair", files);
    reader.watch("roots", Files::Roots(dir.join("root.pem")));
    Bed { reader, told }
}

impl Bed {
    /// Both names are told with this generation, each once.
    #[track_caller]
    fn expect(&self, generation: usize, what: &str) {
        let der = pem::certificates(GENERATIONS[generation].chain.as_bytes()).next().unwrap().to_vec();
        let mut names = BTreeSet::new();
        for _ in 0..2 {
            let (name, said) = self.told.recv_timeout(SOON).unwrap_or_else(|_| panic!("{what}: only {names:?} told"));
            assert_eq!(said.as_ref(), Ok(&der), "{what}: {name}");
            names.insert(name);
        }
        assert_eq!(names.len(), 2, "{what}");
        self.quiet(what);
    }

    #[track_caller]
    fn quiet(&self, what: &str) {
        match self.told.recv_timeout(QUIET) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("{what}: told once more: {other:?}"),
        }
    }
}

/// Runs a layout: `prepare` makes generation 0 below a root and returns the directory that is watched, `rotate` makes a
/// later one.
#[track_caller]
fn check(layout: &str, prepare: impl Fn(&Path) -> PathBuf, rotate: impl Fn(&Path, usize)) {
    let root = tempfile::tempdir().unwrap();
    let bed = bed(&prepare(root.path()), SOON);
    bed.expect(0, layout);
    for generation in 1..=ROUNDS {
        rotate(root.path(), generation);
        bed.expect(generation, &format!("{layout}, round {generation}"));
    }
}

fn plain(root: &Path) -> PathBuf {
    fill(&root.join("d"), 0);
    root.join("d")
}

#[test]
fn written_in_place() {
    check("in place", plain, |root, generation| fill(&root.join("d"), generation));
}

#[test]
fn renamed_over() {
    check("renamed over", plain, |root, generation| {
        fill(&root.join("new"), generation);
        FILES.iter().for_each(|name| rename(&root.join("new").join(name), &root.join("d").join(name)));
    });
}

#[test]
fn removed_and_made_anew() {
    check("removed and made anew", plain, |root, generation| {
        FILES.iter().for_each(|name| remove(&root.join("d").join(name)));
        clock::sleep(Duration::from_millis(20));
        fill(&root.join("d"), generation);
    });
}

fn links_to_files(root: &Path) -> PathBuf {
    fill(&root.join("v0"), 0);
    fs::create_dir(root.join("d")).unwrap();
    FILES.iter().for_each(|name| symlink(root.join("v0").join(name), root.join("d").join(name)).unwrap());
    root.join("d")
}

#[test]
fn links_turned() {
    check("links turned", links_to_files, |root, generation| {
        let version = root.join(format!("v{generation}"));
        fill(&version, generation);
        FILES.iter().for_each(|name| turn(&root.join("d").join(name), version.join(name)));
    });
}

#[test]
fn replaced_behind_links() {
    check("replaced behind links", links_to_files, |root, generation| {
        fill(&root.join("new"), generation);
        FILES.iter().for_each(|name| rename(&root.join("new").join(name), &root.join("v0").join(name)));
    });
}

#[test]
fn directory_behind_a_link_turned() {
    let prepare = |root: &Path| {
        fill(&root.join("v0/deep"), 0);
        symlink("v0", root.join("current")).unwrap();
        root.join("current/deep")
    };
    check("directory link turned", prepare, |root, generation| {
        fill(&root.join(format!("v{generation}/deep")), generation);
        turn(&root.join("current"), format!("v{generation}"));
    });
}

#[test]
fn directory_replaced() {
    check("directory replaced", plain, |root, generation| {
        fill(&root.join("new"), generation);
        rename(&root.join("d"), &root.join(format!("old{generation}")));
        rename(&root.join("new"), &root.join("d"));
    });
}

/// A volume as the kubelet makes it: the files are links to `..data`, which is a link to a directory of one version.
fn volume(dir: &Path) {
    fill(&dir.join("..0"), 0);
    symlink("..0", dir.join("..data")).unwrap();
    FILES.iter().for_each(|name| symlink(Path::new("..data").join(name), dir.join(name)).unwrap());
}

fn turn_volume(dir: &Path, generation: usize) {
    fill(&dir.join(format!("..{generation}")), generation);
    turn(&dir.join("..data"), format!("..{generation}"));
    fs::remove_dir_all(dir.join(format!("..{}", generation - 1))).unwrap();
}

#[test]
fn volume_of_the_kubelet() {
    let prepare = |root: &Path| {
        volume(root);
        root.to_path_buf()
    };
    check("volume of the kubelet", prepare, turn_volume);
}

#[test]
fn chain_into_another_volume() {
    let prepare = |root: &Path| {
        volume(&root.join("csi"));
        fs::create_dir(root.join("d")).unwrap();
        FILES.iter().for_each(|name| symlink(root.join("csi").join(name), root.join("d").join(name)).unwrap());
        root.join("d")
    };
    check("chain into another volume", prepare, |root, generation| turn_volume(&root.join("csi"), generation));
}

#[test]
fn absent_at_first_and_told_of() {
    for round in 0..ROUNDS {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("later/d");
        let bed = bed(&dir, Duration::from_millis(100));
        let mut names = BTreeSet::new();
        for _ in 0..2 {
            let (name, said) = bed.told.recv_timeout(SOON).unwrap();
            assert!(said.unwrap_err().contains("No such file"));
            names.insert(name);
        }
        assert_eq!(names.len(), 2);
        bed.quiet("failures are told once");
        fill(&dir, round);
        bed.expect(round, "came later");
    }
}

#[test]
fn a_file_that_comes_and_goes() {
    let root = tempfile::tempdir().unwrap();
    let (sender, told) = channel();
    let tell = move |_: &str, notice: Notice| {
        let Notice::Content(Content::Exists(exists)) = notice else { panic!("only its being there counts") };
        sender.send(exists).unwrap_or(());
    };
    let reader = Reader::start(Options { settle: Duration::from_millis(30), patience: SOON }, tell).unwrap();
    let path = root.path().join("crl.pem");
    reader.watch("crl", Files::Existing(path.clone()));
    assert_eq!(told.recv_timeout(SOON), Ok(false));
    for _ in 0..ROUNDS {
        write(&path, "x");
        assert_eq!(told.recv_timeout(SOON), Ok(true));
        remove(&path);
        assert_eq!(told.recv_timeout(SOON), Ok(false));
    }
    assert!(told.recv_timeout(QUIET).is_err());
}

#[test]
fn halves_of_a_change_are_never_told() {
    let root = tempfile::tempdir().unwrap();
    let dir = plain(root.path());
    let bed = bed(&dir, SOON);
    bed.expect(0, "first");
    for generation in 1..=ROUNDS {
        // The chain a good while before the key, and the roots in pieces.
        let next = &GENERATIONS[generation];
        write(&dir.join("cert.pem"), &next.chain);
        write(&dir.join("root.pem"), "");
        clock::sleep(QUIET);
        write(&dir.join("root.pem"), &next.chain[..200]);
        clock::sleep(QUIET);
        assert!(bed.told.try_recv().is_err());
        write(&dir.join("root.pem"), &next.chain);
        write(&dir.join("key.pem"), &next.key);
        bed.expect(generation, "whole again");
    }
    // The same bytes again are no change.
    fill(&dir, ROUNDS);
    bed.quiet("the same again");
    bed.reader.handle().forget("pair");
    bed.reader.handle().forget("roots");
    fill(&dir, 0);
    bed.quiet("nobody asks any more");
}

#[test]
fn a_change_counts_once_it_has_stayed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("root.pem");
    let mut watched = Watched::new(Files::Roots(path.clone()));
    let (options, start) = (Options::default(), clock::now());
    let mut look = |milliseconds: u64| {
        let notice = watched.look(&options, start + Duration::from_millis(milliseconds));
        let told = match notice? {
            Notice::Content(Content::Roots(roots)) => format!("{} roots", roots.len()),
            Notice::Content(_) => panic!("roots were asked for"),
            Notice::Failed(error) => error.to_string(),
        };
        Some((told, watched.due.is_some()))
    };
    let [a, b, c] = [&GENERATIONS[0], &GENERATIONS[1], &GENERATIONS[2]].map(|generation| generation.chain.as_str());
    write(&path, a);
    assert_eq!(look(0), Some(("1 roots".into(), false)), "at once, the first time");
    // A bundle that is still being written has whole certificates in it.
    write(&path, &[a, b].concat());
    assert_eq!(look(10), None);
    write(&path, &[a, b, c].concat());
    assert_eq!(look(110), None);
    assert_eq!(look(210), Some(("3 roots".into(), false)));
    assert_eq!(look(310), None);
    write(&path, "");
    assert_eq!(look(400), None);
    assert_eq!(look(10_399), None);
    assert!(look(10_400).is_some_and(|(told, again)| told.contains("no usable root certificate") && again));
    assert_eq!(look(20_000), None, "told once");
    // What was told before is no change.
    write(&path, &[a, b, c].concat());
    assert_eq!(look(20_100), None);
}
