//! What the published suite leaves open: crashes, aborted uploads, bad input, and a model.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use isobath::{Durability, Options, Store};
use isobath_object_store::IsobathObjectStore;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload};

const MIB: usize = 1 << 20;

fn options() -> Options {
    Options::new().pool_bytes(8 << 20).workers(1)
}

fn objects() -> IsobathObjectStore {
    let store = Store::in_memory(&options().durability(Durability::None)).unwrap();
    IsobathObjectStore::open(&store, "objects").unwrap()
}

/// Records in the trees of uploads and of contents.
fn left(objects: &IsobathObjectStore) -> (u64, u64) {
    let count = |name| objects.store().tree(name).unwrap().count(..).unwrap();
    (count("objects.uploads"), count("objects.contents"))
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed) as u8).collect()
}

/// Waits until what a drop has begun is done.
async fn left_in_the_end(objects: &IsobathObjectStore) -> (u64, u64) {
    for _ in 0..1000 {
        if left(objects) == (0, 0) {
            break;
        }
        tokio::task::yield_now().await;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    left(objects)
}

#[tokio::test]
async fn ranges_of_large_objects_cross_parts_and_pieces() {
    let objects = objects();
    let path = Path::from("large");
    let whole = bytes(5 * MIB + 123, 1);
    let mut upload = objects.put_multipart(&path).await.unwrap();
    for part in [
        &whole[..10],
        &whole[10..10],
        &whole[10..3 * MIB],
        &whole[3 * MIB..],
    ] {
        upload.put_part(part.to_vec().into()).await.unwrap();
    }
    upload.complete().await.unwrap();
    assert_eq!(
        objects.get(&path).await.unwrap().bytes().await.unwrap(),
        whole
    );
    let ranges = [
        0..1,
        5..20,
        9..10,
        3 * MIB - 1..3 * MIB + 1,
        1..5 * MIB,
        5 * MIB + 122..6 * MIB,
    ];
    let ranges: Vec<_> = ranges
        .iter()
        .map(|r| r.start as u64..r.end as u64)
        .collect();
    let parts = objects.get_ranges(&path, &ranges).await.unwrap();
    for (range, part) in ranges.iter().zip(parts) {
        let end = whole.len().min(range.end as usize);
        assert_eq!(part, whole[range.start as usize..end], "{range:?}");
    }
    let options = GetOptions::new().with_range(Some(1..4 * MIB as u64));
    let stream = objects
        .get_opts(&path, options)
        .await
        .unwrap()
        .into_stream();
    let pieces: Vec<bytes::Bytes> = stream.try_collect().await.unwrap();
    assert!(pieces.len() > 1);
    assert_eq!(pieces.concat(), whole[1..4 * MIB]);
}

#[tokio::test]
async fn a_stream_reads_on_when_its_object_is_replaced_and_deleted() {
    let objects = objects();
    let path = Path::from("large");
    let whole = bytes(4 * MIB, 2);
    objects.put(&path, whole.clone().into()).await.unwrap();
    let mut stream = objects.get(&path).await.unwrap().into_stream();
    let mut read = stream.try_next().await.unwrap().unwrap().to_vec();
    objects.put(&path, "short".into()).await.unwrap();
    objects.delete(&path).await.unwrap();
    while let Some(piece) = stream.try_next().await.unwrap() {
        read.extend(piece);
    }
    assert_eq!(read, whole);
    drop(stream);
    assert_eq!(left(&objects), (0, 0));
}

#[tokio::test]
async fn uploads_that_are_aborted_or_dropped_leave_nothing() {
    let objects = objects();
    let path = Path::from("upload");
    let mut upload = objects.put_multipart(&path).await.unwrap();
    upload.put_part(bytes(MIB, 3).into()).await.unwrap();
    assert_eq!(left(&objects), (1, 1));
    upload.abort().await.unwrap();
    assert_eq!(left(&objects), (0, 0));
    // A part that comes late.
    let late = upload.put_part("late".into()).await;
    assert!(matches!(late, Err(Error::Generic { .. })));

    let mut upload = objects.put_multipart(&path).await.unwrap();
    upload.put_part(bytes(MIB, 3).into()).await.unwrap();
    drop(upload);
    assert_eq!(left_in_the_end(&objects).await, (0, 0));

    let id = objects.create_multipart(&path).await.unwrap();
    objects.put_part(&path, &id, 3, "x".into()).await.unwrap();
    let early = objects.complete_multipart(&path, &id, Vec::new()).await;
    assert!(matches!(early, Err(Error::Generic { .. })));
    objects.abort_multipart(&path, &id).await.unwrap();
    assert_eq!(left(&objects), (0, 0));
    assert!(objects.list(None).try_next().await.unwrap().is_none());
}

/// Gives the uploads other ids: of another process (`byte` 0), or of this one (`byte` 10).
fn with_other_ids(objects: &IsobathObjectStore, byte: usize) {
    let uploads = objects.store().tree("objects.uploads").unwrap();
    let contents = objects.store().tree("objects.contents").unwrap();
    for tree in [uploads, contents] {
        let records: Vec<_> = tree.iter().collect::<Result<_, _>>().unwrap();
        for (key, value) in records {
            let mut other = key.clone();
            other[byte] ^= 1;
            tree.remove(&key).unwrap();
            tree.insert(&other, &value).unwrap();
        }
    }
}

#[tokio::test]
async fn uploads_that_cannot_go_on_are_removed_when_it_is_opened() {
    let objects = objects();
    let path = Path::from("upload");
    for byte in [0, 10] {
        let mut upload = objects.put_multipart(&path).await.unwrap();
        upload.put_part("part".into()).await.unwrap();
        let again = IsobathObjectStore::open(objects.store(), "objects").unwrap();
        assert_eq!(left(&again), (1, 1));
        with_other_ids(&objects, byte);
        let again = IsobathObjectStore::open(objects.store(), "objects").unwrap();
        assert_eq!(left(&again), (0, 0));
    }
    // Those that outlive processes stay.
    let id = objects.create_multipart(&path).await.unwrap();
    objects
        .put_part(&path, &id, 0, "part".into())
        .await
        .unwrap();
    with_other_ids(&objects, 0);
    IsobathObjectStore::open(objects.store(), "objects").unwrap();
    assert_eq!(left(&objects), (1, 1));
}

#[tokio::test]
async fn overwriting_renaming_and_deleting_keep_no_contents() {
    let objects = objects();
    let (a, b) = (Path::from("a"), Path::from("b"));
    let contents = |objects: &IsobathObjectStore| left(objects).1;
    objects.put(&a, bytes(2 * MIB, 4).into()).await.unwrap();
    objects.put(&a, bytes(MIB, 5).into()).await.unwrap();
    assert_eq!(contents(&objects), 1);
    objects.copy(&a, &b).await.unwrap();
    assert_eq!(contents(&objects), 2);
    let tag = objects.head(&a).await.unwrap().e_tag;
    objects.rename(&a, &b).await.unwrap();
    assert_eq!(contents(&objects), 1);
    assert_eq!(objects.head(&b).await.unwrap().e_tag, tag);
    objects.rename(&b, &b).await.unwrap();
    objects.copy(&b, &b).await.unwrap();
    assert_eq!(contents(&objects), 1);
    assert_eq!(
        objects.get(&b).await.unwrap().bytes().await.unwrap(),
        bytes(MIB, 5)
    );
    let exists = objects.rename_if_not_exists(&b, &b).await;
    assert!(matches!(exists, Err(Error::AlreadyExists { .. })));
    objects.delete(&b).await.unwrap();
    assert_eq!(contents(&objects), 0);
    // Many parts are removed, too.
    let mut upload = objects.put_multipart(&a).await.unwrap();
    for _ in 0..40 {
        upload.put_part("x".into()).await.unwrap();
    }
    upload.complete().await.unwrap();
    assert_eq!(contents(&objects), 40);
    objects.put(&a, "".into()).await.unwrap();
    assert_eq!(contents(&objects), 0);
    assert_eq!(objects.head(&a).await.unwrap().size, 0);
}

#[tokio::test]
async fn objects_are_there_after_the_store_was_closed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("objects.iso");
    let store = Store::create(&file, &options()).unwrap();
    let objects = IsobathObjectStore::open(&store, "objects").unwrap();
    let path = Path::from("a/b");
    let put = objects.put(&path, bytes(MIB, 6).into()).await.unwrap();
    let meta = objects.head(&path).await.unwrap();
    drop(objects);
    store.close().unwrap();

    let store = Store::open(&file, &options().read_only(true)).unwrap();
    let objects = IsobathObjectStore::open(&store, "objects").unwrap();
    assert_eq!(objects.head(&path).await.unwrap(), meta);
    assert_eq!(meta.e_tag, put.e_tag);
    assert_eq!(
        objects.get(&path).await.unwrap().bytes().await.unwrap(),
        bytes(MIB, 6)
    );
    let refused = objects.put(&path, "other".into()).await;
    assert!(
        matches!(refused, Err(Error::PermissionDenied { .. })),
        "{refused:?}"
    );
    let refused = objects.delete(&path).await;
    assert!(
        matches!(refused, Err(Error::PermissionDenied { .. })),
        "{refused:?}"
    );
    drop(objects);
    store.close().unwrap();
}

#[tokio::test]
async fn impossible_requests_say_why() {
    let objects = objects();
    let long = Path::from("x".repeat(1025));
    for refused in [
        objects.put(&long, "a".into()).await.err(),
        objects.get(&long).await.err(),
        objects.put_multipart(&long).await.err(),
        objects.delete(&long).await.err(),
    ] {
        let error = refused.unwrap();
        assert!(matches!(error, Error::InvalidPath { .. }), "{error}");
        assert!(error.to_string().contains("1024"), "{error}");
    }
    let path = Path::from("a");
    objects.put(&path, "abc".into()).await.unwrap();
    let empty = Path::from("a").join("").join("b");
    for refused in [
        objects.put(&empty, "a".into()).await.err(),
        objects.put_multipart(&empty).await.err(),
        objects.create_multipart(&empty).await.err(),
        objects.copy(&path, &empty).await.err(),
        objects.rename(&path, &empty).await.err(),
    ] {
        let error = refused.unwrap();
        assert!(matches!(error, Error::InvalidPath { .. }), "{error}");
    }
    let options = GetOptions::new().with_version(Some("1".to_owned()));
    let refused = objects.get_opts(&path, options).await;
    assert!(matches!(refused, Err(Error::NotSupported { .. })));
    assert!(objects.get_ranges(&path, &[0..2, 7..9]).await.is_err());

    let store = objects.store().clone();
    let mut stream = objects.list(None);
    store.close().unwrap();
    let refused = objects.put(&path, "abc".into()).await.unwrap_err();
    assert!(refused.to_string().contains("closed"), "{refused}");
    let refused = objects.get(&path).await.unwrap_err();
    assert!(refused.to_string().contains("closed"), "{refused}");
    assert!(stream.try_next().await.is_err());
}

/// Random operations against a map.
#[tokio::test]
async fn a_map_answers_the_same() {
    let objects = objects();
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let names = ["a", "a/b", "a/c/d", "a-", "a0", "b", "b/b/b", "c/a"];
    for round in 0..400 {
        let name = names[next(8) as usize];
        let other = names[next(8) as usize];
        let (path, to) = (Path::from(name), Path::from(other));
        let value = bytes([0, 3, 5000, 300_000][next(4) as usize], round);
        let payload = PutPayload::from(value.clone());
        match next(6) {
            0 => {
                objects.put(&path, payload).await.unwrap();
                model.insert(name.to_owned(), value);
            }
            1 => {
                let put = objects
                    .put_opts(&path, payload, PutMode::Create.into())
                    .await;
                assert_eq!(put.is_ok(), !model.contains_key(name));
                model.entry(name.to_owned()).or_insert(value);
            }
            2 => {
                objects.delete(&path).await.unwrap();
                model.remove(name);
            }
            3 => {
                let copied = objects.copy(&path, &to).await;
                assert_eq!(copied.is_ok(), model.contains_key(name));
                if let Some(value) = model.get(name).cloned() {
                    model.insert(other.to_owned(), value);
                }
            }
            4 => {
                let renamed = objects.rename(&path, &to).await;
                assert_eq!(renamed.is_ok(), model.contains_key(name));
                if let Some(value) = model.remove(name) {
                    model.insert(other.to_owned(), value);
                }
            }
            _ => {
                let read = objects.get(&path).await.ok();
                assert_eq!(read.is_some(), model.contains_key(name));
                if let Some(read) = read {
                    assert_eq!(read.bytes().await.unwrap(), model[name]);
                }
            }
        }
        if round % 20 == 0 {
            compare(&objects, &model, &to).await;
        }
    }
}

async fn compare(objects: &IsobathObjectStore, model: &BTreeMap<String, Vec<u8>>, prefix: &Path) {
    let listed = objects
        .list(None)
        .map_ok(|meta| (meta.location.to_string(), meta.size));
    let listed: Vec<_> = listed.try_collect().await.unwrap();
    let expected = model
        .iter()
        .map(|(path, value)| (path.clone(), value.len() as u64));
    assert_eq!(listed, expected.collect::<Vec<_>>());
    for offset in [None, Some(Path::from("a/b")), Some(Path::from("b"))] {
        let below = format!("{prefix}/");
        let is_listed = |path: &str| {
            path.starts_with(&below) && offset.as_ref().is_none_or(|offset| path > offset.as_ref())
        };
        let listed = match &offset {
            None => objects.list(Some(prefix)),
            Some(offset) => objects.list_with_offset(Some(prefix), offset),
        };
        let listed = listed.map_ok(|meta| meta.location.to_string());
        let listed: Vec<String> = listed.try_collect().await.unwrap();
        let expected = model.keys().filter(|path| is_listed(path)).cloned();
        assert_eq!(listed, expected.collect::<Vec<_>>(), "{prefix} {offset:?}");
    }
    let contents = model.values().filter(|value| !value.is_empty()).count() as u64;
    assert_eq!(left(objects), (0, contents));
}
